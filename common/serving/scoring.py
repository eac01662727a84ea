"""How likely a model finds a text: what evaluation harnesses ask for with `echo` and `logprobs`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model import Transformer
from common.sampling import TokenLogprobs, token_logprobs

ROWS = 256  # tokens whose scores are computed at once: a row has one number for each token of the vocabulary


@torch.inference_mode()
def prompt_logprobs(model: Transformer, token_ids: list[int], top: int) -> list[TokenLogprobs | None]:
    """For each token its log-probability given those before it, and the `top` likeliest; None for the first one.

    One pass over the whole text, beside the engine and without its cache: the model is a function and keeps nothing, so
    that this may run while the engine computes.
    """
    ids = torch.tensor(token_ids, device=model.cos.device)
    hidden = model(ids, torch.arange(len(ids), device=ids.device), causal_attention)
    scored: list[TokenLogprobs | None] = [None]
    for start in range(0, len(ids) - 1, ROWS):
        following = ids[start + 1 : start + 1 + ROWS]
        logits = model.logits(hidden[start : start + len(following)])
        scored += token_logprobs(logits, following, [top] * len(following))
    return scored


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q is [N, H, D], k and v are [N, H_kv, D]; each token attends to itself and to those before it."""
    q, k, v = (heads.transpose(0, 1).unsqueeze(0) for heads in (q, k, v))  # [1, H, N, D]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

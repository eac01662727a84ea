"""The KV cache of one sequence: what attention needs of the past, and nothing else of it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model import ModelConfig


class KVCache:
    """The keys and values of one sequence: for each layer, one contiguous buffer of fixed capacity.

    A token's key and value depend on the tokens before it and never on those after it, so once computed they stay
    valid for as long as the sequence grows. Everything else of a past token (queries, MLP, logits) is not needed again.
    """

    def __init__(self, config: ModelConfig, capacity: int, device: torch.device, dtype: torch.dtype):
        shape = (config.num_layers, config.num_kv_heads, capacity, config.head_dim)
        # Allocated once, for the longest possible sequence: appending would copy the cache for every token.
        self.k = torch.empty(shape, device=device, dtype=dtype)
        self.v = torch.empty(shape, device=device, dtype=dtype)
        self.capacity = capacity  # tokens there is room for
        self.length = 0  # tokens held, the same for all layers between two steps

    @property
    def nbytes(self) -> int:
        """Return the bytes allocated, filled or not."""
        return self.k.nbytes + self.v.nbytes

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store what is new, then attend to all there is: the model's `attend`.

        q is [N, H, D], k and v are [N, H_kv, D]; returns [N, H, D]. The N tokens follow the `length` tokens held:
        they are a whole prompt in an empty cache (prefill), or one token after the others (decode). `length` stays as
        it is: all layers of a step begin at the same place, and the engine advances it when the last one has run.
        """
        start, end = self.length, self.length + len(q)
        self.k[layer, :, start:end] = k.transpose(0, 1)
        self.v[layer, :, start:end] = v.transpose(0, 1)
        if len(q) > 1:
            q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, heads, N, D]
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return attended[0].transpose(0, 1)
        # One token sees everything held, so there is no mask. The query heads that share a K/V head can stand where
        # the tokens of a prompt would stand: K and V are then read once for the group instead of once per head.
        k, v = self.k[None, layer, :, :end], self.v[None, layer, :, :end]  # [1, H_kv, S, D]
        groups = q.view(1, k.shape[1], -1, q.shape[-1])  # [1, H_kv, H / H_kv, D]
        return F.scaled_dot_product_attention(groups, k, v).reshape(q.shape)

"""Run a pass before the first request arrives: kernels are compiled or loaded then, not while it waits."""

from itertools import product

import torch

from .. import sampling
from ..attention import PagedBatch
from ..attention.triton_backend import SPLIT
from ..engine import BaseEngine
from ..fused.packed import prepare_products
from ..sampling_params import SamplingParams


@torch.inference_mode()
def warm_up(engine: BaseEngine) -> None:
    """Run the model, and the draft model if there is one, as a step does: each kernel is launched once.

    The engine must have no request yet: if it has K and V in pages, this writes to the first page.
    """
    for holder in (engine, engine.drafter):
        model, cache = getattr(holder, "model", None), getattr(holder, "cache", None)
        if model is None:  # no drafter, or one without a model
            continue
        token_ids, positions, slots = torch.zeros(3, 3, dtype=torch.int64, device=engine.device)
        for rows in (1, 2, 3):  # a kernel may have variants for few rows
            hidden = model(token_ids[:rows], positions[:rows], lambda layer, q, k, v: q)  # without pages, as in scoring
        if hasattr(cache, "attention"):
            # One request decodes behind a text of several pieces, all in one page, and one runs a prompt of two tokens.
            page_size, length = cache.k.shape[2], min(2 * SPLIT, model.config.context_length)
            pages = [0] * -(-length // page_size)
            paged = PagedBatch.pack([1, 2], [length, 2], [pages, [0]], slots, page_size)
            hidden = model(token_ids, positions, cache.bind(paged))
        if getattr(model, "pads", False):
            prepare_products(model.blocks[0], getattr(engine.scheduler, "token_budget", 256))
        logits = model.logits(hidden)
        if sampling.has_kernels(engine.device):
            from ..sampling_kernels import draw_tokens

            for scores, top_k in product((logits, logits.float()), (0, 2)):  # penalties make them float32
                params = [SamplingParams(temperature=1.0, top_k=top_k)] * len(scores)
                draw_tokens(scores, params, [0.5] * len(scores))

"""Compile kernels before the first request arrives, not while it waits."""

import torch

from .. import sampling
from ..attention import PagedBatch
from ..attention.triton_backend import SPLIT
from ..engine import BaseEngine


@torch.inference_mode()
def warm_up(engine: BaseEngine) -> None:
    """Launch every kernel that a step of this engine can launch, once; do nothing where there are no kernels.

    The engine must have K and V in pages, and no request yet: this writes to its first page.
    """
    if not sampling.has_kernels(engine.device):
        return
    from .sampler import draw_plain

    for holder in (engine, getattr(engine, "drafter", None)):
        cache = getattr(holder, "cache", None)
        if cache is None:  # a drafter that is no model
            continue
        token_ids, positions, slots = torch.zeros(3, 3, dtype=torch.int64, device=engine.device)
        # One request decodes behind a text of several pieces, all in one page, and one runs a prompt of two tokens.
        page_size = cache.k.shape[2]
        pages = [0] * -(-2 * SPLIT // page_size)
        paged = PagedBatch.pack([1, 2], [2 * SPLIT, 2], [pages, [0]], slots, page_size)
        holder.model(token_ids, positions, lambda layer, q, k, v: q)  # as prompts are scored: without pages
        logits = holder.model.logits(holder.model(token_ids, positions, cache.bind(paged)))
        draw_plain(logits, [1.0] * 3, [0.5] * 3)

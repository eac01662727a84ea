"""Paged flash attention from torch itself: `torch.nn.attention.varlen.varlen_attn`, with no package to build.

Older versions of torch have the function without pages, and which page sizes it takes depends on the kernels behind it:
`why_not_flash` looks, and tries. num_splits=1 keeps a request's result independent of the rest of the batch.
"""

import inspect

import torch
from torch import Tensor

from common.fused.triton_launch import why_not_triton

from .batch import PagedBatch
from .triton_backend import TritonAttention
from .window import current_window

FA2_PAGES = 256  # tokens
NEEDED = {"block_table", "seqused_k", "num_splits", "enable_gqa", "window_size"}


def why_not_flash(device: torch.device, dtype: torch.dtype, head_dim: int, page_size: int) -> str | None:
    """Return why this backend cannot be used here, None if it can."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if dtype not in (torch.float16, torch.bfloat16):
        return "it is for float16 and bfloat16"
    if (reason := why_not_triton(device)) is not None:
        return f"Triton writes its pages, but {reason}"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn"
    if not inspect.signature(varlen_attn).parameters.keys() >= NEEDED:
        return f"varlen_attn of torch {torch.__version__} takes no pages"
    try:
        attend_to_one_page(device, dtype, head_dim, page_size)
    except RuntimeError as error:
        if page_size % FA2_PAGES:
            return f"FlashAttention-2 takes pages of multiples of {FA2_PAGES} tokens, and these have {page_size}"
        return str(error).splitlines()[0]
    return None


def attend_to_one_page(device: torch.device, dtype: torch.dtype, head_dim: int, page_size: int) -> None:
    """Make the smallest call, which raises RuntimeError if the kernels do not take this head dimension or page size."""
    q, pages = (
        torch.zeros(shape, device=device, dtype=dtype) for shape in ((1, 1, head_dim), (1, page_size, 1, head_dim))
    )
    starts, one, table = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 1], [1], [[0]]))
    FlashAttention().attend(q, pages, pages, PagedBatch(starts, one, table, one.long(), page_size, 1, [1], [1]))


class FlashAttention:
    name, capturable = "flash", True
    write = TritonAttention.write  # a row of a graph may have no slot

    def prepare(self, batch: PagedBatch) -> PagedBatch:
        return batch

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: PagedBatch) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(
            q,
            k_pages,
            v_pages,
            plan.query_starts,
            None,
            max(plan.host_query_lengths),
            max(plan.host_lengths),
            window_size=((current_window() or 0) - 1, 0),  # tokens seen before and after a query's own; -1: all
            enable_gqa=q.shape[1] != k_pages.shape[2],
            seqused_k=plan.lengths,
            block_table=plan.page_tables,
            num_splits=1,
        )


def create(device: torch.device, dtype: torch.dtype, head_dim: int) -> FlashAttention:
    return FlashAttention()

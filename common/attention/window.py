"""Sliding windows: in some layers a token sees only itself and the `size - 1` tokens before it.

The stages' `attend(layer, q, k, v)` knows nothing of windows, and their files stay as they are. So a model that has
them calls `attend` within `windowed(size)`. The kernels of this package ask for `current_window()`. Everything else,
from stage 01 on, attends with PyTorch's `scaled_dot_product_attention`, whose mask is narrowed on its way.

Mistral 7B (Jiang et al., 2023) has a window in every layer, Gemma 2 in every second one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

WINDOW: ContextVar[int | None] = ContextVar("window", default=None)  # of this thread: each engine has one of its own


def current_window() -> int | None:
    """Return how many tokens a token sees in the layer that now attends, itself included; None: all before it."""
    return WINDOW.get()


@contextmanager
def windowed(size: int | None) -> Iterator[None]:
    """Narrow all attention in this context to the last `size` tokens; None changes nothing."""
    if size is None:
        yield
        return
    token = WINDOW.set(size)
    try:
        with NarrowedMasks(size):
            yield
    finally:
        WINDOW.reset(token)


class NarrowedMasks(TorchFunctionMode):
    """Narrow the masks of `scaled_dot_product_attention`: causal ones, in which key i stands at position i."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.scaled_dot_product_attention:
            return narrowed_attention(*args, size=self.size, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def narrowed_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, *, size: int, **options
) -> Tensor:
    """Return `scaled_dot_product_attention` of q `[B, H, n, D]` to k and v `[B, H_kv, S, D]`, within the window.

    A query that sees j keys sees the first j, and stands at position j - 1. Without a mask it sees all keys.
    """
    if attn_mask is None and not is_causal:
        return F.scaled_dot_product_attention(q, k[..., -size:, :], v[..., -size:, :], **options)
    if is_causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    else:
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask == 0
    first = seen.sum(-1, keepdim=True) - size  # the first key within each query's window, if it is not negative
    near = seen & (torch.arange(k.shape[-2], device=q.device) >= first)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=near, **options)

"""Attention by the library's definition, one token at a time, for milestones that compare a cache with it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .pictures import bars
from .stage_under_test import expect


def expect_attention(mine: Tensor, q: Tensor, pasts: list[tuple[Tensor, Tensor]], names: list[str]) -> None:
    """Fail unless each row of `mine`, [N, H, D], is what its query makes of its past: keys and values up to itself."""
    right = isinstance(mine, torch.Tensor) and mine.shape == q.shape
    expect(right, f"`attend` must return a tensor of shape {list(q.shape)}, not {getattr(mine, 'shape', mine)}")
    errors = {}
    for name, row, query, past in zip(names, mine, q, pasts, strict=True):
        keys, values = (x.transpose(0, 1) for x in past)  # [H_kv, S, D]
        wanted = F.scaled_dot_product_attention(query[:, None], keys, values, enable_gqa=True)[:, 0]
        errors[name] = (row - wanted).abs().max().item()
    expect(max(errors.values()) < 1e-4, "attention differs from the definition; the error by token", bars(errors, 1.0))

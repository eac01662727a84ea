"""Attention by its definition, one token at a time, for milestones that compare a cache with it."""

import torch
from torch import Tensor

from .pictures import bars
from .stage_under_test import expect


def attended(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return what one token, query [H, D], makes of all it may see, keys and values [S, H_kv, D]: [H, D]."""
    groups = len(query) // keys.shape[1]
    keys, values = (x.repeat_interleave(groups, 1).transpose(0, 1) for x in (keys, values))  # [H, S, D]
    weights = (keys @ query[:, :, None] / query.shape[-1] ** 0.5).softmax(1)  # [H, S, 1]
    return (weights * values).sum(1)


def expect_attention(mine: Tensor, q: Tensor, pasts: list[tuple[Tensor, Tensor]], names: list[str]) -> None:
    """Fail unless each row of `mine`, [N, H, D], is what its query makes of its past: keys and values up to itself."""
    right = isinstance(mine, torch.Tensor) and mine.shape == q.shape
    expect(right, f"`attend` must return a tensor of shape {list(q.shape)}, not {getattr(mine, 'shape', mine)}")
    errors = {
        name: (row - attended(query, *past)).abs().max().item()
        for name, row, query, past in zip(names, mine, q, pasts, strict=True)
    }
    expect(max(errors.values()) < 1e-4, "attention differs from the definition; the error by token", bars(errors, 1.0))

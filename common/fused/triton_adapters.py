"""The narrow products of adapters (../lora.py) on a GPU: two launches for a layer, after Punica and S-LoRA.

The first multiplies each tile, some rows with the same adapter, with its A, and the second multiplies what that gives
with B and adds it to the rows. Between them lie a few numbers for each row, as many as the rank. Numbers are rounded to
the tensors' type there, as a product of PyTorch's would be.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import interpreted

TILE = 16  # rows, at most: a product on a tensor core has no fewer
MAX_BYTES = 2**15  # bytes of weights that a program loads at once


@triton.jit
def tile_of(tiles, order, TILE: tl.constexpr):
    """Return a program's adapter, and for each of its places in `order` whether it has a row there, and which."""
    line = tiles + 3 * tl.program_id(0)
    places = tl.load(line) + tl.arange(0, TILE)
    inside = places < tl.load(line + 1)
    return tl.load(line + 2), places, inside, tl.load(order + places, inside, other=0)


@triton.jit(do_not_specialize=["rank"])
def shrink_kernel(
    x, lora_a, narrow, order, tiles, rank,
    INS: tl.constexpr, TILE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One program per tile: narrow[place, rank] = x[order[place], INS] times lora_a[adapter, rank, INS]."""
    adapter, places, inside, rows = tile_of(tiles, order, TILE)
    ranks = tl.arange(0, BLOCK_R)
    total = tl.zeros([TILE, BLOCK_R], tl.float32)
    for start in range(0, INS, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        each = tl.load(x + rows[:, None] * INS + k[None, :], inside[:, None] & (k < INS)[None, :], other=0.0)
        weights = lora_a + (adapter * rank + ranks[None, :]) * INS + k[:, None]
        weight = tl.load(weights, (k < INS)[:, None] & (ranks < rank)[None, :], other=0.0)
        total += tl.dot(each.to(DOT), weight.to(DOT), input_precision="ieee")
    target = narrow + places[:, None] * rank + ranks[None, :]
    tl.store(target, total.to(narrow.dtype.element_ty), inside[:, None] & (ranks < rank)[None, :])


@triton.jit(do_not_specialize=["rank"])
def expand_kernel(
    narrow, lora_b, y, order, tiles, rank,
    OUTS: tl.constexpr, TILE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One program per tile and BLOCK_N columns: y[order[place], OUTS] += narrow[place] times lora_b[adapter]."""
    adapter, places, inside, rows = tile_of(tiles, order, TILE)
    ranks, columns = tl.arange(0, BLOCK_R), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    source = narrow + places[:, None] * rank + ranks[None, :]
    each = tl.load(source, inside[:, None] & (ranks < rank)[None, :], other=0.0)
    weights = lora_b + (adapter * rank + ranks[:, None]) * OUTS + columns[None, :]
    weight = tl.load(weights, (ranks < rank)[:, None] & (columns < OUTS)[None, :], other=0.0)
    change = tl.dot(each.to(DOT), weight.to(DOT), input_precision="ieee")
    target, has = y + rows[:, None] * OUTS + columns[None, :], inside[:, None] & (columns < OUTS)[None, :]
    tl.store(target, (tl.load(target, has, other=0.0).to(tl.float32) + change).to(y.dtype.element_ty), has)


def add_lora(x: Tensor, y: Tensor, lora_a: Tensor, lora_b: Tensor, spans: Tensor, order: Tensor, tiles: Tensor) -> None:
    """As `numba_adapters.add_lora`; spans are not used."""
    (_, rank, ins), outs = lora_a.shape, lora_b.shape[2]
    narrow = torch.empty(len(order), rank, dtype=x.dtype, device=x.device)
    # Triton's interpreter cannot multiply bfloat16.
    dot = tl.float32 if interpreted() else getattr(tl, str(x.dtype).removeprefix("torch."))
    block = max(16, triton.next_power_of_2(rank))
    most = min(128, MAX_BYTES // (block * x.element_size()))
    shrink_kernel[(len(tiles),)](x, lora_a, narrow, order, tiles, rank, ins, TILE, block, most, dot)
    columns = triton.cdiv(outs, most)
    expand_kernel[(len(tiles), columns)](narrow, lora_b, y, order, tiles, rank, outs, TILE, block, most, dot)

"""The narrow products of adapters (../lora.py) on a GPU: two launches for a layer, after Punica and S-LoRA.

The first multiplies each tile, some rows with the same adapter, with its A, and the second multiplies what that gives
with B and adds it to the rows. A few tiles do not fill a GPU, so there each program of the first takes SPAN of a row's
inputs (split K). Between the two lie as many sums of each row as there are spans, times the rank. The second adds them
up in the order of the inputs, and rounds to the tensors' type, as a product of PyTorch's would be.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import interpreted

TILE = 16  # rows, at most: a product on a tensor core has no fewer
SPAN, MANY_TILES = 512, 128  # inputs of a program of the first launch, if there are fewer tiles than MANY_TILES
COUNTS = (1, MANY_TILES)  # numbers of tiles: each is compiled differently
MAX_BYTES = 2**15  # bytes of weights that a program loads at once


@triton.jit
def tile_of(tiles, order, TILE: tl.constexpr):
    """Return a program's adapter, and for each of its places in `order` whether it has a row there, and which."""
    line = tiles + 3 * tl.program_id(0)
    places = tl.load(line) + tl.arange(0, TILE)
    inside = places < tl.load(line + 1)
    return tl.load(line + 2), places, inside, tl.load(order + places, inside, other=0)


@triton.jit(do_not_specialize=["count", "rank"])
def shrink_kernel(
    x, lora_a, narrow, order, tiles, count, rank,
    INS: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """One program per tile and span of inputs: narrow[span, place of count, rank] = x[order[place], inputs of the span]
    times lora_a[adapter, rank, those inputs]. A tile of a graph may have no rows."""
    if tl.load(tiles + 3 * tl.program_id(0)) >= tl.load(tiles + 3 * tl.program_id(0) + 1):
        return
    adapter, places, inside, rows = tile_of(tiles, order, TILE)
    ranks = tl.arange(0, BLOCK_R)
    total = tl.zeros([TILE, BLOCK_R], tl.float32)
    for start in range(0, SPAN, BLOCK_K):
        k = tl.program_id(1) * SPAN + start + tl.arange(0, BLOCK_K)
        each = tl.load(x + rows[:, None] * INS + k[None, :], inside[:, None] & (k < INS)[None, :], other=0.0)
        weights = lora_a + (adapter * rank + ranks[None, :]) * INS + k[:, None]
        weight = tl.load(weights, (k < INS)[:, None] & (ranks < rank)[None, :], other=0.0)
        total += tl.dot(each.to(DOT), weight.to(DOT), input_precision="ieee")
    target = narrow + (tl.program_id(1) * count + places[:, None]) * rank + ranks[None, :]
    tl.store(target, total, inside[:, None] & (ranks < rank)[None, :])


@triton.jit(do_not_specialize=["count", "rank"])
def expand_kernel(
    narrow, lora_b, y, order, tiles, count, rank,
    OUTS: tl.constexpr, SPANS: tl.constexpr, TILE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """One program per tile and BLOCK_N columns: y[order[place], OUTS] += the sum over the spans of narrow[span, place]
    times lora_b[adapter]."""
    if tl.load(tiles + 3 * tl.program_id(0)) >= tl.load(tiles + 3 * tl.program_id(0) + 1):
        return
    adapter, places, inside, rows = tile_of(tiles, order, TILE)
    ranks, columns = tl.arange(0, BLOCK_R), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    each = tl.zeros([TILE, BLOCK_R], tl.float32)
    for span in tl.static_range(SPANS):
        source = narrow + (span * count + places[:, None]) * rank + ranks[None, :]
        each += tl.load(source, inside[:, None] & (ranks < rank)[None, :], other=0.0)
    each = each.to(y.dtype.element_ty)
    weights = lora_b + (adapter * rank + ranks[:, None]) * OUTS + columns[None, :]
    weight = tl.load(weights, (ranks < rank)[:, None] & (columns < OUTS)[None, :], other=0.0)
    change = tl.dot(each.to(DOT), weight.to(DOT), input_precision="ieee")
    target, has = y + rows[:, None] * OUTS + columns[None, :], inside[:, None] & (columns < OUTS)[None, :]
    tl.store(target, (tl.load(target, has, other=0.0).to(tl.float32) + change).to(y.dtype.element_ty), has)


def add_lora(x: Tensor, y: Tensor, lora_a: Tensor, lora_b: Tensor, spans: Tensor, order: Tensor, tiles: Tensor) -> None:
    """As `numba_adapters.add_lora`; spans are not used."""
    (_, rank, ins), outs, count = lora_a.shape, lora_b.shape[2], len(order)
    span = SPAN if len(tiles) < MANY_TILES else ins
    splits = triton.cdiv(ins, span)
    narrow = torch.empty(splits, count, rank, device=x.device)
    # Triton's interpreter cannot multiply bfloat16.
    dot = tl.float32 if interpreted() else getattr(tl, str(x.dtype).removeprefix("torch."))
    block = max(16, triton.next_power_of_2(rank))
    most = min(128, MAX_BYTES // (block * x.element_size()))
    shrink = x, lora_a, narrow, order, tiles, count, rank, ins, span, TILE, block, most, dot
    expand = narrow, lora_b, y, order, tiles, count, rank, outs, splits, TILE, block, most, dot
    shrink_kernel[(len(tiles), splits)](*shrink)
    expand_kernel[(len(tiles), triton.cdiv(outs, most))](*expand)

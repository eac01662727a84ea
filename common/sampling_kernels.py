"""Triton kernels that draw tokens at a temperature, without filters: what most requests of a large batch want.

The definition is in common/sampling.py: weights relative to the likeliest token, their running sum in float64, and the
first token at which it exceeds the number drawn. In PyTorch that is a dozen passes over [B, V], most of them in
float64, which many GPUs compute at 1/64 of their rate. Here the vocabulary is cut into blocks of BLOCK tokens:

    block_sums    for each row and block: the largest logit, its place, and the sum of the weights relative to it
    draw          for each row: a running sum over the blocks finds the block, and one within the block finds the token

The first kernel reads each logit once, the second reads one block of each row. Sums in a block are float32, those of
blocks float64. Which numbers are added in which order depends on V alone, so equal logits give equal tokens whatever
else is in the batch. As the sums are rounded otherwise than the definition's, a number drawn within about 1e-6 of the
border between two tokens may give the other one.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .transfers import to_device

BLOCK = 4096
COLDEST = 1e-30  # below it float32 has no reciprocal; any two logits that differ are infinitely far apart there
HOTTEST = 1e30  # all finite logits have the same weight there; of float32's infinity and -inf it would be NaN


@triton.jit
def block_weights(logits, row, block, temperature, V: tl.constexpr, BLOCK: tl.constexpr):
    """float32 logits of a block, their maximum, and their weights relative to it: 0 beyond V, and where it is -inf."""
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(logits + row * V + tokens, tokens < V, other=float("-inf")).to(tl.float32)
    maximum = tl.max(scores, axis=0)
    finite = tl.where(maximum == float("-inf"), 0.0, maximum)
    return scores, maximum, tl.exp((scores - finite) / temperature)


@triton.jit
def block_sums_kernel(
    logits, numbers, maxima, places, sums, V: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row and block. numbers: [2, B] float64, temperatures and then numbers in [0, 1)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(numbers + row).to(tl.float32)
    scores, maximum, weights = block_weights(logits, row, block, temperature, V, BLOCK)
    tl.store(maxima + row * BLOCKS + block, maximum)
    tl.store(places + row * BLOCKS + block, block * BLOCK + tl.argmax(scores, axis=0, tie_break_left=True))
    tl.store(sums + row * BLOCKS + block, tl.sum(weights, axis=0))


@triton.jit
def draw_kernel(
    logits, numbers, maxima, places, sums, out, COLDEST: tl.constexpr,
    V: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. A temperature of COLDEST, the least there is, is greedy."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(numbers + row).to(tl.float32)
    number = tl.load(numbers + tl.num_programs(0) + row)
    blocks = tl.arange(0, BLOCKS_PADDED)
    exists = blocks < BLOCKS
    tops = tl.load(maxima + row * BLOCKS + blocks, exists, other=float("-inf"))
    factors = tl.exp((tops - tl.max(tops, axis=0)) / temperature)  # relative to the likeliest token of the row
    totals = tl.load(sums + row * BLOCKS + blocks, exists, other=0.0).to(tl.float64) * factors
    cdf = tl.cumsum(totals, axis=0)
    threshold = number * tl.max(cdf, axis=0)
    # A block of weight 0 is never chosen. Where rounding leaves no sum above the threshold, the last other one is.
    last = tl.max(tl.where(totals > 0, blocks, 0), axis=0)
    block = tl.min(tl.where((cdf > threshold) & (totals > 0), blocks, last), axis=0)
    here = blocks == block
    before = tl.sum(tl.where(here, cdf - totals, 0.0), axis=0)
    factor = tl.sum(tl.where(here, factors, 0.0), axis=0)
    _, _, weights = block_weights(logits, row, block, temperature, V, BLOCK)
    inside = tl.arange(0, BLOCK)
    above = tl.cumsum(weights, axis=0).to(tl.float64) * factor > threshold - before
    last = tl.max(tl.where(weights > 0, inside, 0), axis=0)
    token = block * BLOCK + tl.min(tl.where(above & (weights > 0), inside, last), axis=0)
    if temperature <= COLDEST:
        first = tl.argmax(tops, axis=0, tie_break_left=True)  # of equal logits the lowest token
        token = tl.load(places + row * BLOCKS + first)
    tl.store(out + row, token.to(tl.int64))


def draw_plain(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> Tensor:
    """Draw a token for each row, [B] int64, of logits[B, V] in any float type; temperature 0 is greedy.

    uniforms: B numbers in [0, 1). Each row of logits has a finite value and no NaN or +inf.
    """
    logits, (B, V) = logits.contiguous(), logits.shape  # ranks that share the vocabulary may give a part of wider rows
    blocks = triton.cdiv(V, BLOCK)
    clamped = [min(max(t, COLDEST), HOTTEST) for t in temperatures]
    numbers = to_device([clamped, uniforms], torch.float64, logits.device)
    maxima, sums = (torch.empty(B, blocks, dtype=torch.float32, device=logits.device) for _ in range(2))
    places = torch.empty(B, blocks, dtype=torch.int32, device=logits.device)
    out = torch.empty(B, dtype=torch.int64, device=logits.device)
    block_sums_kernel[(B, blocks)](logits, numbers, maxima, places, sums, V, blocks, BLOCK, num_warps=8)
    draw_kernel[(B,)](
        logits, numbers, maxima, places, sums, out, COLDEST, V, blocks, triton.next_power_of_2(blocks), BLOCK,
        num_warps=8,
    )  # fmt: skip
    return out

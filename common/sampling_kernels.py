"""Triton kernels that draw tokens: a temperature, top-k, top-p and min-p for each row, without a sort.

The definition is in common/sampling.py: weights relative to the likeliest token, filters that keep the first tokens of
the vocabulary in order of their logits, the running sum in float64 of the weights that are left, and the first token at
which it exceeds the number drawn. In PyTorch that is a sort and a few dozen passes over [B, V], most of them in
float64, which many GPUs compute at 1/64 of their rate. Here the vocabulary is cut into blocks of BLOCK tokens:

    block_sums    for each row and block: the largest logit, its place, and the sum of the weights relative to it
    cut           for each row with filters: the least logit that they keep, and the blocks' sums without what they drop
    draw          for each row: a running sum over the blocks finds the block, and one within the block finds the token

All filters keep what is at least as likely as some token, so a row needs no order of its tokens, only that one logit.
`cut` finds it bit by bit, from the highest of its bits down (radix select): a bit stays set if as many tokens as top-k
asks for, or as large a share as top-p asks for, have logits at least as large. It counts only the row's largest logits,
which it copies first. For that `block_sums` also stores the maxima of PARTS parts of each block: for top-k 20, at least
20 tokens are as large as the 20th of these maxima, and seldom many more. FlashInfer's sampler needs no sort either: it
draws, and draws again while a filter refuses the token.

The first kernel reads each logit once, the second those blocks that have large ones, the third one block of each row.
Sums in a block are float32, those of blocks float64. Which numbers are added in which order depends on V alone, so
equal logits give equal tokens whatever else is in the batch. As the sums are rounded otherwise than the definition's, a
number drawn within about 1e-6 of the border between two tokens may give the other one, and a token that close to the
share of top-p or min-p may be kept or not.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sampling_params import SamplingParams
from .transfers import to_device

BLOCK = 4096
MIN_TEMPERATURE = 1e-30  # below it float32 has no reciprocal; any two logits that differ are infinitely far apart there
MAX_TEMPERATURE = 1e30  # all finite logits weigh the same there; with float32's infinity, -inf would become NaN
PARTS = 8  # parts of a block: their maxima say which logits are among a row's largest
NEAREST = 4096  # largest logits copied, at most; if they do not suffice, the whole row is read again for each bit
LOWEST = -3.4028234663852886e38  # float32's least finite number


@triton.jit
def logit_of(key):
    """The float32 that has this key. Keys are uint32 in the order of the numbers, with NaNs at both ends."""
    bits = tl.where(key >> 31 == 1, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def at_least(values, count, cut, top, temperature, BLOCK: tl.constexpr):
    """How many of `count` values are `cut` or more, int32, and the sum of their weights relative to `top`, float32."""
    number, mass = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        scores = tl.load(values + places, places < count, other=float("-inf")).to(tl.float32)
        kept = scores >= cut
        number += kept.to(tl.int32)
        mass += tl.where(kept, tl.exp((scores - top) / temperature), 0.0)
    return tl.sum(number), tl.sum(mass)


@triton.jit
def least_kept(values, count, number, mass, top, temperature, FIRST_BIT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key whose logit is reached by `number` values, or by values that weigh `mass` (see `logit_of`)."""
    key = tl.zeros([], tl.uint32)
    for bit in range(32 - FIRST_BIT):
        larger = key | (tl.full([], 0x80000000, tl.uint32) >> bit)
        found, found_mass = at_least(values, count, logit_of(larger), top, temperature, BLOCK)
        key = tl.where((found >= number) | (found_mass >= mass), larger, key)
    # The low bits of a bfloat16 as float32 are zeros; in the key of a negative number they are ones.
    return tl.where(key >> 31 == 1, key, key | ((1 << FIRST_BIT) - 1))


@triton.jit
def cut_among(
    values, count, floor, top_k, top_p, mass, top, temperature, FIRST_BIT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The least logit that top-k and top-p keep of the values from `floor` on, and how many equal to it they keep.

    mass: of all tokens from `floor` on, also of those that are not among the values.
    """
    cut, ties = floor, 0x7FFFFFFF
    alive, alive_mass = at_least(values, count, floor, top, temperature, BLOCK)
    if top_k <= alive:
        key = least_kept(values, count, top_k, float("inf"), top, temperature, FIRST_BIT, BLOCK)
        cut = logit_of(key)
        ahead, mass = at_least(values, count, logit_of(key + 1), top, temperature, BLOCK)
        ties = top_k - ahead
        mass += ties * tl.exp((cut - top) / temperature)
    if top_p < 1:
        key = least_kept(values, count, 0x7FFFFFFF, top_p * mass, top, temperature, FIRST_BIT, BLOCK)
        least = logit_of(key)
        if least >= cut:
            more, more_mass = at_least(values, count, logit_of(key + 1), top, temperature, BLOCK)
            weight = tl.exp((least - top) / temperature)
            needed = tl.maximum(tl.ceil((top_p * mass - more_mass) / weight).to(tl.int32), 1)
            ties = tl.where(least > cut, needed, tl.minimum(ties, needed))
            cut = least
    return cut, ties


@triton.jit
def cut_kernel(
    logits, numbers, maxima, parts, sums, cuts, lasts, nearest, V: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCKS_PADDED: tl.constexpr, ALL_PARTS: tl.constexpr, PARTS_PADDED: tl.constexpr, NEAREST: tl.constexpr,
    LOWEST: tl.constexpr, FIRST_BIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: cuts[row], float32, is the least logit kept, lasts[row], int32, the last kept token with it.

    numbers: [5, B] float64, see `draw_tokens`. maxima, parts, sums: of `block_sums_kernel`; the sums are changed.
    nearest: [B, NEAREST] float32, room for the largest logits.
    """
    row, B, offsets = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, BLOCK)
    temperature = tl.load(numbers + row).to(tl.float32)
    top_k, top_p = tl.load(numbers + 2 * B + row).to(tl.int32), tl.load(numbers + 3 * B + row).to(tl.float32)
    min_p = tl.load(numbers + 4 * B + row).to(tl.float32)
    if (top_k >= V) & (top_p >= 1) & (min_p <= 0):
        tl.store(cuts + row, float("-inf"))
        tl.store(lasts + row, V)
        return
    logits, nearest = logits + row * V, nearest + row * NEAREST
    maxima, sums = maxima + row * BLOCKS, sums + row * BLOCKS
    blocks = tl.arange(0, BLOCKS_PADDED)
    block_tops = tl.load(maxima + blocks, blocks < BLOCKS, other=float("-inf"))
    top = tl.max(block_tops)
    block_masses = tl.load(sums + blocks, blocks < BLOCKS, other=0.0) * tl.exp((block_tops - top) / temperature)
    floor = tl.where(min_p > 0, top + temperature * tl.log(tl.maximum(min_p, 1e-37)), LOWEST)

    # Copy the largest logits: at least as many as top-k asks for, or as there are parts.
    all_parts = tl.arange(0, PARTS_PADDED)
    part_tops = tl.load(parts + row * ALL_PARTS + all_parts, all_parts < ALL_PARTS, other=float("-inf"))
    wanted = tl.minimum(tl.sum((part_tops >= floor).to(tl.int32)), top_k)
    key = tl.zeros([], tl.uint32)
    for bit in range(32 - FIRST_BIT):
        larger = key | (tl.full([], 0x80000000, tl.uint32) >> bit)
        key = tl.where(tl.sum((part_tops >= logit_of(larger)).to(tl.int32)) >= wanted, larger, key)
    near, count = tl.maximum(logit_of(key), floor), 0
    for block in range(BLOCKS):
        if tl.load(maxima + block) >= near:
            tokens = block * BLOCK + offsets
            scores = tl.load(logits + tokens, tokens < V, other=float("-inf")).to(tl.float32)
            is_near = (scores >= near).to(tl.int32)
            places = count + tl.cumsum(is_near) - 1
            tl.store(nearest + places, scores, (is_near > 0) & (places < NEAREST))
            count += tl.sum(is_near)
    tl.debug_barrier()  # Each thread reads what the others have copied.

    near_number, near_mass = at_least(nearest, tl.minimum(count, NEAREST), near, top, temperature, BLOCK)
    mass = tl.sum(block_masses)
    all_near = near <= floor  # Then all tokens that min-p keeps are copied.
    enough = all_near | (top_k <= count) | ((top_k >= V) & (min_p <= 0) & (near_mass >= top_p * mass))
    if enough & (count <= NEAREST):
        mass = tl.where(all_near, near_mass, mass)
        cut, ties = cut_among(nearest, count, floor, top_k, top_p, mass, top, temperature, FIRST_BIT, BLOCK)
    else:
        number, mass = at_least(logits, V, floor, top, temperature, BLOCK)
        cut, ties = cut_among(logits, V, floor, top_k, top_p, mass, top, temperature, FIRST_BIT, BLOCK)

    # Of the tokens equal to the cut, the first ones are kept.
    last = V
    for block in range(BLOCKS):
        block_top, kept_mass = tl.load(maxima + block), 0.0
        if block_top >= cut:
            tokens = block * BLOCK + offsets
            scores = tl.load(logits + tokens, tokens < V, other=float("-inf")).to(tl.float32)
            equal = (scores == cut).to(tl.int32)
            here = tl.sum(equal)
            if (here >= ties) & (ties > 0):
                last = tl.max(tl.where((equal > 0) & (tl.cumsum(equal) == ties), tokens, 0))
            ties -= here
            kept = (scores > cut) | ((equal > 0) & (tokens <= last))
            kept_mass = tl.sum(tl.where(kept, tl.exp((scores - block_top) / temperature), 0.0))
        tl.store(sums + block, kept_mass)
    tl.store(cuts + row, cut)
    tl.store(lasts + row, last)


@triton.jit
def block_scores(logits, row, block, V: tl.constexpr, BLOCK: tl.constexpr):
    """The tokens of a block, their float32 logits, and the largest of them."""
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(logits + row * V + tokens, tokens < V, other=float("-inf")).to(tl.float32)
    return tokens, scores, tl.max(scores, axis=0)


@triton.jit
def weights_of(scores, maximum, temperature):
    """Weights relative to a maximum: 0 where a logit is -inf, also where all are."""
    return tl.exp((scores - tl.where(maximum == float("-inf"), 0.0, maximum)) / temperature)


@triton.jit
def block_sums_kernel(
    logits, numbers, maxima, places, sums, parts,
    V: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program per row and block. numbers: [5, B] float64, see `draw_tokens`. maxima and sums: [B, BLOCKS] float32;
    places: [B, BLOCKS] int32, the tokens of the maxima. parts: [B, BLOCKS * PARTS] float32, the maxima of a block's
    parts, for filters; None if no row has any."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(numbers + row).to(tl.float32)
    _, scores, maximum = block_scores(logits, row, block, V, BLOCK)
    tl.store(maxima + row * BLOCKS + block, maximum)
    tl.store(places + row * BLOCKS + block, block * BLOCK + tl.argmax(scores, axis=0, tie_break_left=True))
    tl.store(sums + row * BLOCKS + block, tl.sum(weights_of(scores, maximum, temperature), axis=0))
    if parts is not None:
        tops = tl.max(tl.reshape(scores, [PARTS, BLOCK // PARTS]), axis=1)
        tl.store(parts + (row * BLOCKS + block) * PARTS + tl.arange(0, PARTS), tops)


@triton.jit
def draw_kernel(
    logits, numbers, maxima, places, sums, cuts, lasts, out, MIN_TEMPERATURE: tl.constexpr,
    V: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: out[row], int64, is its token. A temperature of MIN_TEMPERATURE is greedy. cuts, lasts: of
    `cut_kernel`, None if no row has filters."""
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
    # A block of weight 0 is never chosen. If rounding leaves no sum above the threshold, the last one with weight is.
    last = tl.max(tl.where(totals > 0, blocks, 0), axis=0)
    block = tl.min(tl.where((cdf > threshold) & (totals > 0), blocks, last), axis=0)
    here = blocks == block
    before = tl.sum(tl.where(here, cdf - totals, 0.0), axis=0)
    factor = tl.sum(tl.where(here, factors, 0.0), axis=0)
    tokens, scores, maximum = block_scores(logits, row, block, V, BLOCK)
    weights = weights_of(scores, maximum, temperature)
    if cuts is not None:
        cut, last = tl.load(cuts + row), tl.load(lasts + row)
        weights = tl.where((scores > cut) | ((scores == cut) & (tokens <= last)), weights, 0.0)
    inside = tl.arange(0, BLOCK)
    above = tl.cumsum(weights, axis=0).to(tl.float64) * factor > threshold - before
    last = tl.max(tl.where(weights > 0, inside, 0), axis=0)
    token = block * BLOCK + tl.min(tl.where(above & (weights > 0), inside, last), axis=0)
    if temperature <= MIN_TEMPERATURE:
        first = tl.argmax(tops, axis=0, tie_break_left=True)  # of equal logits the lowest token
        token = tl.load(places + row * BLOCKS + first)
    tl.store(out + row, token.to(tl.int64))


def draw_tokens(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """Draw a token for each row, [B] int64, of logits[B, V] in any float type: temperature 0 is greedy, and top_k,
    top_p and min_p of its params hold; penalties and masks have been applied.

    uniforms: B numbers in [0, 1). Each row of logits has a finite value and no NaN or +inf.
    """
    logits, (B, V) = logits.contiguous(), logits.shape  # ranks that share the vocabulary may give a part of wider rows
    blocks = triton.cdiv(V, BLOCK)
    clamped = [min(max(p.temperature, MIN_TEMPERATURE), MAX_TEMPERATURE) for p in params]
    filters = [(p.top_k or V, p.top_p, p.min_p) if p.filtered else (V, 1.0, 0.0) for p in params]
    # [5, B]: of each row the temperature, the number drawn, top_k (V: off), top_p (1: off), min_p (0: off).
    numbers = to_device([clamped, uniforms, *zip(*filters, strict=True)], torch.float64, logits.device)
    maxima, sums = (torch.empty(B, blocks, dtype=torch.float32, device=logits.device) for _ in range(2))
    places = torch.empty(B, blocks, dtype=torch.int32, device=logits.device)
    out, parts, cuts, lasts = torch.empty(B, dtype=torch.int64, device=logits.device), None, None, None
    if filtered := any(p.filtered for p in params):
        parts = torch.empty(B, blocks * PARTS, dtype=torch.float32, device=logits.device)
    block_sums_kernel[(B, blocks)](logits, numbers, maxima, places, sums, parts, V, blocks, BLOCK, PARTS, num_warps=8)
    padded = triton.next_power_of_2(blocks)
    if filtered:
        cuts, lasts = (torch.empty(B, dtype=dtype, device=logits.device) for dtype in (torch.float32, torch.int32))
        nearest = torch.empty(B, NEAREST, dtype=torch.float32, device=logits.device)
        first_bit = 16 if logits.dtype == torch.bfloat16 else 0
        cut_kernel[(B,)](
            logits, numbers, maxima, parts, sums, cuts, lasts, nearest, V, blocks, padded, blocks * PARTS,
            padded * PARTS, NEAREST, LOWEST, first_bit, BLOCK, num_warps=8,
        )  # fmt: skip
    draw_kernel[(B,)](
        logits, numbers, maxima, places, sums, cuts, lasts, out, MIN_TEMPERATURE, V, blocks, padded, BLOCK, num_warps=8
    )  # fmt: skip
    return out

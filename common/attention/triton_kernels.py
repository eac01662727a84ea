"""The course's own kernels for attention over pages, in Triton: write, decode with K and V split, ragged prefill.

A program reads K and V where they lie: it turns a token's number into a page by the page table of its sequence, and
into an address by the page. Scores never leave the chip: softmax is computed online (FlashAttention, Dao et al., 2022),
block by block, with a running maximum and a running sum.

In decode there is a single query per request, and few programs: one for each request and K/V head. So the sequence is
split into pieces that several programs take, and a second kernel combines their results (Flash-Decoding, Dao et al.,
2023). The size of the pieces depends on the length of the sequence alone, not on the batch or on how many programs take
them, so a request's result does not depend on the rest of the batch. The query heads that share a K/V head go together,
since K and V are what has to be read.

float32 is multiplied as float32, not as TF32 ("ieee"). Head dimensions that are no power of two are padded with zeros.
WINDOW is how many tokens a token sees, itself included; 0: all before it. A layer's window never changes.
DOT is the type that products take: that of the tensors, except that Triton's interpreter cannot multiply bfloat16.
"""

import triton
import triton.language as tl

from common.fused.triton_kernels import follow_previous


@triton.jit
def write_kernel(
    k, v, k_pages, v_pages, slot_mapping, k_stride, v_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row: K and V of all its heads, SIZE numbers each, into their slot."""
    row = tl.program_id(0)
    slot = tl.load(slot_mapping + row)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < SIZE
    tl.store(k_pages + slot * SIZE + offsets, tl.load(k + row * k_stride + offsets, inside), inside)
    tl.store(v_pages + slot * SIZE + offsets, tl.load(v + row * v_stride + offsets, inside), inside)


@triton.jit
def attend_to_block(
    q, tokens, allowed, page_table, k_pages, v_pages, head, dims, maximum, total, result, scale,
    H_KV: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One step of online softmax: q[M, D] against the K and V of tokens[n], where allowed[M or 1, n]."""
    exists = tl.max(allowed.to(tl.int32), axis=0) > 0  # what no query may see is not read either
    pages = tl.load(page_table + tokens // PAGE_SIZE, exists, other=0).to(tl.int64)
    places = ((pages * PAGE_SIZE + tokens % PAGE_SIZE) * H_KV + head) * D  # [n]
    inside = dims < D
    key = tl.load(k_pages + places[None, :] + dims[:, None], exists[None, :] & inside[:, None], other=0.0)  # [D, n]
    scores = tl.dot(q, key.to(DOT), input_precision="ieee") * scale  # [M, n], float32
    scores = tl.where(allowed, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    # A row that has seen nothing yet has the maximum -inf, and -inf minus -inf would be NaN.
    safe_maximum = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp(scores - safe_maximum[:, None])
    rescale = tl.exp(maximum - safe_maximum)
    value = tl.load(v_pages + places[:, None] + dims[None, :], exists[:, None] & inside[None, :], other=0.0)  # [n, D]
    result = result * rescale[:, None] + tl.dot(weights.to(DOT), value.to(DOT), input_precision="ieee")
    return new_maximum, total * rescale + tl.sum(weights, axis=1), result


@triton.jit
def piece_tokens(length, SPLIT: tl.constexpr, MOST_PIECES: tl.constexpr):
    """Return tokens in a piece of a sequence: SPLIT, or of a longer sequence as many times that as MOST_PIECES need."""
    return SPLIT * tl.cdiv(length, SPLIT * MOST_PIECES)


# Numbers that differ from step to step are not to be compiled into the kernels: see tests/proofs/serving.py.
@triton.jit(do_not_specialize=["pieces", "table_stride"])
def decode_kernel(
    q, k_pages, v_pages, page_tables, lengths, partial, partial_lse, out, pieces, q_stride, table_stride, scale,
    H_KV: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    SPLIT: tl.constexpr, MOST_PIECES: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    DOT: tl.constexpr, WINDOW: tl.constexpr = 0, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """Attention of a request's query heads that share a K/V head, to pieces of its sequence; of the programs along the
    third axis each takes every n-th piece.

    partial is [B, pieces, H, D] and partial_lse [B, pieces, H], both float32: the piece's result, and the logarithm
    of the sum of its weights, by which `combine_kernel` weighs it. A result from one piece goes to `out` at once.
    """
    follow_previous(DEPENDENT)
    request, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    group, dims = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    heads = head * GROUPS + group
    inside = (group < GROUPS)[:, None] & (dims < D)[None, :]
    query = tl.load(q + request * q_stride + heads[:, None] * D + dims[None, :], inside, other=0.0).to(DOT)
    split = piece_tokens(length, SPLIT, MOST_PIECES)
    count = tl.cdiv(length, split)
    for piece in range(tl.program_id(2), count, tl.num_programs(2)):
        begin, end = piece * split, tl.minimum((piece + 1) * split, length)
        if WINDOW:
            begin = tl.maximum(begin, length - WINDOW)
        maximum = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        result = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for start in range(begin, end, BLOCK_N):
            tokens = start + tl.arange(0, BLOCK_N)
            maximum, total, result = attend_to_block(
                query, tokens, (tokens < end)[None, :], page_tables + request * table_stride, k_pages, v_pages, head,
                dims, maximum, total, result, scale, H_KV, D, PAGE_SIZE, DOT,
            )  # fmt: skip
        if WINDOW:  # a piece before the window: 0, not 0 / 0, and its weight, whose logarithm is -inf, is 0
            result = result / tl.where(total == 0, 1.0, total)[:, None]
        else:
            result = result / total[:, None]
        if count == 1:
            row = request * H_KV * GROUPS + heads
            tl.store(out + row[:, None] * D + dims[None, :], result.to(out.dtype.element_ty), inside)
        else:
            row = (request * pieces + piece) * H_KV * GROUPS + heads
            tl.store(partial + row[:, None] * D + dims[None, :], result, inside)
            tl.store(partial_lse + row, maximum + tl.log(total), group < GROUPS)


@triton.jit(do_not_specialize=["pieces"])
def combine_kernel(
    partial, partial_lse, lengths, out, pieces,
    H: tl.constexpr, D: tl.constexpr, SPLIT: tl.constexpr, MOST_PIECES: tl.constexpr, BLOCK_D: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    """One program per request and query head: the mean of its pieces, weighted by the sums of their weights."""
    follow_previous(DEPENDENT)
    request, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    count = tl.cdiv(length, piece_tokens(length, SPLIT, MOST_PIECES))
    if count == 1:
        return
    pieces_here, dims = tl.arange(0, MOST_PIECES), tl.arange(0, BLOCK_D)
    rows = (request * pieces + pieces_here) * H + head
    lse = tl.load(partial_lse + rows, pieces_here < count, other=float("-inf"))
    weights = tl.exp(lse - tl.max(lse, axis=0))
    inside = (pieces_here < count)[:, None] & (dims < D)[None, :]
    values = tl.load(partial + rows[:, None] * D + dims[None, :], inside, other=0.0)  # [pieces, D]
    result = tl.sum(weights[:, None] * values, axis=0) / tl.sum(weights, axis=0)
    tl.store(out + (request * H + head) * D + dims, result.to(out.dtype.element_ty), dims < D)


@triton.jit(do_not_specialize=["first_request", "table_stride"])
def prefill_kernel(
    q, k_pages, v_pages, page_tables, query_starts, lengths, out, first_request, q_stride, table_stride, scale,
    H_KV: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    DOT: tl.constexpr, WINDOW: tl.constexpr = 0,
):  # fmt: skip
    """One program per request, query head and block of BLOCK_M rows; requests may have any number of rows."""
    block, head, request = tl.program_id(0), tl.program_id(1), first_request + tl.program_id(2)
    first_row = tl.load(query_starts + request)
    rows = tl.load(query_starts + request + 1) - first_row
    if block * BLOCK_M >= rows:
        return
    length = tl.load(lengths + request)
    number, dims = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    positions = length - rows + number
    inside = (number < rows)[:, None] & (dims < D)[None, :]
    # All rows of q, also those of the requests before: one request's row begins at its place in the batch.
    address = (first_row + number)[:, None].to(tl.int64) * q_stride + head * D + dims[None, :]
    query = tl.load(q + address, inside, other=0.0).to(DOT)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = tl.minimum(length, length - rows + (block + 1) * BLOCK_M)  # behind the last row's own position
    begin = 0
    if WINDOW:  # the first row sees the earliest token
        begin = tl.maximum(length - rows + block * BLOCK_M + 1 - WINDOW, 0)
    for start in range(begin, end, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        allowed = (tokens[None, :] <= positions[:, None]) & (tokens < end)[None, :]
        if WINDOW:
            allowed = allowed & (tokens[None, :] > positions[:, None] - WINDOW)
        maximum, total, result = attend_to_block(
            query, tokens, allowed, page_tables + request * table_stride, k_pages, v_pages, head // GROUPS, dims,
            maximum, total, result, scale, H_KV, D, PAGE_SIZE, DOT,
        )  # fmt: skip
    address = (first_row + number)[:, None].to(tl.int64) * (H_KV * GROUPS * D) + head * D + dims[None, :]
    tl.store(out + address, (result / total[:, None]).to(out.dtype.element_ty), inside)

"""The course's own kernels for attention over pages, in Triton: write, decode with K and V split, ragged prefill.

A program reads K and V where they lie: it turns a token's number into a page by the page table of its sequence, and
into an address by the page. Scores never leave the chip: softmax is computed online (FlashAttention, Dao et al., 2022),
block by block, with a running maximum and a running sum.

In decode there is a single query per request, and few programs: one for each request and K/V head. So the sequence is
split into pieces that several programs take, and the last of these to end adds up their results (Flash-Decoding, Dao et
al., 2023, does so in a second kernel). The size of the pieces depends on the engine and on the length of the sequence,
not on the batch or on how many programs take them, so a request's result does not depend on the rest of the batch. The
query heads that share a K/V head go together, since K and V are what has to be read.

Pages are [pages, PAGE_SIZE, H_KV, D], or with D + 4 in 8 bits (int8.py), page_tables [B, P] int32 with rows
table_stride apart, lengths [B] int32, in tokens. q and out are [N, H, D], of which out is contiguous, and rows of q are
q_stride numbers apart. Scores are multiplied by `scale`. GROUPS query heads share a K/V head.

float32 is multiplied as float32, not as TF32 ("ieee"). Head dimensions that are no power of two are padded with zeros.
WINDOW is how many tokens a token sees, itself included; 0: all before it. A layer's window never changes.
DOT is the type that products take: that of the tensors, except that Triton's interpreter cannot multiply bfloat16.
"""

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    k, v, k_pages, v_pages, slot_mapping, k_stride, v_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row: K and V of all its heads, SIZE numbers each, into their slot; nowhere if it is negative."""
    row = tl.program_id(0)
    slot = tl.load(slot_mapping + row)
    offsets = tl.arange(0, BLOCK)
    inside = (offsets < SIZE) & (slot >= 0)
    tl.store(k_pages + slot * SIZE + offsets, tl.load(k + row * k_stride + offsets, inside), inside)
    tl.store(v_pages + slot * SIZE + offsets, tl.load(v + row * v_stride + offsets, inside), inside)


@triton.jit
def write_int8_kernel(
    k, v, k_pages, v_pages, slot_mapping, k_stride, v_stride, H_KV: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """One program per row and head: round K and V into their slot; nowhere if it is negative."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slot_mapping + row)
    if slot >= 0:
        place = (slot * H_KV + head) * (D + 4)
        write_rounded(k + row * k_stride + head * D, k_pages + place, D, BLOCK_D)
        write_rounded(v + row * v_stride + head * D, v_pages + place, D, BLOCK_D)


@triton.jit
def write_rounded(source, target, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """As `quantize` of int8.py. Adding and taking away 1.5 * 2**23 rounds a float32 to a whole number, ties to even."""
    dims = tl.arange(0, BLOCK_D)
    x = tl.load(source + dims, dims < D, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-30) / 127
    is_wrong = tl.max((x != x).to(tl.int32), axis=0) > 0  # The maximum ignores NaN.
    scale = tl.where(is_wrong, float("nan"), scale)
    tl.store(target + dims, ((x / scale + 12582912.0) - 12582912.0).to(tl.int8), dims < D)
    tl.store((target + D).to(tl.pointer_type(tl.float32), bitcast=True), scale)


@triton.jit
def pages_of(page_table, start, end, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The pages of tokens start to start + BLOCK_N - 1, int32; beyond the end 0, without a read."""
    tokens = start + tl.arange(0, BLOCK_N)
    return tl.load(page_table + tokens // PAGE_SIZE, tokens < end, other=0)


@triton.jit
def attend_to_block(
    q, tokens, allowed, pages, k_pages, v_pages, head, dims, maximum, total, result, scale,
    H_KV: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One step of online softmax: q[M, D] against the K and V of tokens[n] in pages[n], where allowed[M or 1, n]."""
    exists = tl.max(allowed.to(tl.int32), axis=0) > 0  # A token that no query may see is not read.
    INT8: tl.constexpr = k_pages.dtype.element_ty == tl.int8
    WIDTH: tl.constexpr = D + 4 if INT8 else D
    places = ((pages.to(tl.int64) * PAGE_SIZE + tokens % PAGE_SIZE) * H_KV + head) * WIDTH  # [n]
    inside = dims < D
    key = tl.load(k_pages + places[None, :] + dims[:, None], exists[None, :] & inside[:, None], other=0.0)  # [D, n]
    scores = tl.dot(q, key.to(DOT), input_precision="ieee") * scale  # [M, n], float32
    if INT8:
        scores *= scales_of(k_pages, places + D, exists)[None, :]
    scores = tl.where(allowed, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    # A row that has seen nothing yet has the maximum -inf, and -inf minus -inf would be NaN.
    safe_maximum = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp(scores - safe_maximum[:, None])
    rescale = tl.exp(maximum - safe_maximum)
    value = tl.load(v_pages + places[:, None] + dims[None, :], exists[:, None] & inside[None, :], other=0.0)  # [n, D]
    total = total * rescale + tl.sum(weights, axis=1)
    if INT8:
        weights *= scales_of(v_pages, places + D, exists)[None, :]
    result = result * rescale[:, None] + tl.dot(weights.to(DOT), value.to(DOT), input_precision="ieee")
    return new_maximum, total, result


@triton.jit
def scales_of(pages, places, exists):
    """The float32 scales at these bytes of int8 pages."""
    return tl.load((pages + places).to(tl.pointer_type(tl.float32), bitcast=True), exists, other=0.0)


@triton.jit
def piece_tokens(length, SPLIT: tl.constexpr, MAX_PIECES: tl.constexpr):
    """How many tokens a piece has: SPLIT, or the least multiple of it with which MAX_PIECES cover the sequence."""
    return SPLIT * tl.cdiv(length, SPLIT * MAX_PIECES)


# Numbers that differ from step to step must not be compiled into a kernel: Triton would compile it while it serves.
@triton.jit(do_not_specialize=["pieces", "table_stride"])
def decode_kernel(
    q, k_pages, v_pages, page_tables, lengths, partial, partial_lse, arrived, out,
    pieces, q_stride, table_stride, scale,
    H_KV: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    SPLIT: tl.constexpr, MAX_PIECES: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    DOT: tl.constexpr, WINDOW: tl.constexpr = 0,
):  # fmt: skip
    """Attention of a request's query heads that share a K/V head. Each of the programs along the third axis takes
    neighbouring pieces of the sequence, and the last one to end adds up all pieces.

    partial is [B, pieces, H, D] and partial_lse [B, pieces, H], both float32: the piece's result, and the logarithm
    of the sum of its weights, by which it counts. arrived is [B, H_KV] int32, the programs that have ended: 0 before
    and after. The result of a sequence with one piece goes straight to `out`.
    """
    request, head, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(2)
    length = tl.load(lengths + request)
    split = piece_tokens(length, SPLIT, MAX_PIECES)
    seen = tl.maximum(length - WINDOW, 0) if WINDOW else 0  # the first token that is seen
    first, count = seen // split, tl.cdiv(length, split)
    each = tl.cdiv(count - first, programs)
    begin = (first + tl.program_id(2) * each) * split
    end = tl.minimum(begin + each * split, length)
    if begin >= end:
        return
    alone = count - first == 1
    group, dims = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    heads = head * GROUPS + group
    inside = (group < GROUPS)[:, None] & (dims < D)[None, :]
    query = tl.load(q + request * q_stride + heads[:, None] * D + dims[None, :], inside, other=0.0).to(DOT)
    target = heads[:, None] * D + dims[None, :]
    page_table = page_tables + request * table_stride
    for piece in range(begin // split, tl.cdiv(end, split)):
        begin, end = tl.maximum(piece * split, seen), tl.minimum((piece + 1) * split, length)
        maximum = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        result = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        pages = pages_of(page_table, begin, end, PAGE_SIZE, BLOCK_N)
        for start in range(begin, end, BLOCK_N):
            # Read the next block's pages now: K and V then wait for no page number and have the pipeline to themselves.
            ahead = pages_of(page_table, start + BLOCK_N, end, PAGE_SIZE, BLOCK_N)
            tokens = start + tl.arange(0, BLOCK_N)
            maximum, total, result = attend_to_block(
                query, tokens, (tokens < end)[None, :], pages, k_pages, v_pages, head, dims, maximum, total, result,
                scale, H_KV, D, PAGE_SIZE, DOT,
            )  # fmt: skip
            pages = ahead
        result = result / total[:, None]
        if alone:
            tl.store(out + request * H_KV * GROUPS * D + target, result.to(out.dtype.element_ty), inside)
        else:
            row = (request * pieces + piece) * H_KV * GROUPS
            tl.store(partial + row * D + target, result, inside)
            tl.store(partial_lse + row + heads, maximum + tl.log(total), group < GROUPS)
    if alone:
        return
    tl.debug_barrier()  # all threads store their results before one of them counts the program
    ended = tl.atomic_add(arrived + request * H_KV + head, 1, sem="acq_rel")
    if ended == tl.cdiv(count - first, each) - 1:
        tl.store(arrived + request * H_KV + head, 0)  # 0 again for the next layer
        maximum = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        result = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for piece in range(first, count):
            row = (request * pieces + piece) * H_KV * GROUPS
            lse = tl.load(partial_lse + row + heads, group < GROUPS, other=0.0, cache_modifier=".cg")
            value = tl.load(partial + row * D + target, inside, other=0.0, cache_modifier=".cg")
            new_maximum = tl.maximum(maximum, lse)
            rescale, weight = tl.exp(maximum - new_maximum), tl.exp(lse - new_maximum)
            result = result * rescale[:, None] + weight[:, None] * value
            total, maximum = total * rescale + weight, new_maximum
        result = result / total[:, None]
        tl.store(out + request * H_KV * GROUPS * D + target, result.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["first_request", "table_stride"])
def prefill_kernel(
    q, k_pages, v_pages, page_tables, query_starts, lengths, out, first_request, q_stride, table_stride, scale,
    H_KV: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    DOT: tl.constexpr, WINDOW: tl.constexpr = 0,
):  # fmt: skip
    """One program per request from `first_request` on, query head and block of BLOCK_M of the request's rows.

    query_starts is [B + 1] int32: the row of q at which each request begins.
    """
    block, head, request = tl.program_id(0), tl.program_id(1), first_request + tl.program_id(2)
    first_row = tl.load(query_starts + request)
    rows = tl.load(query_starts + request + 1) - first_row
    if block * BLOCK_M >= rows:
        return
    length = tl.load(lengths + request)
    number, dims = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    positions = length - rows + number
    inside = (number < rows)[:, None] & (dims < D)[None, :]
    address = (first_row + number)[:, None].to(tl.int64) * q_stride + head * D + dims[None, :]
    query = tl.load(q + address, inside, other=0.0).to(DOT)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = tl.minimum(length, length - rows + (block + 1) * BLOCK_M)  # one past the last row's own position
    begin = 0
    if WINDOW:  # the first row sees the earliest token
        begin = tl.maximum(length - rows + block * BLOCK_M + 1 - WINDOW, 0)
    page_table = page_tables + request * table_stride
    pages = pages_of(page_table, begin, end, PAGE_SIZE, BLOCK_N)
    for start in range(begin, end, BLOCK_N):
        ahead = pages_of(page_table, start + BLOCK_N, end, PAGE_SIZE, BLOCK_N)
        tokens = start + tl.arange(0, BLOCK_N)
        allowed = (tokens[None, :] <= positions[:, None]) & (tokens < end)[None, :]
        if WINDOW:
            allowed = allowed & (tokens[None, :] > positions[:, None] - WINDOW)
        maximum, total, result = attend_to_block(
            query, tokens, allowed, pages, k_pages, v_pages, head // GROUPS, dims,
            maximum, total, result, scale, H_KV, D, PAGE_SIZE, DOT,
        )  # fmt: skip
        pages = ahead
    address = (first_row + number)[:, None].to(tl.int64) * (H_KV * GROUPS * D) + head * D + dims[None, :]
    tl.store(out + address, (result / total[:, None]).to(out.dtype.element_ty), inside)

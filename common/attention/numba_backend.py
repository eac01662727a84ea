"""The CPU's own kernel: it reads K and V in the pages where they lie.

The `torch` backend copies the pages of a sequence before it can attend to them, has to cut a batch of different lengths
into several calls, and computes what a row must not see. Here one call has a loop over blocks of rows, compiled by
numba; the threads share the blocks. It is the twin of the Triton kernels for decode and prefill.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy
import torch
from numba import get_num_threads, njit, prange, set_num_threads, types
from numba.extending import overload
from torch import Tensor

from common.fused.numba_basics import FAST, FEW_NUMBERS, array, exp, f4, kernel, narrow, prefetch, use_threads, widen

from .batch import PagedBatch
from .int8 import MAX_CODE, SCALE_BYTES, SMALLEST
from .torch_backend import write_rows
from .window import current_window

# A block is up to this many neighbouring rows of a request, which read its K and V together. With more, the queries
# of a K/V head and their results do not fit into a core's fastest cache.
MAX_ROWS = 8
NO_WINDOW = 1 << 40
MANY_BLOCKS = 4  # From this number on, threads share blocks; below it, also the heads of a block.


class Plan(NamedTuple):
    """The blocks of one step. Arrays of int32, `[blocks]` but for the page tables."""

    rows: numpy.ndarray  # each block's first row
    counts: numpy.ndarray  # its number of rows
    requests: numpy.ndarray  # the request whose page table it reads
    seen: numpy.ndarray  # how many tokens its last row looks at, itself included
    page_tables: numpy.ndarray  # [B, P]
    numbers: int  # numbers of K that all rows multiply


class NumbaAttention:
    name, capturable = "numba", False

    def __init__(self, dtype: torch.dtype, head_dim: int):
        self.kernel, self.write_kernel = compiled(dtype, head_dim), writer()
        self.dtype, self.head_dim = dtype, head_dim
        self.words = dtype.itemsize // 2  # words of 16 bits in a number

    def prepare(self, batch: PagedBatch) -> Plan:
        blocks, row = [], 0
        for request, (count, length) in enumerate(zip(batch.host_query_lengths, batch.host_lengths, strict=True)):
            for before in range(0, count, MAX_ROWS):
                size = min(count - before, MAX_ROWS)
                blocks.append((row + before, size, request, length - count + before + size))
            row += count
        numbers = self.head_dim * sum(size * seen for _, size, _, seen in blocks)
        use_threads(numbers)
        # Threads take equal numbers of neighbouring blocks. Deal these out, so that each thread has as much work.
        blocks.sort(key=lambda block: block[1] * block[3], reverse=True)
        threads = get_num_threads()
        dealt = [block for first in range(threads) for block in blocks[first::threads]]
        arrays = numpy.array(dealt, numpy.int32).T.copy()
        return Plan(*arrays, batch.page_tables.numpy(), numbers)

    def write(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        (rows, heads, size), (row, *inner) = shape, stride = k.shape, k.stride()
        int8 = k_pages.dtype == torch.int8
        dtype = self.dtype if int8 else k_pages.dtype
        alike = shape == v.shape and stride == v.stride() and k.dtype == v.dtype == dtype
        width = size + SCALE_BYTES * int8
        if not alike or inner != [size, 1] or k_pages.stride(1) != heads * width or slot_mapping.shape[0] != rows:
            return write_rows(k, v, k_pages, v_pages, slot_mapping)  # It raises an error that says what is wrong.
        tensors = (x.data_ptr() for x in (k, v, k_pages, v_pages, slot_mapping))
        if int8:
            return int8_writer(self.dtype, size)(*tensors, row, rows, heads)
        words = self.words
        self.write_kernel(*tensors, row * words, row * words, rows, heads * size * words)

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan) -> Tensor:
        threads = None  # for little work, as many as the fused kernels use
        if plan.numbers >= FEW_NUMBERS:
            threads = get_num_threads()
            use_threads(plan.numbers)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        pages, page_size, kv_heads, _ = k_pages.shape
        kernel = self.kernel if k_pages.dtype != torch.int8 else compiled(self.dtype, self.head_dim, True)
        kernel(
            q.data_ptr(), k_pages.data_ptr(), v_pages.data_ptr(), out.data_ptr(), q.stride(0), q.shape[0], q.shape[1],
            pages, page_size, kv_heads, plan.page_tables, plan.rows, plan.counts, plan.requests, plan.seen,
            current_window() or NO_WINDOW,
        )  # fmt: skip
        if threads is not None:
            set_num_threads(threads)
        return out


@njit
def copy(source, target):
    for i in range(len(source)):
        target[i] = source[i]


@lru_cache
def writer() -> Callable[..., None]:
    """Return the kernel that writes to pages, in words of 16 bits: a bfloat16 is one, a float32 is two."""

    @kernel("void(i8, i8, i8, i8, i8, i8, i8, i8, i8)")
    def write(k_at, v_at, k_pages_at, v_pages_at, slots_at, k_stride, v_stride, rows, size):
        """The first `size` words of each row of k[rows, k_stride] and v to its slot in pages [slots, size]."""
        many, words = 1 << 40, numpy.uint16  # how many slots there are is not known here
        k, v = array(k_at, (rows, k_stride), words), array(v_at, (rows, v_stride), words)
        k_pages, v_pages = array(k_pages_at, (many, size), words), array(v_pages_at, (many, size), words)
        slots = array(slots_at, rows, numpy.int64)
        for row in prange(rows):
            copy(k[row, :size], k_pages[slots[row]])
            copy(v[row, :size], v_pages[slots[row]])

    return write


@njit(fastmath={"contract"})  # As `exp`: reordering would remove this sum.
def rounded(x):
    """The nearest whole number to a float32 below 2**22, ties to even."""
    return (x + f4(12582912)) - f4(12582912)


@njit(error_model="numpy")
def quantize(source, target):
    """As `quantize` of int8.py: source[D] to target[D + 4], of which the last 4 bytes are the scale."""
    most = f4(SMALLEST)
    for d in range(len(source)):
        size = abs(widen(source[d]))
        if size > most or size != size:  # a NaN stays
            most = size
    scale = most / f4(MAX_CODE)
    for d in range(len(source)):
        target[d] = numpy.int8(rounded(widen(source[d]) / scale))
    target[len(source) :].view(f4)[0] = scale


@lru_cache
def int8_writer(dtype: torch.dtype, head_dim: int) -> Callable[..., None]:
    """Return the kernel that rounds k[rows, heads * D] and v, rows `stride` numbers apart, into pages of 8 bits."""
    number, width = numpy.float32 if dtype == torch.float32 else numpy.uint16, head_dim + SCALE_BYTES

    @kernel("void(i8, i8, i8, i8, i8, i8, i8, i8)")
    def write(k_at, v_at, k_pages_at, v_pages_at, slots_at, stride, rows, heads):
        many = 1 << 40
        k, v = array(k_at, (rows, stride), number), array(v_at, (rows, stride), number)
        k_pages = array(k_pages_at, (many, heads, width), numpy.int8)
        v_pages = array(v_pages_at, (many, heads, width), numpy.int8)
        slots = array(slots_at, rows, numpy.int64)
        for row in prange(rows):
            for head in range(heads):
                numbers = slice(head * head_dim, (head + 1) * head_dim)
                quantize(k[row, numbers], k_pages[slots[row], head])
                quantize(v[row, numbers], v_pages[slots[row], head])

    return write


def number_of(x):
    """Return a number of a page as float32, up to its scale."""


def scale_of(row):
    """Return the scale of a row of a page: 1 but for rows of 8 bits."""


@overload(number_of, inline="always")
def _number_of(x):
    return (lambda x: f4(x)) if x == types.int8 else (lambda x: widen(x))


@overload(scale_of)
def _scale_of(row):
    if row.dtype == types.int8:
        return lambda row: row[-SCALE_BYTES:].view(f4)[0]
    return lambda row: f4(1)


@njit(fastmath=FAST, error_model="numpy")
def softmax(scores, seen):
    """Make weights of the first `seen` scores, and zeros of the others. numba vectorises loops from 0."""
    highest, total = scores[:seen].max(), f4(0)
    for i in range(seen):
        scores[i] = exp(scores[i] - highest)
        total += scores[i]
    for i in range(seen):
        scores[i] /= total
    scores[seen:] = 0


@lru_cache
def compiled(dtype: torch.dtype, head_dim: int, int8: bool = False) -> Callable[..., None]:
    """Return the kernel for heads of this dimension: as a constant, it lets sums stay in vector registers.

    dtype: of q and the result, and without `int8` of K and V. With it a row's scale multiplies its score or its weight.

    K and V of bfloat16 are widened in registers; scores and sums are float32. A row's result depends on nothing but the
    row: its scores behind its own position become zeros. Tensors are passed by address. Compiling takes a few seconds,
    once on a machine: numba keeps the result on disk.

    Tokens are taken by four, and queries by two: so what is read from a cache is used more than once, and several sums
    run at the same time. At the end, the last one takes the place of missing neighbours.

    A processor foresees reads in order, but only the table knows where the next page is. So the next page is fetched
    while one is computed, token by token; without that, most of the time is spent waiting for memory.
    """
    number = numpy.float32 if dtype == torch.float32 else numpy.uint16
    signature = "void(i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i4[:,::1], i4[::1], i4[::1], i4[::1], i4[::1], i8)"
    stored = numpy.int8 if int8 else number
    width = head_dim + SCALE_BYTES * int8
    scale, head_bytes = f4(head_dim**-0.5), width * (1 if int8 else dtype.itemsize)

    @kernel(signature)
    def attend(
        q_at, k_at, v_at, out_at, q_stride, tokens, q_heads, pages, page_size, heads,
        page_tables, rows, counts, requests, seen, window,
    ):  # fmt: skip
        groups = q_heads // heads
        q, out = array(q_at, (tokens, q_stride), number), array(out_at, (tokens, q_heads, head_dim), number)
        k_pages = array(k_at, (pages, page_size, heads, width), stored)
        v_pages = array(v_at, (pages, page_size, heads, width), stored)
        # An item is one or all K/V heads of a block. All: pages lie in memory token by token, and memory is fastest
        # when it is read in order. One: a step with few blocks has work for every thread.
        each = heads if len(rows) >= MANY_BLOCKS else 1
        items, token_bytes, page_bytes = len(rows) * heads // each, heads * head_bytes, page_size * heads * head_bytes
        for item in prange(items):
            index, first = item * each // heads, item * each % heads
            row, count, length = rows[index], counts[index], seen[index]
            table, queries = page_tables[requests[index]], count * groups
            # The page of the first token that any row sees; those before it are not read.
            begin = max(length - count + 1 - window, 0) // page_size * page_size
            k_heads, v_heads = k_at + first * head_bytes, v_at + first * head_bytes
            after = min(item + 1, items - 1) * each  # what this thread computes next, probably
            next_page = page_tables[requests[after // heads], 0]
            next_heads = k_at + next_page * page_bytes + after % heads * head_bytes
            query = numpy.empty((each, queries, head_dim), numpy.float32)
            for head in range(each):
                for i in range(queries):
                    source = q[row + i // groups, ((first + head) * groups + i % groups) * head_dim :]
                    for d in range(head_dim):
                        query[head, i, d] = widen(source[d]) * scale
            scores = numpy.empty((each, queries, length), numpy.float32)
            for start in range(begin, length, page_size):
                page, behind = k_pages[table[start // page_size]], start + page_size
                last = min(page_size, length - start) - 1
                if behind < length:
                    ahead = k_heads + table[behind // page_size] * page_bytes
                else:
                    ahead = v_heads + table[begin // page_size] * page_bytes
                for i0 in range(0, last + 1, 4):
                    i1, i2, i3 = min(i0 + 1, last), min(i0 + 2, last), min(i0 + 3, last)
                    for head in range(each):
                        for i in range(i0, i3 + 1):
                            prefetch(ahead + i * token_bytes + head * head_bytes, head_bytes)
                        k0, k1 = page[i0, first + head], page[i1, first + head]
                        k2, k3 = page[i2, first + head], page[i3, first + head]
                        for a in range(0, queries, 2):
                            b = min(a + 1, queries - 1)
                            query_a, query_b = query[head, a], query[head, b]
                            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = f4(0)
                            for d in range(head_dim):
                                a0 += query_a[d] * number_of(k0[d])
                                a1 += query_a[d] * number_of(k1[d])
                                a2 += query_a[d] * number_of(k2[d])
                                a3 += query_a[d] * number_of(k3[d])
                                b0 += query_b[d] * number_of(k0[d])
                                b1 += query_b[d] * number_of(k1[d])
                                b2 += query_b[d] * number_of(k2[d])
                                b3 += query_b[d] * number_of(k3[d])
                            s0, s1, s2, s3 = scale_of(k0), scale_of(k1), scale_of(k2), scale_of(k3)
                            of_a, of_b = scores[head, a, start:], scores[head, b, start:]
                            of_a[i0], of_a[i1], of_a[i2], of_a[i3] = a0 * s0, a1 * s1, a2 * s2, a3 * s3
                            of_b[i0], of_b[i1], of_b[i2], of_b[i3] = b0 * s0, b1 * s1, b2 * s2, b3 * s3
            for head in range(each):
                for i in range(queries):
                    sees = length - count + 1 + i // groups
                    hidden = max(sees - window, 0)  # scores before the window
                    scores[head, i, :hidden] = 0
                    softmax(scores[head, i, hidden:], sees - hidden)
            result = numpy.zeros((each, queries, head_dim), numpy.float32)
            for start in range(begin, length, page_size):
                page, behind = v_pages[table[start // page_size]], start + page_size
                last = min(page_size, length - start) - 1
                ahead = v_heads + table[behind // page_size] * page_bytes if behind < length else next_heads
                for i0 in range(0, last + 1, 4):
                    i1, i2, i3 = min(i0 + 1, last), min(i0 + 2, last), min(i0 + 3, last)
                    for head in range(each):
                        for i in range(i0, i3 + 1):
                            prefetch(ahead + i * token_bytes + head * head_bytes, head_bytes)
                        v0, v1 = page[i0, first + head], page[i1, first + head]
                        v2, v3 = page[i2, first + head], page[i3, first + head]
                        for i in range(queries):
                            weights, mixed = scores[head, i, start:], result[head, i]
                            w0 = weights[i0] * scale_of(v0)
                            w1 = weights[i1] * scale_of(v1) if i1 > i0 else f4(0)
                            w2 = weights[i2] * scale_of(v2) if i2 > i1 else f4(0)
                            w3 = weights[i3] * scale_of(v3) if i3 > i2 else f4(0)
                            for d in range(head_dim):
                                sum01 = w0 * number_of(v0[d]) + w1 * number_of(v1[d])
                                mixed[d] += sum01 + w2 * number_of(v2[d]) + w3 * number_of(v3[d])
            for head in range(each):
                for i in range(queries):
                    target = out[row + i // groups, (first + head) * groups + i % groups]
                    for d in range(head_dim):
                        target[d] = narrow(result[head, i, d], target[d])

    return attend


def create(device: torch.device, dtype: torch.dtype, head_dim: int) -> NumbaAttention:
    return NumbaAttention(dtype, head_dim)

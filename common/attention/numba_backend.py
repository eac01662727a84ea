"""The CPU's own kernel for decode: it reads K and V in the pages where they lie. Long prompts go to the torch backend.

The `torch` backend copies the pages of a sequence before it can attend to them, and has to cut a batch of different
lengths into several calls. Here one call has a loop for each token and K/V head, compiled by numba; the threads share
the loops. It is the twin of the Triton kernel `decode_kernel`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy
import torch
from numba import prange
from torch import Tensor

from common.fused.numba_basics import FEW_NUMBERS, array, exp, f4, kernel, narrow, prefetch, use_threads, widen
from common.fused.rotation import Unwritten

from . import PagedBatch
from .torch_backend import GatheredRows, TorchAttention

# Where many tokens look at the same K and V, copying these once for all is cheaper than reading them for each: torch
# takes the requests with more new tokens than FEW and more products of a token with a K than SHORT, as a prompt of 128
# tokens has.
FEW = 9
SHORT = 2**13
MANY_ROWS = 4  # from here on threads share rows, and below the heads of a row, too


class Plan(NamedTuple):
    """The rows of the step that attend each by itself, and the requests that torch attends to."""

    rows: numpy.ndarray  # [rows] int32: which of the step
    requests: numpy.ndarray  # [rows] int32: whose page table
    seen: numpy.ndarray  # [rows] int32: how many tokens each looks at, itself included
    page_tables: numpy.ndarray  # [B, P] int32
    numbers: int  # of K that these rows multiply
    prompts: list[GatheredRows]


class NumbaAttention(TorchAttention):
    name, capturable = "numba", False

    def __init__(self, device: torch.device, dtype: torch.dtype, head_dim: int):
        super().__init__(device, dtype)
        self.kernel, self.head_dim = compiled(dtype, head_dim), head_dim

    def prepare(self, batch: PagedBatch) -> Plan:
        counts, lengths = batch.host_query_lengths, batch.host_lengths
        rows, requests, seen, long, start = [], [], [], [], 0
        for i, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            if count <= FEW or count * (2 * length - count + 1) <= 2 * SHORT:
                rows += range(start, start + count)
                requests += [i] * count
                seen += range(length - count + 1, length + 1)
            else:
                long.append(i)
            start += count
        numbers = sum(seen) * self.head_dim
        use_threads(numbers)
        arrays = (numpy.array(each, dtype=numpy.int32) for each in (rows, requests, seen))
        return Plan(*arrays, batch.page_tables.numpy(), numbers, [self._part(batch, [i]) for i in long])

    def write(
        self, k: Tensor | Unwritten, v: Tensor | Unwritten, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor
    ) -> None:
        """As `Attention.write`; an `Unwritten` (fused/rotation.py) writes itself."""
        if isinstance(k, Unwritten):
            return k.write(k_pages, v_pages, slot_mapping)
        super().write(k, v, k_pages, v_pages, slot_mapping)

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        if len(plan.seen):
            if plan.numbers >= FEW_NUMBERS:  # fewer do not pay for the call: the fused kernels' number stays
                use_threads(plan.numbers)
            addresses = (tensor.data_ptr() for tensor in (q, k_pages, v_pages, out))
            sizes = q.stride(0), len(q), q.shape[1], *k_pages.shape[:3]
            self.kernel(*addresses, *sizes, plan.page_tables, plan.rows, plan.requests, plan.seen)
        if plan.prompts:
            self.attend_parts(q, k_pages, v_pages, plan.prompts, out)
        return out


@lru_cache
def compiled(dtype: torch.dtype, head_dim: int) -> Callable[..., None]:
    """Return the kernel for heads of this dimension: as a constant, it lets a row's sums stay in vector registers.

    K and V of bfloat16 are widened in registers; scores and sums are float32. Tensors are passed by address. Compiling
    takes a few seconds, once on a machine: numba keeps the result on disk.

    A processor foresees reads in order, but only the table knows where the next page is. So the next page is fetched
    while one is computed, token by token; without that, most of the time is spent waiting for memory.
    """
    number = numpy.float32 if dtype == torch.float32 else numpy.uint16
    signature = "void(i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i4[:,::1], i4[::1], i4[::1], i4[::1])"
    scale, head_bytes = f4(head_dim**-0.5), head_dim * dtype.itemsize

    @kernel(signature)
    def decode(
        q_at, k_at, v_at, out_at, q_stride, tokens, q_heads, pages, page_size, heads, page_tables, rows, requests, seen
    ):
        groups = q_heads // heads
        q, out = array(q_at, (tokens, q_stride), number), array(out_at, (tokens, q_heads, head_dim), number)
        k_pages = array(k_at, (pages, page_size, heads, head_dim), number)
        v_pages = array(v_at, (pages, page_size, heads, head_dim), number)
        # An item is one or all K/V heads of a row. All: pages lie in memory token by token, and memory is fastest when
        # it is read in order. One: a step with few rows has work for every thread.
        each = heads if len(rows) >= MANY_ROWS else 1
        token_bytes, page_bytes = heads * head_bytes, page_size * heads * head_bytes
        for item in prange(len(rows) * heads // each):
            index, first = item * each // heads, item * each % heads
            row = rows[index]
            table, length = page_tables[requests[index]], seen[index]
            k_heads, v_heads = k_at + first * head_bytes, v_at + first * head_bytes
            after = min(item + 1, len(rows) * heads // each - 1) * each  # what this thread computes next, probably
            next_page = page_tables[requests[after // heads], 0]
            next_heads = k_at + next_page * page_bytes + after % heads * head_bytes
            query = numpy.empty((each * groups, head_dim), numpy.float32)
            for g in range(each * groups):
                for d in range(head_dim):
                    query[g, d] = widen(q[row, (first * groups + g) * head_dim + d]) * scale
            scores = numpy.empty((each * groups, length), numpy.float32)
            for start in range(0, length, page_size):
                page, behind = k_pages[table[start // page_size]], start + page_size
                if behind < length:
                    ahead = k_heads + table[behind // page_size] * page_bytes
                else:
                    ahead = v_heads + table[0] * page_bytes
                for i in range(min(page_size, length - start)):
                    prefetch(ahead + i * token_bytes, each * head_bytes)
                    for head in range(each):
                        k = page[i, first + head]
                        for g in range(head * groups, (head + 1) * groups):
                            score = f4(0)
                            for d in range(head_dim):
                                score += query[g, d] * widen(k[d])
                            scores[g, start + i] = score
            for g in range(each * groups):
                highest, total = scores[g].max(), f4(0)
                for n in range(length):
                    scores[g, n] = exp(scores[g, n] - highest)
                    total += scores[g, n]
                for n in range(length):
                    scores[g, n] /= total
            result = numpy.zeros((each * groups, head_dim), numpy.float32)
            for start in range(0, length, page_size):
                page, behind = v_pages[table[start // page_size]], start + page_size
                ahead = v_heads + table[behind // page_size] * page_bytes if behind < length else next_heads
                for i in range(min(page_size, length - start)):
                    prefetch(ahead + i * token_bytes, each * head_bytes)
                    for head in range(each):
                        v = page[i, first + head]
                        for g in range(head * groups, (head + 1) * groups):
                            weight = scores[g, start + i]
                            for d in range(head_dim):
                                result[g, d] += weight * widen(v[d])
            for g in range(each * groups):
                for d in range(head_dim):
                    out[row, first * groups + g, d] = narrow(result[g, d], out[row, first, d])

    return decode


def create(device: torch.device, dtype: torch.dtype, head_dim: int) -> NumbaAttention:
    return NumbaAttention(device, dtype, head_dim)

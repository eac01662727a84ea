"""The CPU's own kernel for decode: it reads K and V in the pages where they lie. Prompts go to the torch backend.

The `torch` backend copies the pages of a sequence before it can attend to them, and has to cut a batch of different
lengths into several calls. Here one call has a loop for each token and K/V head, compiled by numba; the threads share
the loops. It is the twin of the Triton kernel `decode_kernel`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from . import PagedBatch
from .torch_backend import Part, TorchAttention

# A request with more new tokens than this is a prompt: then many tokens look at the same K and V, and copying them
# once for all is cheaper than reading them for each.
FEW = 9


class Plan(NamedTuple):
    """The first rows of the step, each a token that attends by itself, and the requests that torch attends to."""

    requests: numpy.ndarray  # [rows] int32: whose page table
    seen: numpy.ndarray  # [rows] int32: how many tokens each looks at, itself included
    page_tables: numpy.ndarray  # [B, P] int32
    prompts: list[Part]


class NumbaAttention(TorchAttention):
    name, capturable = "numba", False

    def __init__(self, device: torch.device, dtype: torch.dtype, head_dim: int):
        super().__init__(device, dtype)
        self.kernel = compiled(head_dim)

    def prepare(self, batch: PagedBatch) -> Plan:
        counts, lengths = batch.host_query_lengths, batch.host_lengths
        few = next((i for i, count in enumerate(counts) if count > FEW), len(counts))  # requests
        requests = [i for i in range(few) for _ in range(counts[i])]
        seen = [n for i in range(few) for n in range(lengths[i] - counts[i] + 1, lengths[i] + 1)]
        return Plan(
            numpy.array(requests, dtype=numpy.int32),
            numpy.array(seen, dtype=numpy.int32),
            batch.page_tables.numpy(),
            [self._part(batch, [i]) for i in range(few, len(counts))],
        )

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        rows = len(plan.seen)
        if rows:
            tensors = (tensor.numpy() for tensor in (q[:rows], k_pages, v_pages, out))
            self.kernel(*tensors, plan.page_tables, plan.requests, plan.seen)
        if plan.prompts:
            self.attend_parts(q, k_pages, v_pages, plan.prompts, out)
        return out


@lru_cache
def compiled(head_dim: int) -> Callable[..., None]:
    """Return the kernel for heads of this dimension: as a constant, it lets a row's sums stay in vector registers.

    Compiling takes a few seconds, once on a machine: numba keeps the result on disk.
    """
    from numba import njit, prange

    signature = "(f4[:,:,:], f4[:,:,:,::1], f4[:,:,:,::1], f4[:,:,::1], i4[:,::1], i4[::1], i4[::1])"
    scale = numpy.float32(head_dim**-0.5)

    @njit(signature, parallel=True, fastmath=True, error_model="numpy", cache=True)
    def decode(q, k_pages, v_pages, out, page_tables, requests, seen):
        page_size, heads = k_pages.shape[1], k_pages.shape[2]
        groups = q.shape[1] // heads
        for item in prange(len(seen) * heads):
            row, head = item // heads, item % heads
            table, length = page_tables[requests[row]], seen[row]
            query = numpy.empty((groups, head_dim), numpy.float32)
            for g in range(groups):
                for d in range(head_dim):
                    query[g, d] = q[row, head * groups + g, d] * scale
            scores = numpy.empty((groups, length), numpy.float32)
            for start in range(0, length, page_size):
                page = k_pages[table[start // page_size]]
                for i in range(min(page_size, length - start)):
                    k = page[i, head]
                    for g in range(groups):
                        score = numpy.float32(0)
                        for d in range(head_dim):
                            score += query[g, d] * k[d]
                        scores[g, start + i] = score
            for g in range(groups):
                highest = scores[g].max()
                for n in range(length):
                    scores[g, n] = numpy.exp(scores[g, n] - highest)
                scores[g] /= scores[g].sum()
            result = numpy.zeros((groups, head_dim), numpy.float32)
            for start in range(0, length, page_size):
                page = v_pages[table[start // page_size]]
                for i in range(min(page_size, length - start)):
                    v = page[i, head]
                    for g in range(groups):
                        weight = scores[g, start + i]
                        for d in range(head_dim):
                            result[g, d] += weight * v[d]
            out[row, head * groups : (head + 1) * groups] = result

    return decode


def create(device: torch.device, dtype: torch.dtype, head_dim: int) -> NumbaAttention:
    import numba

    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    return NumbaAttention(device, dtype, head_dim)

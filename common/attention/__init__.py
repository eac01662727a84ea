"""Attention over keys and values that lie in pages: one interface, and several backends behind it.

    attention, why = choose_attention("auto", device, dtype, head_dim, page_size)
    plan = attention.prepare(batch)                                   # once a step
    attention.write(k, v, k_pages, v_pages, batch.slot_mapping)       # once a layer
    attended = attention.attend(q, k_pages, v_pages, plan)            # once a layer

| backend | runs on | how |
|---|---|---|
| `torch` | anything | gathers the pages, then masked scaled-dot-product attention: the definition of the others |
| `numba` | CPU, float32 and bfloat16 | one compiled loop over blocks of rows, which reads pages where they lie |
| `triton` | CUDA | kernels of the course: write, decode with K and V split over programs, ragged prefill |
| `flash` | CUDA | `torch.nn.attention.varlen`, where torch has its paged form; only if asked for by name |

`flash` decodes with one split, so that a request's result does not depend on the batch: at batch 1 one program for each
head reads all of K and V, and most of a GPU does nothing. The course's own kernels split a sequence into fixed pieces.

Pages are `[pages, page_size, H_kv, D]` in every backend, for K and for V: what one token has in them is contiguous.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module, util
from itertools import accumulate
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from common.errors import InvalidInput
from common.transfers import to_device

BACKENDS = ("torch", "numba", "triton", "flash")


@dataclass(frozen=True)
class PagedBatch:
    """Where the tokens of one step belong, and where their K and V lie. B requests, N tokens.

    The first `decodes` requests have one token each in the step, the others may have any number; rows are in the order
    of the requests. A request's tokens are the last of its sequence, so row i of its n sees lengths - n + i + 1 tokens.
    """

    query_starts: Tensor  # [B + 1] int32: where each request's rows begin
    lengths: Tensor  # [B] int32: tokens of each sequence, those of this step included
    page_tables: Tensor  # [B, P] int32: the pages of each sequence in order; what is beyond its length is any page
    slot_mapping: Tensor  # [N] int64: page * page_size + place in the page, where each row's K and V go
    page_size: int
    decodes: int
    host_query_lengths: list[int]  # the same on the host, where launches are planned
    host_lengths: list[int]

    @classmethod
    def pack(
        cls,
        query_lengths: list[int],
        lengths: list[int],
        page_tables: Sequence[Sequence[int]],
        slot_mapping: Tensor,
        page_size: int,
    ) -> "PagedBatch":
        """Build a batch from lists with one entry for each request; pad page tables to the longest of them.

        A page table that is an `array` of C integers is copied much faster than a list.
        """
        lists = {
            "query_starts": [0, *accumulate(query_lengths)],
            "lengths": lengths,
            "page_tables": filled_up(page_tables),
        }
        tensors = {name: to_device(values, torch.int32, slot_mapping.device) for name, values in lists.items()}
        decodes = next((i for i, count in enumerate(query_lengths) if count > 1), len(query_lengths))
        return cls(
            **tensors,
            slot_mapping=slot_mapping,
            page_size=page_size,
            decodes=decodes,
            host_query_lengths=query_lengths,
            host_lengths=lengths,
        )

    def one_by_one(self, positions: Tensor) -> "PagedBatch":
        """Return the same tokens at `positions[N]`, each as a request of one token, with the page table of its own.

        K and V of all tokens are written before any of them attends, so each finds those before it.
        """
        counts = self.host_query_lengths
        if max(counts) == 1:
            return self
        owners = to_device([i for i, count in enumerate(counts) for _ in range(count)], torch.int64, positions.device)
        ends = zip(counts, self.host_lengths, strict=True)
        return replace(
            self,
            query_starts=torch.arange(len(positions) + 1, dtype=torch.int32, device=positions.device),
            lengths=(positions + 1).int(),
            page_tables=self.page_tables[owners],
            decodes=len(positions),
            host_query_lengths=[1] * len(positions),
            host_lengths=[length - count + 1 + i for count, length in ends for i in range(count)],
        )


def filled_up(rows: Sequence[Sequence[int]]) -> numpy.ndarray:
    """Return the rows as one int32 array, those shorter than the longest filled up with zeros."""
    filled = numpy.zeros((len(rows), max(map(len, rows))), numpy.int32)
    for i, row in enumerate(rows):
        filled[i, : len(row)] = row  # no number of an `array` passes through Python
    return filled


class Attention(Protocol):
    """A backend. q is `[N, H, D]`, k and v are `[N, H_kv, D]`; rows may be strided, heads and D are contiguous."""

    name: str
    capturable: bool  # whether launches depend on nothing but shapes: then a CUDA graph can hold them

    def prepare(self, batch: PagedBatch) -> Any:
        """Return what `attend` needs in every layer of one step."""

    def write(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        """Store each row's K and V in its slot."""

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Any) -> Tensor:
        """Return `[N, H, D]`: each row's attention to its own sequence, up to its own position."""


def choose_attention(
    name: str, device: torch.device, dtype: torch.dtype, head_dim: int, page_size: int
) -> tuple[Attention, str]:
    """Return the backend of that name, or for "auto" the fastest one here, and one line that says why.

    Raise InvalidInput for an unknown name, or if a backend that was asked for by name cannot run here.
    """
    if name != "auto" and name not in BACKENDS:
        raise InvalidInput(f"there is no attention backend {name!r}: use auto, {', '.join(BACKENDS)}")
    candidates = (name,)
    if name == "auto":
        candidates = ("triton", "torch") if device.type == "cuda" else ("numba", "torch")
    missing = []
    for candidate in candidates:
        reason = why_not(candidate, device, dtype, head_dim, page_size)
        if reason is None:
            module = import_module(f".{candidate}_backend", __name__)
            because = "asked for" if name != "auto" else "; ".join([*missing, f"the fastest there is on {device.type}"])
            return module.create(device, dtype, head_dim), f"attention={candidate} ({because})"
        missing.append(f"no {candidate}: {reason}")
    raise InvalidInput(f"the attention backend {name!r} cannot run here: {reason}")


def why_not(name: str, device: torch.device, dtype: torch.dtype, head_dim: int, page_size: int) -> str | None:
    """Return why a backend cannot be used here, None if it can."""
    if name == "triton":
        from .triton_backend import why_not_triton

        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return "before compute capability 8.0 its products do not use the tensor cores"
        return why_not_triton(device)
    if name == "numba":
        if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
            return "it is for float32 and bfloat16 on the CPU"
        if not util.find_spec("numba"):
            return "the package numba is not installed"
    if name == "flash":
        from .flash_backend import why_not_flash

        return why_not_flash(device, dtype, head_dim, page_size)
    return None

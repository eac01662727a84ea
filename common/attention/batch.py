"""What a step's tokens have to attend to: the same for every backend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy
import torch
from torch import Tensor

from common.transfers import to_device


@dataclass(frozen=True)
class PagedBatch:
    """Where the tokens of one step belong, and where their K and V lie. B requests, N tokens.

    The first `decodes` requests have one token each in the step, the others may have any number; rows are in the order
    of the requests. A request's tokens are the last of its sequence, so row i of its n sees lengths - n + i + 1 tokens.
    """

    query_starts: Tensor  # [B + 1] int32: where each request's rows begin
    lengths: Tensor  # [B] int32: tokens of each sequence, those of this step included
    page_tables: Tensor  # [B, P] int32: the pages of each sequence in order; entries beyond its length are any page
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

    def spread(self, blocks: int) -> "PagedBatch":
        """Return the same batch for memory in which a page has `blocks` blocks: its number is that of its first one."""
        slots = self.slot_mapping + self.slot_mapping // self.page_size * ((blocks - 1) * self.page_size)
        return replace(self, page_tables=self.page_tables * blocks, slot_mapping=slots)

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
        filled[i, : len(row)] = row  # numpy copies an `array` without Python objects
    return filled

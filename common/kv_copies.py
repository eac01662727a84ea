"""Copies of pages between the device and the host's memory, several at once.

On a GPU a page leaves in two copies. The first runs between the kernels and puts it aside on the device, since the
next step writes to its place. The second runs beside the kernels of that step and takes it to the host. Pages that come
back are copied on a stream of their own: a bus carries both directions at once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .attention.int8 import dequantize, quantize

ASIDE_BYTES = 512 << 20  # bytes of a GPU's memory, for pages on their way


class Copies:
    """Copies between `pools` on a CPU, each `[pages, ...]`, and `host`, `[slots, ...]`. narrows: `host` has 8 bits."""

    def __init__(self, pools: list[Tensor], host: list[Tensor], narrows: bool = False):
        self.pools, self.host, self.narrows = pools, host, narrows

    def leave(self, pages: dict[int, int]) -> None:
        """Copy to each slot its page."""
        for slot, page in pages.items():
            for pool, host in zip(self.pools, self.host, strict=True):
                host[slot].copy_(quantize(pool[page]) if self.narrows else pool[page])

    def come(self, pages: dict[int, int]) -> None:
        """Copy from each slot to its page."""
        for slot, page in pages.items():
            for pool, host in zip(self.pools, self.host, strict=True):
                pool[page].copy_(dequantize(host[slot], pool.dtype) if self.narrows else host[slot])

    def left(self) -> "torch.cuda.Event | None":
        """Return an event that comes when all leaving pages have arrived; None: they have."""
        return None

    def arrived(self, slot: int) -> None:
        """Wait until a slot has its page."""

    def wait(self) -> None:
        """Wait until all copies have been made."""


class GpuCopies(Copies):
    """The same between a GPU and pinned memory. Python does not wait for a copy."""

    def __init__(self, pools: list[Tensor], host: list[Tensor]):
        super().__init__(pools, host)
        self.device = pools[0].device
        self.out, self.into = (torch.cuda.Stream(self.device) for _ in range(2))
        places = max(1, min(len(host[0]), ASIDE_BYTES // sum(part[0].nbytes for part in host)))
        self.aside = [part.new_empty((places, *part.shape[1:]), device=self.device) for part in host]
        never = torch.cuda.Event()
        self.place, self.emptied = 0, [never] * places  # where the next page goes aside; when each place is free again
        self.filled, self.read = [never] * len(host[0]), never  # when each slot is filled; when none is read any more

    def leave(self, pages: dict[int, int]) -> None:
        kernels = torch.cuda.current_stream(self.device)
        self.out.wait_event(self.read)
        for part in self.parts(pages):
            if self.place + len(part) > len(self.emptied):
                self.place = 0
            places = slice(self.place, self.place + len(part))
            self.place = places.stop
            for event in {*self.emptied[places]}:
                kernels.wait_event(event)
            index = self.index(part)
            for pool, aside in zip(self.pools, self.aside, strict=True):
                torch.index_select(pool, 0, index, out=aside[places])
            self.out.wait_stream(kernels)
            with torch.cuda.stream(self.out):
                for here, slots in runs(part):
                    for aside, host in zip(self.aside, self.host, strict=True):
                        host[slots].copy_(aside[places][here], non_blocking=True)
            self.emptied[places] = [self.out.record_event()] * len(part)
            for slot in part:
                self.filled[slot] = self.emptied[places.start]

    def come(self, pages: dict[int, int]) -> None:
        kernels = torch.cuda.current_stream(self.device)
        self.into.wait_stream(kernels)  # Kernels may still read what these pages held.
        for event in {self.filled[slot] for slot in pages}:
            self.into.wait_event(event)
        with torch.cuda.stream(self.into):
            for part in self.parts(pages):
                index = self.index(part)
                for pool, host in zip(self.pools, self.host, strict=True):
                    arrived = host.new_empty((len(part), *host.shape[1:]), device=self.device)
                    for here, slots in runs(part):
                        arrived[here].copy_(host[slots], non_blocking=True)
                    pool.index_copy_(0, index, arrived)
                    del arrived  # Free it before the next one takes as much.
            self.read = self.into.record_event()
        kernels.wait_stream(self.into)

    def parts(self, pages: dict[int, int]) -> Iterator[dict[int, int]]:
        """Yield the pages in the order of their slots, at most as many at once as there are places aside."""
        ordered = sorted(pages.items())
        for start in range(0, len(ordered), len(self.emptied)):
            yield dict(ordered[start : start + len(self.emptied)])

    def index(self, pages: dict[int, int]) -> Tensor:
        return torch.tensor([*pages.values()], pin_memory=True).to(self.device, non_blocking=True)

    def left(self) -> torch.cuda.Event:
        return self.out.record_event()

    def arrived(self, slot: int) -> None:
        self.filled[slot].synchronize()

    def wait(self) -> None:
        self.out.synchronize()
        self.into.synchronize()


def runs(slots: dict[int, int]) -> Iterator[tuple[slice, slice]]:
    """Yield each run of consecutive slots, for one copy: their positions in `slots`, and their numbers."""
    ordered, start = [*slots], 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            yield slice(start, end), slice(ordered[start], ordered[end - 1] + 1)
            start = end

"""Pages of a GPU on their way to and from the network: in pieces, through pinned memory, beside the computation.

A socket cannot read the memory of a GPU. A plain copy to the host waits until the GPU has done all that it was given,
and nothing runs meanwhile. Here copies have a stream of their own, which waits for what was given before and lets
everything after it overtake. And there are two buffers: while the network has one, the GPU copies from or to the other.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

PIECE_BYTES = 8 * 2**20  # of a buffer; at least a layer of all pages


class Staging:
    """The contents of `pages` in pools `[layers, pages, ...]`, piece by piece, in the order in which they travel."""

    def __init__(self, pools: Sequence[Tensor], pages: Sequence[int]):
        self.device = pools[0].device
        self.parts: list[Tensor] = []  # views of some layers of a pool: [layers, pages, numbers of a page]
        for pool in pools if len(pages) else ():
            flat = pool.view(*pool.shape[:2], -1)
            layers = max(1, PIECE_BYTES // (flat[0, 0].nbytes * len(pages)))
            self.parts += flat.split(layers)
        on_gpu = self.device.type == "cuda"
        sizes = [part[:, 0].nbytes * len(pages) for part in self.parts]
        self.buffers = [torch.empty(max(sizes, default=0), dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        self.copied = [torch.cuda.Event() for _ in range(2)] if on_gpu else []
        self.stream = torch.cuda.Stream(self.device) if on_gpu else None
        with self._on_stream():
            if on_gpu:
                self.stream.wait_stream(torch.cuda.default_stream(self.device))  # pages are in use until then
            self.index = torch.tensor(pages, dtype=torch.int64).to(self.device)

    def read(self) -> Iterator[memoryview]:
        """Yield the pieces; each is valid until the next one is asked for."""
        started: deque[tuple[int, Tensor]] = deque()
        for number, part in enumerate(self.parts):
            place = self._place(number)
            with self._on_stream():
                place.copy_(part.index_select(1, self.index), non_blocking=True)
                self._record(number)
            started.append((number, place))
            if len(started) == 2:
                yield self._arrived(*started.popleft())
        while started:
            yield self._arrived(*started.popleft())

    @contextmanager
    def write(self) -> Iterator[Iterator[memoryview]]:
        """Give pieces to be filled, each before the next one is asked for; at the end the device has them all.

        After an exception nothing is copied any more either.
        """
        try:
            yield self._places()
        finally:
            if self.stream is not None:
                self.stream.synchronize()

    def _places(self) -> Iterator[memoryview]:
        for number, part in enumerate(self.parts):
            place = self._place(number)
            yield self._arrived(number, place)  # what it was filled with before
            with self._on_stream():
                part.index_copy_(1, self.index, place.to(self.device, non_blocking=True))
                self._record(number)

    def _place(self, number: int) -> Tensor:
        """Return the buffer of that piece: [layers, pages, numbers of a page]."""
        part = self.parts[number]
        shape = len(part), len(self.index), part.shape[2]
        count = part[:, 0].nbytes * len(self.index)
        return self.buffers[number % 2][:count].view(part.dtype).view(shape)

    def _arrived(self, number: int, place: Tensor) -> memoryview:
        """Wait for the copy that was started last from or to the buffer; return its bytes."""
        if self.copied:
            self.copied[number % 2].synchronize()  # at once, if none has been started
        return memoryview(place.view(-1).view(torch.uint8).numpy())

    def _record(self, number: int) -> None:
        if self.copied:
            self.copied[number % 2].record(self.stream)

    def _on_stream(self):
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

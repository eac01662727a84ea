"""Send the contents of K/V pages through Ray's object store: for systems that have no NIXL, such as macOS and Windows.

The sender copies the pages into one object, and the receiver copies the object into its pages: slower than NIXL, and
simpler. An object does not change, so what arrives is always what was offered.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any

import numpy
import ray
import torch
from torch import Tensor


class ObjectTransport:
    """As `NixlTransport`, between actors of one Ray."""

    description = "pages travel through Ray's object store, slower than by NIXL, which cannot be imported here"

    def register(self, pools: Sequence[Tensor]) -> None:
        """Name the pools whose pages travel together: each [pages, ...] and contiguous, all on one device."""
        self.pools = list(pools)
        self.offers: dict[str, Any] = {}

    def send(self, key: str, pages: Sequence[int]) -> list[Any]:
        """Copy these pages into an object; return its reference, in a list so that Ray does not resolve it."""
        index = torch.tensor(list(pages), dtype=torch.int64, device=self.pools[0].device)
        self.offers[key] = ray.put([pool[index].cpu().view(torch.uint8).numpy() for pool in self.pools])
        return [self.offers[key]]

    def receive(
        self, ticket: list[Any], skip: int, pages: Sequence[int], on_done: Callable[[], None] = lambda: None
    ) -> "ObjectTransfer":
        """Start to fetch what is offered, without its first `skip` pages, for `pages`."""
        return ObjectTransfer(self.pools, ticket[0], skip, list(pages), on_done)

    def abort(self, key: str) -> None:
        """Withdraw an offer. Unknown keys are ignored."""
        self.offers.pop(key, None)


class ObjectTransfer:
    """Pages on their way. Only `done` writes to the reserved ones, so no bytes arrive later: it is always final."""

    final = True

    def __init__(self, pools: list[Tensor], reference: Any, skip: int, pages: list[int], on_done: Callable[[], None]):
        self.pools, self.skip, self.pages = pools, skip, pages
        self.bytes, self.seconds = sum(pool[0].nbytes for pool in pools) * len(pages), 0.0
        self.start = time.perf_counter()
        self.future = reference.future()
        self.future.add_done_callback(lambda _: on_done())

    def done(self) -> bool:
        """Write what has arrived, and return whether it has. Raise ConnectionError if it never will."""
        if not self.future.done():
            return False
        try:
            arrived: list[numpy.ndarray] = self.future.result()
        except Exception as error:  # an error of Ray: the sender is gone
            raise ConnectionError(f"the pages did not arrive: {error}") from error
        index = torch.tensor(self.pages, dtype=torch.int64, device=self.pools[0].device)
        for pool, sent in zip(self.pools, arrived, strict=True):
            pool[index] = torch.from_numpy(sent[self.skip :].copy()).view(pool.dtype).to(pool.device)
        self.seconds = time.perf_counter() - self.start
        return True

    def wait(self, seconds: float) -> None:
        """Return when it has arrived, or after this time."""
        wait([self.future], seconds)

    def cancel(self) -> None:
        """Let it go: nothing is written unless `done` is called."""

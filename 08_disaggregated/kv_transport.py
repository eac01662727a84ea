"""NEW in 08: how the contents of pages get from one worker to another.

A prefill worker offers the pages of a parked request (`send`) and gets a ticket, which reaches a decode worker through
the router. The decode worker has reserved pages of its own by then, and fetches the contents straight into them
(`receive`) while both workers go on computing. The offer stands until it is withdrawn (`abort`): if the receiver dies
halfway, another one fetches the same pages again.

Between processes NIXL moves pages (common/distributed/nixl_transport.py), as in vLLM, SGLang and NVIDIA Dynamo; where
it is not installed, Ray's object store does (object_transport.py). `LocalTransport` is for workers of one process. What
each way costs is in results/transports/.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from common.transfers import to_device


class Transfer(Protocol):
    """Pages on their way into reserved ones. `bytes` and `seconds` are known once it is done."""

    bytes: int
    seconds: float
    final: bool  # True: nothing writes to the reserved pages any more. Until then they must not be used again.

    def done(self) -> bool:
        """Return whether every byte is in its place. Raise ConnectionError if it never will be, or is late."""

    def wait(self, seconds: float) -> None:
        """Return when it is final, or after this time."""

    def cancel(self) -> None:
        """Become final as soon as possible: a read that has begun cannot be taken back."""


class KVTransport(Protocol):
    """What a worker needs of a transport. Both ends have pools of the same shape."""

    description: str  # how pages travel

    def register(self, pools: Sequence[Tensor]) -> None:
        """Name the pools whose pages travel together: each [pages, ...], with the same page numbers."""

    def send(self, key: str, pages: Sequence[int]) -> Any:
        """Offer these pages, which must not change until `abort`; return a ticket for `receive`."""

    def receive(self, ticket: Any, skip: int, pages: Sequence[int], on_done: Callable[[], None]) -> Transfer:
        """Start to fetch what is offered, without its first `skip` pages, into `pages`; call on_done at the end."""

    def abort(self, key: str) -> None:
        """Withdraw an offer, after which its pages may change. Unknown keys are ignored."""


class LocalTransport:
    """A KVTransport between workers of one process: a copy that never leaves the device."""

    description = "pages are copied"

    def __init__(self):
        self.offers: dict[str, list[int]] = {}

    def register(self, pools: Sequence[Tensor]) -> None:
        self.pools = list(pools)

    def send(self, key: str, pages: Sequence[int]) -> "tuple[LocalTransport, str]":
        self.offers[key] = list(pages)
        return self, key

    def receive(
        self, ticket: "tuple[LocalTransport, str]", skip: int, pages: Sequence[int], on_done: Callable[[], None]
    ) -> "LocalTransfer":
        return LocalTransfer(self.pools, *ticket, skip, list(pages))

    def abort(self, key: str) -> None:
        self.offers.pop(key, None)


class LocalTransfer:
    """A Transfer that is over as soon as it is made."""

    final = True

    def __init__(self, pools: list[Tensor], source: LocalTransport, key: str, skip: int, pages: list[int]):
        """Copy what is offered, without its first `skip` pages, to `pages` of the pools, [pages, ...] each."""
        start, self.bytes = time.perf_counter(), 0
        self.filled = key in source.offers
        if self.filled:
            numbers = [pages, source.offers[key][skip : skip + len(pages)]]
            here, there = to_device(numbers, torch.int64, pools[0].device)
            for pool, from_pool in zip(pools, source.pools, strict=True):
                pool[here] = from_pool[there]
                self.bytes += pool[0].nbytes * len(pages)
        self.seconds = time.perf_counter() - start

    def done(self) -> bool:
        """Return True. Raise ConnectionError if the offer had been withdrawn."""
        if not self.filled:
            raise ConnectionError("the pages have been withdrawn")
        return True

    def wait(self, seconds: float) -> None:
        """Return at once: it is over."""

    def cancel(self) -> None:
        """Return at once: it is over."""

"""A worker of stage 08 whose model several ranks share (common/loader/shard.py): every rank runs the same worker.

Rank 0 has the mailbox. It forwards the messages that it reads and the turns that it takes, and all ranks then do the
same with their own part of every page. Only one thing could differ between ranks: when pages arrive. So ranks ask each
other, and a transfer is done when it is done on all of them. Each rank fetches its part from the sender's rank of the
same number.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..loader.shard import Shard
from ..parallel.ranks import Ranks

FAILED, PENDING, DONE = 0, 1, 2
POLL_SECONDS = 0.002  # an idle rank 0 is not notified when another rank's pages arrive, so it polls


class RankedTransport:
    """The transports of all ranks as one. A ticket is the list of their tickets, by rank; the rest is this rank's."""

    def __init__(self, transport, shard: Shard, device: torch.device):
        self.transport, self.shard, self.device = transport, shard, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def send(self, key: str, pages: Sequence[int]) -> list[Any]:
        tickets: list[Any] = [None] * self.shard.ranks
        dist.all_gather_object(tickets, self.transport.send(key, pages))
        return tickets

    def receive(
        self, ticket: list[Any], skip: int, pages: Sequence[int], on_done: Callable[[], None]
    ) -> "RankedTransfer":
        transfer = self.transport.receive(ticket[self.shard.rank], skip, pages, on_done)
        return RankedTransfer(transfer, self.shard, self.device)


class RankedTransfer:
    """One rank's part of a transfer, which succeeds or fails together with the parts of all ranks."""

    def __init__(self, transfer, shard: Shard, device: torch.device):
        self.transfer, self.shard, self.device = transfer, shard, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transfer, name)

    @property
    def bytes(self) -> int:
        return self.transfer.bytes * self.shard.ranks

    def done(self) -> bool:
        """Return whether all parts have arrived; raise ConnectionError if one has failed.

        All ranks must call this at the same time, and get the same result.
        """
        reason = "another rank's part has failed"
        try:
            state = DONE if self.transfer.done() else PENDING
        except ConnectionError as error:
            state, reason = FAILED, str(error)
        least = self.shard.min_over_ranks(state, self.device)
        if least == FAILED:
            raise ConnectionError(reason)
        return least == DONE

    @property
    def final(self) -> bool:
        """Return whether no rank's pages will be written to any more. All ranks must ask at the same time."""
        return bool(self.shard.min_over_ranks(int(self.transfer.final), self.device))


class OnAllRanks:
    """Rank 0's worker, with calls forwarded to all other ranks. All other attributes are those of the worker."""

    def __init__(self, worker, ranks: Ranks):
        self._worker, self._ranks = worker, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def read(self, mail) -> None:
        self._do("read", mail)

    def turn(self, heartbeat: bool = False):
        report = self._do("turn", heartbeat)
        if report.gains:  # ranks that sample different tokens would compute K and V of different texts
            self._ranks.tell("agree", "gains", [gain[:3] for gain in report.gains])
        return report

    def _do(self, method: str, *arguments) -> Any:
        with self._ranks.in_step():
            self._ranks.tell("call", method, *arguments)
            return getattr(self._worker, method)(*arguments)

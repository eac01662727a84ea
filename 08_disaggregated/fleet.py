"""NEW in 08: the workers as the router reaches them: a call is made now, and its reply is heard later.

`LocalFleet` has its workers in this process, for the contract, for tests and for a learner with a debugger; a call is
carried out at once. ray_fleet.py has them in processes of their own. To the router they are the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .orders import Order
from .station import Station
from .transport import LocalTransport


class WorkerLost(Exception):
    """The worker that was called is gone, with everything it held."""


class Reply(NamedTuple):
    """What has become of the oldest call to this worker: a Hello or a Report, or why there is none."""

    number: int  # the worker's, from 0
    result: Any  # or a WorkerLost


class Fleet(ABC):
    """Workers by number. Calls to one worker are carried out, and answered, in the order in which they were made.

    depth: how many calls of `work` are made to a worker before the first is answered. With two of them it has the next
    one at hand when it has done one, and need not wait for the router.
    """

    depth = 1
    place = "in this process"

    @abstractmethod
    def call(self, number: int, method: str, *arguments) -> None:
        """Asks a worker for "hello", "work" or "drop"; see station.py. Never raises for a worker that is gone."""

    def tell(self, number: int, orders: Sequence[Order]) -> None:  # noqa: B027
        """May let a worker know of orders before the call that brings them, if other calls are still before that."""

    @abstractmethod
    def replies(self, seconds: float) -> list[Reply]:
        """What has been answered since. If nothing has, waits for something, for so many seconds at most."""

    @abstractmethod
    def kill(self, number: int) -> None:
        """Ends a worker that does not answer; a new one takes its place. Its open calls are not answered any more."""

    def stats(self, number: int, last: dict[str, float]) -> dict[str, float]:
        """A worker's stats; `last` are those of its last report."""
        return last

    def check(self) -> None:  # noqa: B027 (books in another process are its own to check)
        """Raises AssertionError if some worker's books do not balance."""

    def close(self) -> None:  # noqa: B027
        """Ends all workers."""


class LocalFleet(Fleet):
    """Workers in this process, one after another. `makers` make them, each one of them."""

    def __init__(self, makers: Sequence[Callable[[], Any]]):
        self.makers = makers
        self.stations = [Station(make(), LocalTransport()) for make in makers]
        self.answered: list[Reply] = []

    def call(self, number: int, method: str, *arguments) -> None:
        self.answered.append(Reply(number, getattr(self.stations[number], method)(*arguments)))

    def replies(self, seconds: float) -> list[Reply]:
        answered, self.answered = self.answered, []
        return answered

    def kill(self, number: int) -> None:
        self.stations[number] = Station(self.makers[number](), LocalTransport())

    def stats(self, number: int, last: dict[str, float]) -> dict[str, float]:
        return self.stations[number].worker.stats()

    def check(self) -> None:
        for station in self.stations:
            station.check()

"""NEW in 08: the workers as the router reaches them: it sends mail, and hears of events.

`LocalFleet` has its workers in this process and gives each one turn at a time, for the contract, for tests and for a
learner with a debugger. ray_fleet.py has them in processes of their own. To the router they are the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .kv_transport import LocalTransport
from .messages import Hello, Lost, Mail, Report
from .worker import Worker


class Event(NamedTuple):
    """News of one worker: it has started, it reports, or it is gone."""

    number: int
    news: Hello | Report | Lost


class Fleet(ABC):
    """Workers by number, from 0. Events of a lost worker never come after its successor's Hello."""

    description = "in this process"

    @abstractmethod
    def send(self, number: int, mail: Mail) -> None:
        """Send mail, without waiting. Mail to a lost worker is lost, too."""

    @abstractmethod
    def events(self, seconds: float) -> list[Event]:
        """Return all events since the last call; if there are none, wait up to `seconds` for the first."""

    def stats(self, number: int, last: dict[str, float]) -> dict[str, float]:
        """Return a worker's stats; `last` are those of its last heartbeat."""
        return last

    def check(self) -> None:  # noqa: B027 (another process checks its own bookkeeping)
        """Raise AssertionError if some worker's bookkeeping is inconsistent."""

    def close(self) -> None:  # noqa: B027
        """End all workers."""


class LocalFleet(Fleet):
    """Workers in this process, around the engines that `makers` return. Each call of `events` gives each one a turn."""

    def __init__(self, makers: Sequence[Callable[[], Any]]):
        self.makers = makers
        self.workers = [Worker(make(), LocalTransport()) for make in makers]
        self.due = [Event(number, worker.hello()) for number, worker in enumerate(self.workers)]

    def close(self) -> None:
        for worker in self.workers:
            worker.engine.close()

    def send(self, number: int, mail: Mail) -> None:
        """Have the worker read the mail now."""
        self.workers[number].read(mail)

    def events(self, seconds: float) -> list[Event]:
        """Give each worker one turn; return their reports, and in the first call their greetings too."""
        for number, worker in enumerate(self.workers):
            if report := worker.turn():
                self.due.append(Event(number, report))
        events, self.due = self.due, []
        return events

    def stats(self, number: int, last: dict[str, float]) -> dict[str, float]:
        """Return a worker's stats as they are now."""
        return self.workers[number].engine.stats()

    def check(self) -> None:
        for worker in self.workers:
            worker.check()

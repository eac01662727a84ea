"""Updates on their way from the engine's thread to the pages that are open.

Each reader has a queue of its own on the event loop. One that does not keep up is dropped: it connects again and is
told everything once more, instead of seeing what happened minutes ago.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

MOST_BEHIND = 150  # updates that wait for one reader: ten seconds
QUIET_SECONDS = 1.0  # with nothing new, a reader is told that the stream lives


class Reader:
    """One open page, or a recording. `put` is called on the event loop."""

    def __init__(self, feed: "Feed"):
        self.feed = feed
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.dropped = False

    def put(self, update: str) -> None:
        if self.queue.qsize() >= MOST_BEHIND:
            self.dropped = True
        else:
            self.queue.put_nowait(update)


class Feed:
    """`readers` and `newcomers` are for the engine's thread; `open` and `close` are for the event loop."""

    def __init__(self):
        self._readers: set[Reader] = set()  # replaced as a whole, never changed: two threads read it
        self._new: deque[Reader] = deque()

    @property
    def readers(self) -> int:
        return len(self._readers)

    def open(self) -> Reader:
        reader = Reader(self)
        self._new.append(reader)
        self._readers = self._readers | {reader}
        return reader

    def close(self, reader: Reader) -> None:
        self._readers = self._readers - {reader}

    def newcomers(self) -> list[Reader]:
        """Return those that have been told nothing yet. They are told with `welcome`."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def publish(self, update: str, readers: Iterable[Reader]) -> None:
        """Send an update to these readers, from the engine's thread. A loop that has ended has no readers any more."""
        for reader in readers:
            if not reader.loop.is_closed():
                reader.loop.call_soon_threadsafe(reader.put, update)

    def all_but(self, newcomers: Iterable[Reader]) -> set[Reader]:
        return self._readers.difference(newcomers)


async def updates(reader: Reader) -> AsyncIterator[str | None]:
    """Yield each update for one reader, and None after each second without one; end when the reader is too slow."""
    try:
        while not reader.dropped:
            try:
                yield await asyncio.wait_for(reader.queue.get(), QUIET_SECONDS)
            except asyncio.TimeoutError:  # noqa: UP041 (another class than TimeoutError on Python 3.10)
                yield None
    finally:
        reader.feed.close(reader)

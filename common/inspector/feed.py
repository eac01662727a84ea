"""Updates on their way from the engine's thread to those that read them: pages that are open, and a recording."""

import asyncio
from collections.abc import AsyncIterator

MAX_BEHIND = 150  # updates that wait for one page: ten seconds
MAX_RECORDED = 200 << 20  # bytes of uncompressed updates: a recording ends there
QUIET_SECONDS = 1.0  # Without news, a page is told this often that the stream lives.


class Page:
    """An open page: a queue on the event loop. One that does not keep up is dropped.

    It connects again and is told everything once more, instead of seeing what happened minutes ago.
    """

    def __init__(self):
        self.is_new = True  # has been told nothing yet
        self.dropped = False
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def tell(self, update: str) -> None:
        """Put an update into the queue, from the engine's thread. A loop that has ended reads no more."""
        self.is_new = False
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, update)

    def _put(self, update: str) -> None:
        if self._queue.qsize() >= MAX_BEHIND:
            self.dropped = True
        else:
            self._queue.put_nowait(update)

    async def updates(self) -> AsyncIterator[str | None]:
        """Yield each update, and None after each second without one; end when the page is too slow."""
        while not self.dropped:
            try:
                yield await asyncio.wait_for(self._queue.get(), QUIET_SECONDS)
            except asyncio.TimeoutError:  # noqa: UP041 (another class than TimeoutError on Python 3.10)
                yield None


class Tape:
    """A recording: it keeps the line with which the stream begins, and every update."""

    def __init__(self, hello: str):
        self.is_new, self.lines, self._bytes = True, [hello], 0

    def tell(self, update: str) -> None:
        self.is_new = False
        if self._bytes < MAX_RECORDED:
            self.lines.append(update)
            self._bytes += len(update)

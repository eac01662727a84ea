"""Record what a page is told, and write it as one HTML file that replays it without a server."""

import asyncio
import base64
import json
import zlib
from pathlib import Path
from typing import Any

from .document import boot_of, document
from .feed import Feed, updates

MOST_BYTES = 200 << 20  # of updates, before they are compressed: then the recording ends


class Recording:
    """Reads a feed like any page does, from `start` to `write`. hello: with which its stream begins."""

    def __init__(self, feed: Feed, hello: dict[str, Any]):
        self.feed, self.lines, self.bytes = feed, [json.dumps(hello)], 0
        self._task: asyncio.Task | None = None

    def start(self) -> None:
        """Start to read the feed. Call it on the event loop."""
        self._task = asyncio.create_task(self._read())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _read(self) -> None:
        while self.bytes < MOST_BYTES:  # a reader that was too slow is told everything again
            async for update in updates(self.feed.open()):
                if update is not None and self.bytes < MOST_BYTES:
                    self.lines.append(update)
                    self.bytes += len(update)


def write_recording(path: Path, recordings: list[list[str]]) -> None:
    """Write one engine's lines, or those of two side by side."""
    streams = [f"[{','.join(lines)}]" for lines in recordings]
    packed = base64.b64encode(zlib.compress(f"[{','.join(streams)}]".encode(), 9)).decode()
    path.write_text(document({"recording": packed}), encoding="utf-8")


def read_recording(path: Path) -> list[list[Any]]:
    """Return for each engine of a file that `write_recording` wrote its hello and its updates."""
    packed = boot_of(path.read_text(encoding="utf-8"))["recording"]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def renew(path: Path) -> None:
    """Put a recording into the page as it is now."""
    path.write_text(document(boot_of(path.read_text(encoding="utf-8"))), encoding="utf-8")

"""A folder of pages, which outlives the server and which several servers may share.

Each page is a file of its own, named by its prefix (kv_tiers.py), in the format safetensors, with a checksum over its
name and its numbers. It is written beside its place and renamed, so that no reader sees half of it. A file that is torn,
from elsewhere or forged does not have the checksum, the shape or the type, and is ignored; whoever may write to the
folder may also write checksums, so it is as trusted as weights are. The files that were used least recently are removed
when they take more than `most_bytes`; a file's time of modification says when it was used.
"""

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

ENDING = ".kv"
HEADER_BYTES = 4096  # more than the head of a file takes
LOOK_SECONDS = 5.0  # between two looks at what other servers have written
MOST_WAITING = 256  # pages that wait to be written; more are dropped, since an engine does not wait for a disk

log = logging.getLogger(__name__)


class Disk:
    """The files of pages with these shapes and this type. `write` and `read` return at once; a thread does the work."""

    def __init__(self, folder: Path, most_bytes: int, shapes: list[tuple[int, ...]], dtype: torch.dtype):
        self.folder, self.most_bytes, self.shapes, self.dtype = folder, most_bytes, shapes, dtype
        self.page_bytes = sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
        folder.mkdir(parents=True, exist_ok=True)
        self.known: set[bytes] = set()
        self.total, self.waiting, self.dropped = 0, 0, 0
        self.thread = ThreadPoolExecutor(1, "kv-disk")
        self.closed = threading.Event()
        self.look()
        self.looking = threading.Thread(target=self.look_again, name="kv-disk-look", daemon=True)
        self.looking.start()

    def __contains__(self, name: bytes) -> bool:
        return name in self.known

    def path(self, name: bytes) -> Path:
        return self.folder / f"{name.hex()}{ENDING}"

    def write(self, name: bytes, parts: list[Tensor]) -> None:
        """Write a page soon; parts: its own from now on."""
        if self.waiting >= MOST_WAITING:
            self.dropped += 1
            return
        self.waiting += 1
        self.known.add(name)
        self.thread.submit(self._write, name, parts)

    def read(self, name: bytes) -> "Future[list[Tensor] | None]":
        """Return what will be the parts of a page, or None if its file is not as it was written."""
        return self.thread.submit(self._read, name)

    def _write(self, name: bytes, parts: list[Tensor]) -> None:
        self.waiting -= 1
        path = self.path(name)
        beside = path.with_suffix(f".{os.getpid()}")
        try:
            tensors = {str(number): part for number, part in enumerate(parts)}
            save_file(tensors, beside, {"checksum": checksum(name, parts)})
            os.replace(beside, path)
            self.known.add(name)  # again: `look` may have come between
            self.total += path.stat().st_size
            if self.total > self.most_bytes:
                self.remove_oldest()
        except OSError as error:  # a full disk, a folder that has gone
            self.known.discard(name)
            log.warning("a page was not written to %s: %s", self.folder, error.strerror)
            with suppress(OSError):
                beside.unlink()

    def _read(self, name: bytes) -> list[Tensor] | None:
        path = self.path(name)
        try:
            if path.stat().st_size > self.page_bytes + HEADER_BYTES:
                raise ValueError("it is too large")
            with safe_open(path, "pt") as file:
                parts = [file.get_tensor(str(number)) for number in range(len(self.shapes))]
                written = (file.metadata() or {}).get("checksum")
            if [tuple(part.shape) for part in parts] != self.shapes or {part.dtype for part in parts} != {self.dtype}:
                raise ValueError("it holds another kind of page")
            if written != checksum(name, parts):
                raise ValueError("its checksum is another")
            os.utime(path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            self.known.discard(name)
            if not isinstance(error, FileNotFoundError):  # which another server may have removed
                log.warning("%s is ignored: %s", path.name, error)
                with suppress(OSError):
                    path.unlink()
            return None
        return parts

    def look(self) -> None:
        """Note which pages are there, and how much they take."""
        known, total = set(), 0
        for entry in os.scandir(self.folder):
            with suppress(OSError, ValueError):
                if entry.name.endswith(ENDING):
                    known.add(bytes.fromhex(entry.name.removesuffix(ENDING)))
                    total += entry.stat().st_size
        self.known, self.total = known, total

    def look_again(self) -> None:
        while not self.closed.wait(LOOK_SECONDS):
            with suppress(OSError, RuntimeError):
                self.thread.submit(self.look).result()

    def remove_oldest(self) -> None:
        """Remove what was used least recently, down to nine tenths of what is allowed."""
        files = []
        for entry in os.scandir(self.folder):
            with suppress(OSError):
                if entry.name.endswith(ENDING):
                    files.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
        self.total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if self.total <= 0.9 * self.most_bytes:
                break
            with suppress(OSError):
                os.unlink(path)
            self.total -= size
        self.look()

    def stats(self) -> dict[str, float]:
        return {"kv_disk_bytes": self.total, "kv_disk_pages_dropped": self.dropped}

    def close(self) -> None:
        """Wait until everything is written."""
        self.closed.set()
        self.thread.shutdown()


def checksum(name: bytes, parts: list[Tensor]) -> str:
    found = blake2b(name, digest_size=16)
    for part in parts:
        found.update(part.contiguous().view(torch.uint8).numpy())
    return found.hexdigest()

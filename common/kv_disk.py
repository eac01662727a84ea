"""A folder of pages, which outlives the server and which several servers may share.

Each page is a file of its own, named by its prefix (kv_tiers.py), in the format safetensors, with a checksum over its
name and its numbers. It is written beside its place and renamed, so that no reader sees half of it. A file that is
torn, from elsewhere or damaged does not have the checksum, the shape or the type, and is removed. A user who may write
to the folder may write checksums too, so it is as trusted as weights are. The files that were used least recently are
removed when all take more than `most_bytes`; a file's time of modification says when it was used.
"""

import logging
import os
import re
import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from .errors import InvalidInput

OURS = re.compile(r"[0-9a-f]{64}\.(kv|[0-9a-f]{8}\.part)")
HEADER_BYTES = 4096  # bytes: a file's header takes less
MAX_WAITING = 256  # pages that wait to be written; more are dropped, since an engine does not wait for a disk
READERS = 4  # threads: a checksum takes longer than a read
KEPT_SHARE, LOOK_SHARE = 0.9, 0.02  # of `most_bytes`: kept when files are removed; written before the next look

log = logging.getLogger(__name__)


class Disk:
    """The files of pages with these shapes and this type. `write` and `read` return at once; threads do the work.

    Raise InvalidInput if the folder cannot be made or has no room for a page. Reads do not wait for writes.
    """

    def __init__(self, folder: Path, most_bytes: int, shapes: list[tuple[int, ...]], dtype: torch.dtype):
        self.folder, self.most_bytes, self.shapes, self.dtype = folder, most_bytes, shapes, dtype
        self.page_bytes = sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"no pages can be kept in {folder} ({error.strerror}): give another --kv-disk"
            raise InvalidInput(message) from error
        if self.slots < 1:
            raise InvalidInput(f"a page takes {self.page_bytes:,} bytes: give a larger --kv-disk-memory")
        self.room = threading.BoundedSemaphore(MAX_WAITING)
        self.bytes = self.unseen = 0  # found by the last look; written since
        self.fails = False
        self.writer, self.reader = ThreadPoolExecutor(1, "kv-writer"), ThreadPoolExecutor(READERS, "kv-reader")
        self.writer.submit(self._look)

    def __contains__(self, name: bytes) -> bool:
        return os.path.isfile(self.path(name))

    def path(self, name: bytes) -> Path:
        return self.folder / f"{name.hex()}.kv"

    def write(self, name: bytes, parts: list[Tensor], wait: bool = False) -> None:
        """Queue a page; `parts` must not change any more. wait: if the queue is full; otherwise drop it."""
        if self.room.acquire(blocking=wait):
            self.writer.submit(self._write, name, parts)

    def touch(self, name: bytes) -> None:
        """Note that a page is used, if this process may change its file."""
        with suppress(OSError):
            os.utime(self.path(name))

    def read(self, name: bytes) -> "Future[list[Tensor] | None]":
        """Return what will be the parts of a page, or None if its file is not as it was written."""
        return self.reader.submit(self._read, name)

    def _write(self, name: bytes, parts: list[Tensor]) -> None:
        self.room.release()
        path = self.path(name)
        beside = path.with_suffix(f".{secrets.token_hex(4)}.part")
        try:
            beside.write_bytes(save({"checksum": checksum(name, parts), **dict(zip("kv", parts, strict=True))}))
            os.replace(beside, path)
            self.fails = False
            self.unseen += self.page_bytes
            if self.unseen > LOOK_SHARE * self.most_bytes or self.bytes + self.unseen > self.most_bytes:
                self._look()
        except OSError as error:  # a full disk, or a removed folder
            if not self.fails:
                log.warning("no pages are written to %s until there is room: %s", self.folder, error)
            self.fails = True
            with suppress(OSError):
                beside.unlink()

    def _read(self, name: bytes) -> list[Tensor] | None:
        path = self.path(name)
        try:
            with path.open("rb") as file:
                found = load(file.read(self.page_bytes + HEADER_BYTES))  # a longer file is no page
            parts = [found["k"], found["v"]]
            if [(tuple(part.shape), part.dtype) for part in parts] != [(shape, self.dtype) for shape in self.shapes]:
                raise ValueError("it holds another kind of page")
            if not torch.equal(found["checksum"], checksum(name, parts)):
                raise ValueError("its checksum is another")
            self.touch(name)
            return parts
        except OSError:  # another server may have removed it
            return None
        except Exception as error:  # A file may hold anything.
            log.warning("%s is removed and its page computed: %s", path.name, error)
            with suppress(OSError):
                path.unlink()
            return None

    def _look(self) -> None:
        """Add up what all servers have written, and remove what was used least recently if it is too much."""
        files, self.unseen = [], 0
        for entry in os.scandir(self.folder):
            with suppress(OSError):  # another server may have removed it
                if OURS.fullmatch(entry.name):
                    files.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
        self.bytes = sum(size for _, size, _ in files)
        most = self.most_bytes if self.bytes <= self.most_bytes else KEPT_SHARE * self.most_bytes
        for _, size, path in sorted(files):
            if self.bytes <= most:
                break
            with suppress(OSError):
                os.unlink(path)
            self.bytes -= size

    @property
    def pages(self) -> int:
        """Return about how many pages all servers have here."""
        return (self.bytes + self.unseen) // self.page_bytes

    @property
    def slots(self) -> int:
        return self.most_bytes // self.page_bytes

    def close(self) -> None:
        """Wait until everything is written."""
        self.writer.shutdown()
        self.reader.shutdown()


def checksum(name: bytes, parts: list[Tensor]) -> Tensor:
    """Return a hash of a page under its name, uint8 `[16]`."""
    found = blake2b(name, digest_size=16)
    for part in parts:
        found.update(part.contiguous().view(torch.uint8).numpy())
    return torch.tensor(list(found.digest()), dtype=torch.uint8)

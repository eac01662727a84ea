"""Pages beside the device's memory: what the prefix tree evicts stays on the host and on disk, and comes back.

Agents and chats return to a text after minutes. By then its pages have been evicted, and all of it would be computed
again. A page that comes back costs its bytes at the rate of a copy; one that is computed costs its tokens at the rate
of a prefill, some ten times as much. vLLM has this as KV offloading, and LMCache (Cheng et al., 2025) as a store that
engines share.

A page is named by all that its K and V depend on: the model, the types, the page size, and every token up to its end
(a chain of hashes, BLAKE2b, of 256 bits). So what is found under a name is right for whoever asks. On a CPU a second
pool in the same memory would be a cheat, so there pages are kept in 8 bits (attention/int8.py), which take a half or a
quarter; `exact` keeps them as they are.
"""

import argparse
import time
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attention.int8 import dequantize, quantize
from .errors import InvalidInput
from .kv_disk import Disk
from .loader import Loaded
from .memory import parse_bytes
from .model import SCALE_BYTES
from .token_budget import pass_seconds

NAME_BYTES = 32
SAMPLES, SAMPLE_BYTES = 256, 4096  # of each file
MEASURED = 256  # tokens


def name_of(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the name of a page with these tokens, behind the page with the name `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=NAME_BYTES).digest()


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Add the options that `make_tiers` needs."""
    parser.add_argument("--kv-host-memory", metavar="SIZE", help="for evicted pages, beside the device's (default: none)")
    parser.add_argument("--kv-disk", metavar="FOLDER", type=Path, help="for pages that outlive the server")
    parser.add_argument("--kv-disk-memory", metavar="SIZE", default="10G", help="of that folder (default: 10G)")


def make_tiers(
    loaded: Loaded,
    pools: list[Tensor],
    page_size: int,
    kv_host_memory: int | str | None,
    kv_disk: Path | None,
    kv_disk_memory: int | str,
) -> tuple["Tiers | None", str]:
    """Return the tiers that were asked for, None if none were or a copy takes longer than to compute; and a note.

    pools: as for `Tiers`. Raise InvalidInput if they cannot be had.
    """
    if kv_host_memory is None:
        if kv_disk is not None:
            raise InvalidInput("--kv-disk needs memory on the host to read to: give --kv-host-memory, too")
        return None, ""
    tiers = Tiers(pools, page_size, root_name(loaded, page_size), parse_bytes(kv_host_memory))
    copied, computed = tiers.page_seconds(), pass_seconds(loaded, MEASURED, times=2) * page_size / MEASURED
    note = f", a page is copied from the host in {1e3 * copied:.2f} ms and computed in {1e3 * computed:.2f}"
    if copied >= computed:
        return None, f"{note}: so none is kept there"
    if kv_disk is not None:
        shapes = [tuple(host.shape[1:]) for host in tiers.host]
        tiers.disk = Disk(kv_disk, parse_bytes(kv_disk_memory), shapes, tiers.host[0].dtype)
    return tiers, f"{note}: {tiers.slots * page_size:,} tokens are kept there{' in 8 bits' * tiers.narrows}"


def root_name(loaded: Loaded, page_size: int) -> bytes:
    """Return the name of the empty text: a hash of what K and V depend on beside the text. Files are read in samples."""
    facts = loaded.config, loaded.dtype, loaded.kv_dtype, loaded.quantization, page_size
    found = blake2b(repr(facts).encode(), digest_size=NAME_BYTES)
    files = [loaded.folder] if loaded.folder.is_file() else sorted(loaded.folder.glob("*.safetensors"))
    for file in files:
        size = file.stat().st_size
        found.update(size.to_bytes(8, "big"))
        with file.open("rb") as opened:
            for sample in range(SAMPLES):
                opened.seek(size * sample // SAMPLES)
                found.update(opened.read(SAMPLE_BYTES))
    return found.digest()


class Restoring(NamedTuple):
    """Pages of one sequence that are being read from disk."""

    reads: list[Future]
    pages: Sequence[int]

    def done(self) -> bool:
        return all(read.done() for read in self.reads)


class Tiers:
    """The pages of one engine that are not on its device. One thread uses this, the engine's.

    pools: the device's pages, `[pages, ...]` with rows of D numbers as the last dimension, one for each tensor that a
    page has a part of. root: the name of the empty text, see `name_of`. host_bytes: of the host's memory. exact: keep
    the pools' type on a CPU, too. Raise InvalidInput if not even one page fits in.
    """

    def __init__(
        self, pools: list[Tensor], page_size: int, root: bytes, host_bytes: int, exact: bool = False
    ):
        self.pools, self.page_size, self.root = pools, page_size, root
        self.disk: Disk | None = None
        self.on_gpu = pools[0].is_cuda
        self.narrows = not (self.on_gpu or exact or pools[0].dtype == torch.int8)
        shapes = [pool.shape[1:] for pool in pools]
        if self.narrows:
            shapes = [(*shape[:-1], shape[-1] + SCALE_BYTES) for shape in shapes]
        dtype = torch.int8 if self.narrows else pools[0].dtype
        self.page_bytes = sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
        self.slots = host_bytes // self.page_bytes
        if self.slots < 1:
            raise InvalidInput(f"a page takes {self.page_bytes:,} bytes: give a larger --kv-host-memory")
        # Memory that is never written is not taken from the system, but for pinned memory, which is taken at once.
        self.host = [torch.empty((self.slots, *shape), dtype=dtype, pin_memory=self.on_gpu) for shape in shapes]
        self.free = list(range(self.slots))[::-1]
        self.kept: OrderedDict[bytes, int] = OrderedDict()  # names and slots, the least recently used first
        self.names: dict[Any, bytes] = {}  # of nodes in the tree
        self.stream = torch.cuda.Stream(pools[0].device) if self.on_gpu else None
        self.hits = {"host": 0, "disk": 0}  # tokens, ever
        self.bytes_out = self.bytes_in = 0  # ever: from the device, and to it

    # ---- From the device ----

    def keep(self, node: Any) -> None:
        """Copy the page of a node that leaves the tree."""
        name = self.name(node)
        del self.names[node]
        if name in self.kept:
            self.kept.move_to_end(name)
            return
        slot = self.free.pop() if self.free else self.kept.popitem(last=False)[1]
        self.kept[name] = slot
        with self.copying():
            for pool, host in zip(self.pools, self.host, strict=True):
                page = pool[node.page]
                host[slot].copy_(quantize(page) if self.narrows else page, non_blocking=True)
        self.bytes_out += self.page_bytes
        if self.disk is not None and name not in self.disk:
            if self.on_gpu:
                self.stream.synchronize()
            self.disk.write(name, [host[slot].clone() for host in self.host])

    def name(self, node: Any) -> bytes:
        """Return the name of a node's page."""
        unnamed = []
        while node.parent is not None and node not in self.names:
            unnamed.append(node)
            node = node.parent
        name = self.root if node.parent is None else self.names[node]
        for node in reversed(unnamed):
            name = self.names[node] = name_of(name, node.tokens)
        return name

    # ---- Back to it ----

    def restore(self, sequence: Any) -> None:
        """Fill pages of a sequence behind those that it found in the tree, and count their tokens as computed.

        What lies on disk is read meanwhile: then `sequence.restoring` says so, until `finish` has filled them. The last
        token is always left to be computed, since its logits are wanted.
        """
        table, size, request = sequence.page_table, self.page_size, sequence.request
        name = self.name(table.path[-1]) if table.path else self.root
        reads: list[Future] = []
        while request.num_tokens - (start := sequence.computed + size * len(reads)) > size:
            name = name_of(name, request.token_ids_between(start, start + size))
            page = table.pages[start // size]
            if name in self.kept and not reads:
                self.kept.move_to_end(name)
                self.fill(page, [host[self.kept[name]] for host in self.host])
                self.count(sequence, "host")
            elif self.disk is not None and name in self.disk:
                reads.append(self.disk.read(name))
            else:
                break
        if reads:
            first = sequence.computed // size
            sequence.restoring = Restoring(reads, table.pages[first : first + len(reads)])

    def finish(self, sequences: Collection[Any]) -> None:
        """Fill what has been read for sequences that wait; wait with them if no other sequence can run meanwhile.

        Behind a file that cannot be used, pages are computed.
        """
        restoring = [sequence for sequence in sequences if sequence.restoring]
        for sequence in restoring:
            if len(restoring) < len(sequences) and not sequence.restoring.done():
                continue
            found, sequence.restoring = sequence.restoring, None
            for read, page in zip(found.reads, found.pages, strict=True):
                if (parts := read.result()) is None:
                    break
                self.fill(page, parts)
                self.count(sequence, "disk")

    def fill(self, page: int, parts: list[Tensor]) -> None:
        with self.copying():
            for pool, part in zip(self.pools, parts, strict=True):
                pool[page].copy_(dequantize(part, pool.dtype) if self.narrows else part, non_blocking=True)
        self.bytes_in += self.page_bytes

    def count(self, sequence: Any, tier: str) -> None:
        sequence.computed += self.page_size
        sequence.request.cached_tokens += self.page_size
        self.hits[tier] += self.page_size

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Copy beside the GPU's kernels: behind those it has been given, and before those it is given next."""
        if self.stream is None:
            yield
            return
        kernels = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(kernels)
        with torch.cuda.stream(self.stream):
            yield
        kernels.wait_stream(self.stream)

    # ---- What it is worth ----

    def page_seconds(self) -> float:
        """Return how long one page takes from the host to the device, measured with the pools' first page."""
        parts, start = [host[0] for host in self.host], 0.0
        for part in parts:
            part.zero_()
        for _ in range(3):  # the first is slower
            start = time.perf_counter()
            self.fill(0, parts)
            if self.on_gpu:
                self.stream.synchronize()
        return time.perf_counter() - start

    def stats(self) -> dict[str, float]:
        return {
            "kv_host_tokens": len(self.kept) * self.page_size,
            "kv_host_tokens_capacity": self.slots * self.page_size,
            **{f"kv_{tier}_tokens_hit": tokens for tier, tokens in self.hits.items()},
            "kv_bytes_to_host": self.bytes_out,
            "kv_bytes_from_host": self.bytes_in,
        } | (self.disk.stats() if self.disk else {})

    def close(self, nodes: Sequence[Any]) -> None:
        """Write what the tree and the host hold to disk, if there is one: the next server finds it."""
        if self.disk is None:
            return
        for node in nodes:
            self.keep(node)
        self.disk.close()

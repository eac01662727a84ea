"""Pages beside the device's memory: what is evicted there stays on the host and on disk, and comes back.

Agents and chats return to a text after minutes. By then its pages have been evicted, and all of it would be computed
again. A page that comes back costs its bytes at the rate of a copy; one that is computed costs its tokens at the rate
of a prefill. vLLM has this as KV offloading, SGLang as HiCache, and LMCache (Cheng et al., 2025) as a store that
engines share.

A page is named by all that its K and V depend on: the model, the types, the page size, and every token up to its end
(a chain of hashes, BLAKE2b, of 256 bits). So what is found under a name is right for every request. On a CPU a second
pool in the same memory would just be a larger pool, so there pages are kept in 8 bits (attention/int8.py), which take a
half or a quarter.

The stages call this in two places: to evict pages `evict` and `copy_evicted`, or `keep_all`; to admit a request `ready`
and `restore`.
"""

import time
from array import array
from collections import OrderedDict, deque
from concurrent.futures import Future
from hashlib import blake2b
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .engine import BaseEngine
from .errors import InvalidInput
from .kv_copies import Copies, GpuCopies
from .kv_disk import Disk
from .loader import Loaded
from .memory import parse_bytes
from .model import SCALE_BYTES
from .request import Request, page_key
from .terminal import note
from .token_budget import pass_seconds

NAME_BYTES = 32
SAMPLES, SAMPLE_BYTES = 256, 4096  # of each file of weights
MEASURED = 64  # pages


class TierOptions(NamedTuple):
    """Bytes of the host's memory, a folder, and bytes in it: numbers, or texts such as "2G"; None: not used."""

    host_memory: int | str | None = None
    disk: Path | None = None
    disk_memory: int | str = "10G"


NO_TIERS = TierOptions()


def add_tiers(engine: BaseEngine, options: TierOptions) -> str:
    """Give an engine the tiers that `options` ask for, if a copy is faster than computing; return a note.

    Raise InvalidInput if this engine cannot have them.
    """
    if options.host_memory is None:
        if options.disk is not None:
            raise InvalidInput("what comes from --kv-disk goes through the host's memory: give --kv-host-memory, too")
        return ""
    loaded, scheduler = engine.loaded, engine.scheduler
    if not hasattr(scheduler, "tiers"):
        raise InvalidInput("--kv-host-memory keeps pages, which stages 05 to 08 have: leave it out")
    if loaded.shard.ranks > 1:
        raise InvalidInput("ranks decide alike, and copies end when they end: leave out --kv-host-memory")
    pools = [pool.transpose(0, 1) for pool in (engine.cache.k, engine.cache.v)]
    size, tree = scheduler.allocator.page_size, getattr(scheduler.allocator, "tree", None)
    tiers = Tiers(pools, size, root_name(loaded, size), parse_bytes(options.host_memory), tree)
    tokens = min(scheduler.token_budget, loaded.config.context_length)
    copied, computed = tiers.page_seconds(), pass_seconds(loaded, tokens, times=2) * size / tokens
    times = f"a page is copied from the host in {1e3 * copied:.2f} ms and computed in {1e3 * computed:.2f}"
    if copied >= computed:
        return f"{times}, so the host keeps none"
    if options.disk is not None:
        tiers.disk = Disk(options.disk, parse_bytes(options.disk_memory), tiers.shapes, tiers.host[0].dtype)
    engine.tiers = scheduler.tiers = tiers
    if tree is not None:
        tree.tiers = tiers
    return f"{times}; the host keeps {tiers.slots * size:,} tokens{' in 8 bits' * tiers.narrows}"


def root_name(loaded: Loaded, page_size: int) -> bytes:
    """Return the name of the empty text: a hash of what K and V depend on beside the text, and of how pages are kept.

    Files of weights count with their time of modification, their size and samples of their contents.
    """
    facts = loaded.config, loaded.dtype, loaded.kv_dtype, loaded.quantization, loaded.device.type, page_size
    found = blake2b(repr(facts).encode(), digest_size=NAME_BYTES)
    if loaded.folder is None:  # weights made up at random, from one seed
        return found.digest()
    files = [loaded.folder] if loaded.folder.is_file() else sorted(loaded.folder.glob("*.safetensors"))
    for file in files:
        size = file.stat().st_size
        found.update(repr((size, file.stat().st_mtime_ns)).encode())
        with file.open("rb") as opened:
            for sample in range(SAMPLES):
                opened.seek(size * sample // SAMPLES)
                found.update(opened.read(SAMPLE_BYTES))
    return found.digest()


class Tiers:
    """The pages of one engine that are not on its device. One thread uses this, the engine's.

    pools: the device's pages, `[pages, ...]` with rows of D numbers as the last dimension, one for each tensor that a
    page has a part of. root: the name of the empty text, see `name_of`. host_bytes: of the host's memory. tree: of the
    pages on the device, if the stage has one. exact: keep the pools' type on a CPU, too. Raise InvalidInput if not even
    one page fits in.
    """

    def __init__(
        self,
        pools: list[Tensor],
        page_size: int,
        root: bytes,
        host_bytes: int,
        tree: Any = None,
        exact: bool = False,
    ):
        self.page_size, self.root, self.tree = page_size, root, tree
        self.disk: Disk | None = None
        on_gpu = pools[0].is_cuda
        self.narrows = not (on_gpu or exact or pools[0].dtype == torch.int8)
        extra, dtype = (SCALE_BYTES, torch.int8) if self.narrows else (0, pools[0].dtype)
        self.shapes = [(*pool.shape[1:-1], pool.shape[-1] + extra) for pool in pools]
        self.page_bytes = sum(torch.Size(shape).numel() for shape in self.shapes) * dtype.itemsize
        self.slots = host_bytes // self.page_bytes
        if self.slots < 1:
            raise InvalidInput(f"a page takes {self.page_bytes:,} bytes: give a larger --kv-host-memory")
        # The system provides memory when it is first written to, but pinned memory at once.
        self.host = [torch.empty((self.slots, *shape), dtype=dtype, pin_memory=on_gpu) for shape in self.shapes]
        self.copies = GpuCopies(pools, self.host) if on_gpu else Copies(pools, self.host, self.narrows)
        self.free = list(range(self.slots))[::-1]
        self.kept: OrderedDict[bytes, int] = OrderedDict()  # names and slots, the least recently used first
        self.names: dict[Any, bytes] = {}  # of nodes in the tree
        self.leaving: dict[int, int] = {}  # slots, and the pages that are to be copied there
        self.unwritten: list[bytes] = []  # names of pages for the disk
        self.copied: deque[tuple[bytes, torch.cuda.Event | None]] = deque()  # to be written, each after its event
        self.reading: tuple[str, dict[bytes, Future]] = ("", {})  # from disk: the id of the request, its pages by name
        self.asked = self.host_tokens = self.disk_tokens = 0  # in total: wanted, copied from the host, read from disk
        self.bytes_out = self.bytes_in = 0  # in total: from the device, to it

    # ---- From the device ----

    def evict(self, node: Any) -> None:
        """Keep the page of a node that leaves the tree. Call `copy_evicted` after the last one."""
        self.keep(self.name(node), node.page)
        del self.names[node]

    def keep_all(self, sequence: Any) -> None:
        """Keep the full pages of a sequence that is preempted, where there is no tree to hold them."""
        sequence.request.preempted = True  # Pages that it finds when it returns are no hits.
        names = self.chain(sequence.request, sequence.computed)
        for name, page in reversed([*zip(names, sequence.page_table.pages, strict=False)]):  # the first is used last
            self.keep(name, page)
        self.copy_evicted()

    def keep(self, name: bytes, page: int) -> None:
        if name in self.kept:
            self.kept.move_to_end(name)
        else:
            slot = self.make_room()
            self.leaving[slot] = page
            self.kept[name] = self.free.pop()
            self.bytes_out += self.page_bytes
        if self.disk is not None:
            self.unwritten.append(name)

    def make_room(self) -> int:
        """Return the slot that the next page gets: a free one, or that of the page that was used least recently."""
        if not self.free:
            self.free.append(self.kept.popitem(last=False)[1])
        self.leaving.pop(self.free[-1], None)  # An interrupted call may have left it.
        return self.free[-1]

    def copy_evicted(self, wait: bool = False) -> None:
        """Copy to the host, and to disk, what is to be kept, before its pages are written to.

        wait: until all are copied, and have room in the queue for the disk.
        """
        if self.leaving:
            self.copies.leave(self.leaving)
            self.leaving = {}
        if self.disk is not None:
            if self.unwritten:
                left = self.copies.left()
                self.copied += [(name, left) for name in self.unwritten]
                self.unwritten = []
            self.write_copied(wait)

    def write_copied(self, wait: bool) -> None:
        """Write to disk the pages that have arrived on the host."""
        while self.copied and (wait or self.copied[0][1] is None or self.copied[0][1].query()):
            name, left = self.copied.popleft()
            if left is not None:
                left.synchronize()
            if name in self.disk:
                self.disk.touch(name)
            elif name in self.kept:
                self.copies.arrived(self.kept[name])  # it may have got another slot since
                self.disk.write(name, [host[self.kept[name]].clone() for host in self.host], wait)

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

    def chain(self, request: Request, tokens: int) -> list[bytes]:
        """Return the names of the full pages of a request's first tokens."""
        names, size = [self.root], self.page_size
        for start in range(0, tokens - size + 1, size):
            names.append(name_of(names[-1], page_key(request.token_ids_between(start, start + size))))
        return names[1:]

    # ---- Back to it ----

    def ready(self, request: Request, wait: bool) -> bool:
        """Begin to read from disk what a request that is to be admitted needs; return whether the host has it.

        wait: until it has, since nothing else can run. Pages after a file that cannot be used are computed.
        """
        if self.reading[0] != request.request_id:
            names = self.wanted(request)
            for name in names:
                if name in self.kept:
                    self.kept.move_to_end(name)
            on_disk = [name for name in names if name not in self.kept]
            self.reading = request.request_id, {name: self.disk.read(name) for name in on_disk}
        reads = self.reading[1]
        if not wait and not all(read.done() for read in reads.values()):
            return False
        if reads:
            self.copies.wait()  # The slots to be filled may still be copied from.
        for name, read in reads.items():
            if name not in self.kept and (found := read.result()) is not None:
                slot = self.make_room()
                for host, part in zip(self.host, found, strict=True):
                    host[slot].copy_(part)
                self.kept[name] = self.free.pop()
                self.disk_tokens += self.page_size
        self.reading = request.request_id, {}
        return True

    def wanted(self, request: Request) -> list[bytes]:
        """Return the names of the pages that a request lacks on the device and that are elsewhere, the last one first.

        A page is worth nothing without those before it, so they are used last: then they are evicted last.
        """
        node, names = self.tree and self.tree.root, []
        for place, name in enumerate(self.chain(request, request.num_tokens - 1)[: self.slots]):
            if node is not None:
                start = place * self.page_size
                node = node.children.get(page_key(request.token_ids_between(start, start + self.page_size)))
            if node is None:
                if name not in self.kept and not (self.disk and name in self.disk):
                    break
                names.append(name)
        return names[::-1]

    def restore(self, sequence: Any) -> None:
        """Fill a sequence's pages behind those that it found in the tree, and count their tokens as computed.

        The last token is always left to be computed, since its logits are wanted.
        """
        request, first = sequence.request, sequence.computed // self.page_size
        names = self.chain(request, request.num_tokens - 1)[first:]
        found = list(takewhile(self.kept.__contains__, names))
        slots = [self.kept[name] for name in found]
        if found:
            self.copies.come(dict(zip(slots, sequence.page_table.pages[first:], strict=False)))
            self.bytes_in += len(found) * self.page_bytes
        self.reading = "", {}  # After a preemption it is looked up again.
        tokens = len(found) * self.page_size
        self.asked += request.num_tokens - sequence.computed
        self.host_tokens += tokens
        sequence.computed += tokens
        if not (request.preempted or request.token_ids):  # Otherwise it may have computed them itself.
            request.cached_tokens += tokens

    # ---- What it is worth ----

    def page_seconds(self) -> float:
        """Return how long a page takes from the host to the device, measured with the first pages of both."""
        pages, start = {place: place for place in range(min(MEASURED, self.slots, len(self.copies.pools[0])))}, 0.0
        for host in self.host:
            host[: len(pages)].zero_()
        for _ in range(3):  # the first is slower
            start = time.perf_counter()
            self.copies.come(pages)
            self.copies.wait()
        return (time.perf_counter() - start) / len(pages)

    def stats(self) -> dict[str, float]:
        pages = {"host": (len(self.kept), self.slots)}
        if self.disk:
            pages["disk"] = self.disk.pages, self.disk.slots
        return {
            **{f"kv_{tier}_tokens": kept * self.page_size for tier, (kept, _) in pages.items()},
            **{f"kv_{tier}_tokens_capacity": slots * self.page_size for tier, (_, slots) in pages.items()},
            "kv_host_tokens_asked": self.asked,
            "kv_host_tokens_hit": self.host_tokens,
            "kv_disk_tokens_hit": self.disk_tokens,
            "kv_bytes_to_host": self.bytes_out,
            "kv_bytes_from_host": self.bytes_in,
        }

    def close(self) -> None:
        """Write the newest pages of the tree that no request uses to disk: the next server finds them."""
        if self.disk is None:
            return
        newest = [*islice(reversed(self.tree.unused if self.tree else {}), self.disk.slots)]
        note(f"writing {len(newest):,} pages to {self.disk.folder}")
        for node in reversed(newest):
            self.keep(self.name(node), node.page)
            self.copy_evicted(wait=True)
        self.disk.close()


def name_of(parent: bytes, tokens: list[int] | tuple[int, ...]) -> bytes:
    """Return the name of a page with these tokens that follows the page named `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=NAME_BYTES).digest()

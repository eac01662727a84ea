"""Fetch the contents of K/V pages from another process with NIXL, which vLLM, SGLang and NVIDIA Dynamo use for it.

NIXL reads the memory of another process: by NVLink or RDMA from GPU to GPU, through the system's kernel between
processes of one machine, or else over TCP (UCX chooses). Only the receiver is active. The sender computes on and is
told nothing, so two questions have to be answered in another way:

- Was it still on offer when it was read? Each offer has a stamp: a number in memory that can be read like the pages.
  `abort` clears it before the pages may change, and the receiver reads it after the pages. If it finds the number of
  its ticket, the pages were as they were offered (a seqlock: as in the Linux kernel).
- When may the reserved pages be used for something else? A read that has begun cannot be taken back: the sender may be
  stopped and continue in a minute, and then bytes still arrive. So a transfer that is given up is not `final` before
  NIXL says how it has ended, and until then its pages stay reserved.
"""

import atexit
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # errors reach the caller as exceptions
os.environ.setdefault("UCX_LOG_LEVEL", "error")  # UCX is the library below NIXL.

STAMPS = 4096  # offers at a time; an older one would be refused, and computed again
POLL_SECONDS = 0.0002  # from one look at transfers to the next
SERVE_SECONDS = 0.002  # without transfers, from one look for readers to the next
TRANSFER_SECONDS = 20.0  # A transfer that takes longer has failed, since its sender hangs. Large ones get more.
CLOSE_SECONDS = 5.0  # for the call of NIXL that the thread is in
MIN_BYTES_PER_SECOND = 10e6  # A transfer gets one more second for each 10 MB.


class Peer(NamedTuple):
    """What a receiver has to know of a sender's memory. A process that starts again has another name and memory."""

    name: str
    metadata: bytes  # NIXL's own: how to connect
    layout: list[str]  # of pools
    addresses: list[int]  # of pools
    num_pages: int
    device: int  # number of the GPU
    stamps: int  # address


class Ticket(NamedTuple):
    """What is on offer, and where it lies."""

    peer: Peer
    number: int
    pages: list[int]


class NixlTransport:
    """Offer pages of the registered pools to other processes, and fetch theirs. loopback: on this machine only.

    All calls of NIXL are made by one thread, which follows every transfer to its end.
    """

    description = "pages travel by NIXL"

    def __init__(self, loopback: bool = True):
        agent, config = nixl()
        if loopback:  # NIXL does not check who connects.
            os.environ["UCX_NET_DEVICES"] = "lo"
        # NIXL's own progress thread would never sleep, and would take a core from the model.
        self.agent = agent(f"worker-{uuid.uuid4()}", config(backends=["UCX"], enable_prog_thread=False))
        self.stamps, self.landing = torch.zeros(2, STAMPS, dtype=torch.int64)
        self.numbers, self.places = itertools.count(1), itertools.count()
        self.offers: dict[str, int] = {}  # key -> number
        self.peers: dict[str, tuple[Any, Any]] = {}  # name -> NIXL's handles of its pages and its stamps
        self.begun: SimpleQueue[NixlTransfer | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="page fetcher", daemon=True)

    def register(self, pools: Sequence[Tensor]) -> None:
        """Name the pools whose pages travel together: each [pages, ...] and contiguous, all on one device."""
        self.pools = list(pools)
        self.kind = "VRAM" if pools[0].is_cuda else "DRAM"
        self.agent.register_memory(self.pools)
        self.agent.register_memory([self.stamps, self.landing])
        self.me = Peer(
            self.agent.name,
            self.agent.get_agent_metadata(),
            [f"{pool.dtype} {list(pool.shape[1:])}" for pool in pools],
            [pool.data_ptr() for pool in pools],
            len(pools[0]),
            max(0, pools[0].get_device()),
            self.stamps.data_ptr(),
        )
        self.blocks = self._prepare("", self.me)
        self.landing_places = self.agent.prep_xfer_dlist("", places_from(self.landing.data_ptr(), 8, STAMPS), "DRAM")
        self.thread.start()
        atexit.register(self.close)

    def send(self, key: str, pages: Sequence[int]) -> Ticket:
        """Offer these pages, which must not change until `abort`; return a ticket for `receive`."""
        self._finish_writing()
        self.abort(key)
        number = self.offers[key] = next(self.numbers)
        self.stamps[number % STAMPS] = number
        return Ticket(self.me, number, list(pages))

    def receive(
        self, ticket: Ticket, skip: int, pages: Sequence[int], on_done: Callable[[], None] = lambda: None
    ) -> "NixlTransfer":
        """Start to fetch what is offered, without its first `skip` pages, into `pages`; call on_done at the end."""
        self._finish_writing()
        transfer = NixlTransfer(ticket, skip, list(pages), sum(pool[0].nbytes for pool in self.pools), on_done)
        self.begun.put(transfer)
        return transfer

    def abort(self, key: str) -> None:
        """Withdraw an offer, after which its pages may change. Unknown keys are ignored."""
        number = self.offers.pop(key, 0)
        if self.stamps[number % STAMPS] == number:
            self.stamps[number % STAMPS] = 0

    def close(self) -> None:
        """End the thread, and with it the transfers that are not final.

        `atexit` calls this: once Python ends, it lets no thread return from NIXL, and the process would abort.
        """
        atexit.unregister(self.close)
        self.begun.put(None)
        if self.thread.is_alive():
            self.thread.join(CLOSE_SECONDS)

    def _finish_writing(self) -> None:
        if self.kind == "VRAM":  # NIXL knows nothing of torch's streams
            torch.cuda.current_stream(self.pools[0].device).synchronize()

    def _prepare(self, agent: str, peer: Peer) -> Any:
        """Return NIXL's handle of all pages of an agent ("": of this one): page p of pool i is i * num_pages + p."""
        both = zip(self.pools, peer.addresses, strict=True)
        places = [places_from(address, pool[0].nbytes, peer.num_pages, peer.device) for pool, address in both]
        return self.agent.prep_xfer_dlist(agent, numpy.concatenate(places), self.kind)

    def _meet(self, peer: Peer) -> tuple[Any, Any]:
        """Return NIXL's handles of a peer's pages and of its stamps."""
        if peer.layout != self.me.layout:
            raise ConnectionError(f"the sender's pools are {peer.layout}, the receiver's {self.me.layout}")
        if peer.name not in self.peers:
            self.agent.add_remote_agent(peer.metadata)
            stamps = self.agent.prep_xfer_dlist(peer.name, places_from(peer.stamps, 8, STAMPS), "DRAM")
            self.peers[peer.name] = self._prepare(peer.name, peer), stamps
        return self.peers[peer.name]

    def _run(self) -> None:
        """Begin transfers, and follow them to their end."""
        going: list[tuple[NixlTransfer, Iterator[None]]] = []
        while True:
            with suppress(Empty):
                transfer = self.begun.get(timeout=POLL_SECONDS if going else SERVE_SECONDS)
                if transfer is None:
                    return
                going.append((transfer, self._fetch(transfer)))
            with suppress(Exception):  # The peer may be gone: its transfers report that.
                self.agent.get_new_notifs()  # It serves readers over TCP, which need work in this process.
            going = [(transfer, steps) for transfer, steps in going if not self._ended(transfer, steps)]

    def _ended(self, transfer: "NixlTransfer", steps: Iterator[None]) -> bool:
        """Take one more step of a transfer; return whether it has succeeded or failed, and tell its owner."""
        try:
            next(steps)
            return False
        except StopIteration:
            transfer.end("")
        except ConnectionError as error:
            transfer.end(str(error))
        except Exception as error:  # an error of NIXL: the sender is gone
            self.peers.pop(transfer.ticket.peer.name, None)
            with suppress(Exception):
                self.agent.remove_remote_agent(transfer.ticket.peer.name)
            transfer.end(f"NIXL cannot reach the sender: {error}")
        return True

    def _fetch(self, transfer: "NixlTransfer") -> Iterator[None]:
        """Read the pages, and then the stamp; yield while NIXL is at work. Raise if they are not what was offered."""
        if transfer.cancelled:
            raise ConnectionError("the transfer was cancelled")
        ticket = transfer.ticket
        blocks, stamps = self._meet(ticket.peer)
        pools = numpy.arange(len(self.pools))[:, None]
        here = pools * self.me.num_pages + numpy.array(transfer.pages, dtype=int)
        there = pools * ticket.peer.num_pages + numpy.array(ticket.pages[transfer.skip :], dtype=int)
        if here.shape != there.shape:
            raise ConnectionError(f"{there.shape[1]} pages are on offer, and {here.shape[1]} are reserved")
        if here.size:
            yield from self._read(self.blocks, here, blocks, there)
        place = next(self.places) % STAMPS
        yield from self._read(self.landing_places, [place], stamps, [ticket.number % STAMPS])
        if self.landing[place] != ticket.number:
            raise ConnectionError("the pages have been withdrawn")

    def _read(self, blocks: Any, places: Any, of_sender: Any, places_there: Any) -> Iterator[None]:
        """Read memory of a sender into our own; yield until it is there. Raise ConnectionError or what NIXL raises."""
        indices = [numpy.ravel(one).astype(numpy.int32) for one in (places, places_there)]
        handle = self.agent.make_prepped_xfer("READ", blocks, indices[0], of_sender, indices[1])
        state = self.agent.transfer(handle)
        while state == "PROC":
            yield
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"the state of the transfer is {state}")


class NixlTransfer:
    """Pages on their way into reserved ones. `bytes` is known from the start, `seconds` at the end."""

    def __init__(self, ticket: Ticket, skip: int, pages: list[int], page_bytes: int, on_done: Callable[[], None]):
        self.ticket, self.skip, self.pages, self.on_done = ticket, skip, pages, on_done
        self.bytes, self.seconds = page_bytes * len(pages), 0.0
        self.start, self.cancelled, self.failure = time.perf_counter(), False, ""
        self._final = threading.Event()

    @property
    def final(self) -> bool:
        """Return whether nothing will be written to the reserved pages any more."""
        return self._final.is_set()

    def done(self) -> bool:
        """Return whether every byte is in its place. Raise ConnectionError if it never will be, or takes too long."""
        if self.final and not self.failure:
            return True
        allowed = TRANSFER_SECONDS + self.bytes / MIN_BYTES_PER_SECOND
        if self.final or time.perf_counter() - self.start > allowed:
            reason = self.failure or f"they have taken longer than {allowed:.0f} s"
            raise ConnectionError(f"the pages did not arrive from {self.ticket.peer.name}: {reason}")
        return False

    def wait(self, seconds: float) -> None:
        """Return when it is final, or after this time."""
        self._final.wait(seconds)

    def cancel(self) -> None:
        """If reading has not begun, do not begin: the transfer is then final soon."""
        self.cancelled = True

    def end(self, failure: str) -> None:
        """Note that it is final, and has failed unless the reason is empty."""
        self.failure, self.seconds = failure, time.perf_counter() - self.start
        self._final.set()
        self.on_done()


def places_from(address: int, size: int, count: int, device: int = 0) -> numpy.ndarray:
    """Return NIXL's description of `count` places in a row: [count, 3] of address, bytes, number of the GPU."""
    places = numpy.full((count, 3), (0, size, device), numpy.uint64)
    places[:, 0] = address + size * numpy.arange(count)
    return places


def nixl() -> tuple[type, type]:
    """Return NIXL's agent and its configuration. Raise ModuleNotFoundError where it is not installed."""
    try:
        from nixl._api import nixl_agent, nixl_agent_config
    except ModuleNotFoundError:
        from nixl_cu13._api import nixl_agent, nixl_agent_config  # one of the builds that `nixl` chooses from
    return nixl_agent, nixl_agent_config

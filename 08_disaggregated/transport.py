"""NEW in 08: how the contents of pages travel from one worker to another.

A prefill worker offers the pages of a request (`send`) and gives a ticket for them, which goes to a decode worker by
way of the router. The decode worker has reserved pages of its own by then, and fetches the contents straight into them
(`receive`), while both workers go on computing. The offer stands until it is withdrawn (`abort`): if the receiver dies
halfway, another one fetches the same pages again.

Two processes on the machine with two CPU cores, medians in milliseconds for 63 pages of the bundled model, 8.3 MB (a
prompt of 1,000 tokens), from the pages of one to the pages of the other:

    shared memory, told by a socket   2.2     only on one machine
    TCP, sent from the pages          4.2     what stands here: works between machines
    gloo (torch.distributed)          8.6     and a group of processes must be formed anew when one of them dies
    Ray's object store               19.6     an actor's method that returns the array

`python -m common.bench.transports` measures it; the figures are in results/transports/.

Layer by layer, overlapped with the computation of later layers, could hide at most these 4 ms, of a prompt that takes
some hundred to compute: it does not pay here. On GPUs, with a network between them, it does: there vLLM and
SGLang move pages by RDMA or NVLink (NIXL, Mooncake) without passing through the host's memory, as is done here.
"""

import hmac
import secrets
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TIMEOUT_SECONDS = 10.0  # for a byte to come or go; a worker that is gone is usually noticed at once
BUFFERS = 256  # handed to the system in one call: Linux takes up to 1,024
HEADER = struct.Struct("!16sII")  # secret, length of the key, pages to leave out
DONE = b"\x01"  # after the last byte, if the offer stood until then


class TransferFailed(Exception):
    """The pages could not be had: their worker is gone, or has withdrawn them."""


class Transfer(ABC):
    """Pages on their way into reserved ones. `bytes` and `seconds` are known once it is done."""

    bytes = 0
    seconds = 0.0

    @abstractmethod
    def done(self) -> bool:
        """Whether all is in its place; TransferFailed if it never will be."""

    def wait(self, seconds: float) -> None:  # noqa: B027 (there may be nothing to wait for)
        """Returns when it is done or has failed, after so many seconds at most."""

    def cancel(self) -> None:  # noqa: B027
        """From now on nothing is written to the reserved pages."""


class KVTransport(ABC):
    """What a worker needs of a transport. All pages are of pools of the same shape at both ends."""

    def register(self, pools: Sequence[Tensor]) -> None:
        """The pools whose pages travel together: each [layers, pages, ...], contiguous, the page number is the same."""
        self.pools = list(pools)

    @abstractmethod
    def send(self, key: str, pages: Sequence[int]) -> object:
        """Offers these pages, which must not change until `abort`; returns a ticket for `receive`."""

    @abstractmethod
    def receive(self, ticket, skip: int, pages: Sequence[int]) -> Transfer:
        """Starts to fetch what is offered, without the first `skip` pages, into `pages`."""

    @abstractmethod
    def abort(self, key: str) -> None:
        """Withdraws an offer; unknown keys are ignored. After it, the pages may change."""


class LocalTransport(KVTransport):
    """Between workers of one process: a copy, which never leaves the device."""

    def __init__(self):
        self.offers: dict[str, list[int]] = {}

    def send(self, key: str, pages: Sequence[int]) -> "tuple[LocalTransport, str]":
        self.offers[key] = list(pages)
        return self, key

    def receive(self, ticket: "tuple[LocalTransport, str]", skip: int, pages: Sequence[int]) -> Transfer:
        return LocalTransfer(self, *ticket, skip, pages)

    def abort(self, key: str) -> None:
        self.offers.pop(key, None)


class LocalTransfer(Transfer):
    def __init__(self, transport: LocalTransport, source: LocalTransport, key: str, skip: int, pages: Sequence[int]):
        start = time.perf_counter()
        self.failed = key not in source.offers
        if not self.failed:
            offered = source.offers[key][skip:][: len(pages)]
            for pool, from_pool in zip(transport.pools, source.pools, strict=True):
                pool[:, list(pages)] = from_pool[:, offered]
                self.bytes += pool[:, 0].nbytes * len(pages)
        self.seconds = time.perf_counter() - start

    def done(self) -> bool:
        if self.failed:
            raise TransferFailed("nobody offers these pages")
        return True


class Ticket(NamedTuple):
    """Where pages can be fetched, and the word that has to be said there."""

    host: str
    port: int
    secret: bytes
    key: str


class TcpTransport(KVTransport):
    """Between processes, on one machine or several. A thread answers those who fetch, beside the worker's own."""

    def __init__(self, host: str = "127.0.0.1"):
        self.secret = secrets.token_bytes(16)
        self.offers: dict[str, list[int]] = {}
        self.listener = socket.create_server((host, 0))
        self.address = self.listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="transport", daemon=True).start()

    def send(self, key: str, pages: Sequence[int]) -> Ticket:
        self.offers[key] = list(pages)
        return Ticket(*self.address, self.secret, key)

    def receive(self, ticket: Ticket, skip: int, pages: Sequence[int]) -> Transfer:
        return TcpTransfer(self.pools, ticket, skip, pages)

    def abort(self, key: str) -> None:
        self.offers.pop(key, None)

    def close(self) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(TIMEOUT_SECONDS)
                # Or else the last byte would wait until the receiver has acknowledged all others, which it may put off.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                secret, length, skip = HEADER.unpack(read_exactly(connection, HEADER.size))
                if not hmac.compare_digest(secret, self.secret):
                    return
                key = read_exactly(connection, length).decode()
                offer = self.offers.get(key)
                if offer is None:
                    return
                write_all(connection, views(self.pools, offer[skip:]))
                # The pages may have been withdrawn, and overwritten, while they were being read: then the receiver
                # must not take them for complete. (The worker withdraws an offer before it frees the pages.)
                if self.offers.get(key) is offer:
                    connection.sendall(DONE)
            except (OSError, TransferFailed):
                pass  # the receiver is gone: it was its own request


class TcpTransfer(Transfer):
    """Fetches on a thread of its own; no lock of the interpreter is held while bytes come."""

    def __init__(self, pools: Sequence[Tensor], ticket: Ticket, skip: int, pages: Sequence[int]):
        self.pools, self.ticket, self.skip, self.pages = list(pools), ticket, skip, list(pages)
        self.bytes = sum(pool[:, 0].nbytes for pool in pools) * len(pages)
        self.error: Exception | None = None
        self.cancelled = False
        self.connection = socket.socket()
        self.thread = threading.Thread(target=self._fetch, daemon=True)
        self.thread.start()

    def done(self) -> bool:
        if self.thread.is_alive():
            return False
        if self.error is not None:
            raise TransferFailed(str(self.error)) from self.error
        return True

    def wait(self, seconds: float) -> None:
        self.thread.join(seconds)

    def cancel(self) -> None:
        self.cancelled = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)  # whoever waits for bytes is told that none will come
        except OSError:
            pass  # not connected yet, or no longer: then nothing is being written
        else:
            self.thread.join()

    def _fetch(self) -> None:
        start = time.perf_counter()
        try:
            with self.connection as connection:
                connection.settimeout(TIMEOUT_SECONDS)
                connection.connect((self.ticket.host, self.ticket.port))
                key = self.ticket.key.encode()
                connection.sendall(HEADER.pack(self.ticket.secret, len(key), self.skip) + key)
                on_cpu = self.pools[0].device.type == "cpu"
                staged = None if on_cpu else torch.empty(self.bytes, dtype=torch.uint8)
                places = views(self.pools, self.pages) if on_cpu else [memoryview(staged.numpy())]
                if self.cancelled:
                    raise TransferFailed("cancelled")
                read_into(connection, places)
                if read_exactly(connection, 1) != DONE:
                    raise TransferFailed("the pages were withdrawn")
                if staged is not None:
                    unpack(staged, self.pools, self.pages)
        except (OSError, TransferFailed) as error:
            self.error = error
        self.seconds = time.perf_counter() - start


def views(pools: Sequence[Tensor], pages: Sequence[int]) -> list[memoryview]:
    """The bytes of these pages: pool by pool, layer by layer, page by page, neighbours in one piece.

    On a GPU they are copied to the host first; on the CPU they are the pages' own memory, to read or to write.
    """
    if pools[0].device.type != "cpu":
        return [memoryview(pool[:, list(pages)].cpu().view(torch.uint8).flatten().numpy()) for pool in pools]
    runs: list[list[int]] = []  # [first, one after the last]
    for page in pages:
        if runs and runs[-1][1] == page:
            runs[-1][1] += 1
        else:
            runs.append([page, page + 1])
    pieces = []
    for pool in pools:
        numbers = pool.view(torch.uint8).flatten(2).numpy()  # [layers, pages, bytes], the same memory
        pieces += [memoryview(layer[first:end]).cast("B") for layer in numbers for first, end in runs]
    return pieces


def unpack(staged: Tensor, pools: Sequence[Tensor], pages: Sequence[int]) -> None:
    """`views` of a GPU's pages backwards: host memory, uint8, to the pages."""
    start = 0
    for pool in pools:
        shape = pool[:, list(pages)].shape
        count = pool[:, 0].nbytes * len(pages)
        pool[:, list(pages)] = staged[start : start + count].view(pool.dtype).view(shape).to(pool.device)
        start += count


def write_all(connection: socket.socket, pieces: list[memoryview]) -> None:
    for rest, sent in passing(pieces):
        sent(connection.sendmsg(rest))


def read_into(connection: socket.socket, pieces: list[memoryview]) -> None:
    """Fills the pieces, one after the other; TransferFailed if the other side ends before."""
    for rest, got in passing(pieces):
        got(connection.recvmsg_into(rest)[0])


def passing(pieces: list[memoryview]):
    """What remains, a handful at a time, with a function to say how many of its bytes are done; TransferFailed at 0."""
    place, offset = 0, 0

    def advance(count: int) -> None:
        nonlocal place, offset
        if count == 0:
            raise TransferFailed("the other side has ended the connection")
        offset += count
        while place < len(pieces) and offset >= len(pieces[place]):
            offset -= len(pieces[place])
            place += 1

    while place < len(pieces):
        yield [pieces[place][offset:], *pieces[place + 1 : place + BUFFERS]], advance


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    read_into(connection, [memoryview(data)] if count else [])
    return bytes(data)

"""Send the contents of K/V pages from process to process over TCP, on one machine or several.

The sender offers pages under a key (`send`) and hands out a ticket. A receiver with the ticket, and with reserved pages
of its own, fetches the contents straight into them (`receive`), while both processes go on computing. The offer stands
until the sender withdraws it (`abort`): if the receiver dies halfway, another one can fetch the same pages again.

On the CPU bytes go from the pages to the socket and from the socket to the pages; pages on a GPU pass through host
memory. Production engines copy them from GPU to GPU, by RDMA or NVLink (NIXL, Mooncake).
"""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from ..errors import counted, shortened
from .interruptible_socket import InterruptibleSocket
from .page_bytes import bytes_of, check_pools, layout, on_host, page_views
from .page_handshake import MAX_KEY_BYTES, Handshake, Ticket
from .staging import Staging
from .tcp_transfer import TcpTransfer, allowed_seconds, family_of

MAX_CONNECTIONS = 128  # open at once, those without a proof included; each has a thread and a descriptor
MAX_FETCHES = 16  # transfers that one transport receives at once, each on a thread; later ones are queued
HANDSHAKE_SECONDS = 5.0  # from accepting a connection to its proof; a receiver needs milliseconds
CROWDED_SECONDS = 1.0  # what is left of HANDSHAKE_SECONDS while another connection waits for a place
ACCEPT_PAUSE_SECONDS = 0.1  # after an error that may pass, such as having no descriptors left

logger = logging.getLogger(__name__)


class TcpTransport:
    """Offer pages of the registered pools to other processes, and fetch theirs. Any thread may call any method.

    Listen on the address `host` only, on a port that the system chooses.
    """

    def __init__(self, host: str = "127.0.0.1"):
        self.pools: list[Tensor] = []
        self._secret = secrets.token_bytes(32)
        self._offers: dict[str, list[int]] = {}
        self._connections: dict[InterruptibleSocket, list[int] | None] = {}  # the pages it gets; None: no proof yet
        self._queued: deque[TcpTransfer] = deque()
        self._transfers: set[TcpTransfer] = set()  # queued or running
        self._fetchers = 0
        self._lock = threading.Condition()  # for all of these; notified when a connection ends
        listener = socket.create_server((host, 0), family=family_of(host))
        self.host, self.port = listener.getsockname()[:2]
        self._closing = threading.Event()
        self._listener = InterruptibleSocket(listener, stall=float("inf"))
        self._acceptor = threading.Thread(target=self._accept, name="page transport", daemon=True)
        self._acceptor.start()

    def register(self, pools: Sequence[Tensor]) -> None:
        """Send pages from these pools, and receive into them: each [layers, pages, ...], contiguous, on one device.

        A page number means the same in all of them. Raise ValueError for other pools.
        """
        check_pools(pools)
        self.pools = list(pools)

    def send(self, key: str, pages: Sequence[int]) -> Ticket:
        """Offer these pages until `abort(key)`; they must not change before. Withdraw an older offer of the key."""
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ValueError(f"the key {shortened(key)} has more than {MAX_KEY_BYTES} bytes: use a shorter one")
        pages = self._existing(pages)
        self.abort(key)
        with self._lock:
            self._offers[key] = pages
        return Ticket(self.host, self.port, self._secret, key)

    def receive(
        self, ticket: Ticket, skip: int, pages: Sequence[int], on_done: Callable[[], None] | None = None
    ) -> TcpTransfer:
        """Start fetching the offered pages after the first `skip` into `pages`, in this order.

        Call `on_done` once, from any thread, when the transfer has succeeded or failed.
        """
        transfer = TcpTransfer(self.pools, ticket, skip, self._existing(pages), on_done)
        with self._lock:
            self._transfers.add(transfer)
            self._queued.append(transfer)
            start = self._fetchers < MAX_FETCHES
            self._fetchers += start
        if start:
            try:
                threading.Thread(target=self._fetch, name="page fetcher", daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # the system has no thread left
                self._fail_queued(error)
        if self._closing.is_set():
            transfer.cancel()
        return transfer

    def abort(self, key: str) -> None:
        """Withdraw an offer; ignore unknown keys. The pages may change afterwards."""
        with self._lock:
            if (offer := self._offers.pop(key, None)) is not None:
                for connection, served in self._connections.items():
                    if served is offer:
                        connection.stop()

    def clear(self) -> None:
        """Withdraw all offers."""
        for key in list(self._offers):
            self.abort(key)

    def close(self) -> None:
        """Stop listening, withdraw all offers, end all connections and transfers. Calling it again is harmless."""
        self._closing.set()
        self._listener.stop()
        with self._lock:
            self._offers.clear()
            for connection in self._connections:
                connection.stop()
            self._lock.notify_all()
            transfers = list(self._transfers)
        for transfer in transfers:
            transfer.cancel()
        self._acceptor.join()

    def _existing(self, pages: Sequence[int]) -> list[int]:
        count = self.pools[0].shape[1] if self.pools else 0
        for page in pages:
            if not 0 <= page < count:
                raise ValueError(f"there is no page {page}: the registered pools have {counted(count, 'page')}")
        return list(pages)

    def _fail_queued(self, error: Exception) -> None:
        """Fail the queued transfers, because a fetcher could not start, unless another fetcher is running."""
        with self._lock:
            self._fetchers -= 1
            failed = [] if self._fetchers else list(self._queued)
            self._transfers.difference_update(failed)
            if failed:
                self._queued.clear()
        for transfer in failed:
            transfer.end(error)

    def _fetch(self) -> None:
        """Run transfers until none is queued: the work of a thread."""
        while True:
            with self._lock:
                if not self._queued:
                    self._fetchers -= 1
                    return
                transfer = self._queued.popleft()
            transfer.run()
            with self._lock:
                self._transfers.discard(transfer)

    def _accept(self) -> None:
        """Start a thread for every connection, until `close`: the work of one thread. No error ends the loop."""
        logged = ""  # the last error, so that a repeated one is logged once
        with self._listener:
            while not self._closing.is_set():
                try:
                    self._admit(InterruptibleSocket(self._listener.accept()))
                    logged = ""
                except Exception as error:  # no descriptors, memory or threads left, or the peer has gone
                    if not self._closing.wait(ACCEPT_PAUSE_SECONDS) and repr(error) != logged:
                        logged = repr(error)
                        logger.warning("%s:%s cannot accept connections, and retries: %s", self.host, self.port, logged)

    def _admit(self, connection: InterruptibleSocket) -> None:
        """Start a thread for the connection once there is a place; shorten the deadlines of those without a proof."""
        with self._lock:
            while len(self._connections) >= MAX_CONNECTIONS and not self._closing.is_set():
                for other, offer in self._connections.items():
                    if offer is None:
                        other.deadline = min(other.deadline, time.monotonic() + CROWDED_SECONDS)
                self._lock.wait()
            connection.deadline = time.monotonic() + HANDSHAKE_SECONDS
            self._connections[connection] = None
            if self._closing.is_set():
                connection.stop()
        try:
            threading.Thread(target=self._serve, args=(connection,), name="page server", daemon=True).start()
        except BaseException:
            self._dismiss(connection)
            raise

    def _dismiss(self, connection: InterruptibleSocket) -> None:
        connection.close()
        with self._lock:
            del self._connections[connection]
            self._lock.notify_all()

    def _serve(self, connection: InterruptibleSocket) -> None:
        try:
            self._answer(connection)
        except OSError as error:
            logger.debug("a connection ended early: %r", error)
        except Exception:
            logger.exception("pages could not be sent")
        finally:
            self._dismiss(connection)

    def _answer(self, connection: InterruptibleSocket) -> None:
        """Send the requested pages. Raise OSError for a receiver that is too slow, has gone, or has no valid proof."""
        handshake = Handshake(connection, self._secret)
        key, skip, count = handshake.hear()
        with self._lock:
            offer = self._connections[connection] = self._offers.get(key)
        if offer is None:
            handshake.reply({"error": "they are not on offer: withdrawn, or never offered"})
            return
        pages, pools = offer[skip:], self.pools
        handshake.reply({"layout": layout(pools), "pages": len(pages)})
        if len(pages) != count:
            return
        connection.deadline = time.monotonic() + allowed_seconds(bytes_of(pools, pages))
        for pieces in [page_views(pools, pages)] if on_host(pools) else ([one] for one in Staging(pools, pages).read()):
            connection.write(pieces)
        # If the offer was withdrawn while the pages were read, they may have been overwritten. Then `abort` has stopped
        # this connection, the last proof cannot be sent, and the receiver rejects the pages.
        handshake.complete()

"""The receiver's side of one transfer of pages over TCP."""

import logging
import socket
import threading
import time
from collections.abc import Callable

from torch import Tensor

from ..errors import counted
from .interruptible_socket import InterruptibleSocket
from .page_bytes import bytes_of, layout, on_host, page_views
from .page_handshake import Handshake, Ticket
from .staging import Staging

TRANSFER_SECONDS = 20.0  # a transfer's deadline is this time
MIN_BYTES_PER_SECOND = 10e6  # plus the time of its bytes at this rate

logger = logging.getLogger(__name__)


class TcpTransfer:
    """Fetch pages into reserved ones. `bytes` is known from the start, `seconds` when the transfer has ended."""

    def __init__(
        self,
        pools: list[Tensor],
        ticket: Ticket,
        skip: int,
        pages: list[int],
        on_done: Callable[[], None] | None = None,
    ):
        self.pools, self.ticket, self.skip, self.pages = pools, ticket, skip, pages
        self.bytes, self.seconds = bytes_of(pools, pages), 0.0
        self._on_done, self._start = on_done, time.perf_counter()
        self._connection: InterruptibleSocket | None = None
        self._cancelled = False
        self._complete = False  # the only sign of success
        self._reason = ""  # for a failure
        self._ended = threading.Event()
        self._lock = threading.Lock()  # for `_connection` and `_cancelled`, and for ending once

    def done(self) -> bool:
        """Return whether every byte is in its place. Raise ConnectionError with the reason of a failed transfer."""
        if not self._ended.is_set():
            return False
        if self._complete:
            return True
        host, port, _, key = self.ticket
        raise ConnectionError(f"the pages of {key!r} did not arrive from {host}:{port}: {self._reason}")

    def wait(self, seconds: float) -> None:
        """Return when the transfer has succeeded or failed, or after this many seconds."""
        self._ended.wait(seconds)

    def cancel(self) -> None:
        """End the transfer; after the return nothing writes to the reserved pages."""
        with self._lock:
            self._cancelled = True
            connection = self._connection
        if connection is None:
            self.end(ConnectionAbortedError("the transfer was cancelled"))
        else:
            connection.stop()
        self._ended.wait()

    def run(self) -> None:
        """Fetch the pages on the calling thread; return at once if the transfer was cancelled."""
        try:
            with self._open() as connection:
                self._fetch(connection)
            self.end(None)
        except BaseException as error:  # after any error the pages are incomplete
            self.end(error)
            if not isinstance(error, OSError):
                logger.exception("pages could not be fetched")

    def end(self, error: BaseException | None) -> None:
        """Record the failure, or success if `error` is None, and call `on_done`. Later calls do nothing."""
        with self._lock:
            if self._ended.is_set():
                return
            self.seconds = time.perf_counter() - self._start
            self._complete = error is None
            self._reason = str(error) if isinstance(error, OSError) else repr(error)
            self._ended.set()
        if self._on_done is not None:
            try:
                self._on_done()
            except Exception:
                logger.exception("on_done failed")

    def _open(self) -> InterruptibleSocket:
        with self._lock:
            if self._cancelled:
                raise ConnectionAbortedError("the transfer was cancelled")
            self._connection = InterruptibleSocket(socket.socket(family_of(self.ticket.host)))
            return self._connection

    def _fetch(self, connection: InterruptibleSocket) -> None:
        """Return only if every byte is in its place."""
        host, port, secret, key = self.ticket
        connection.deadline = time.monotonic() + allowed_seconds(self.bytes)
        connection.connect((host, port))
        handshake = Handshake(connection, secret)
        self._check(handshake.ask(key, self.skip, len(self.pages)))
        if on_host(self.pools):
            connection.read_into(page_views(self.pools, self.pages))
        else:
            with Staging(self.pools, self.pages).write() as places:
                for place in places:
                    connection.read_into([place])
        handshake.expect_completion()

    def _check(self, answer: dict) -> None:
        """Raise ConnectionError unless the sender's pages fit the reserved ones."""
        if "error" in answer:
            raise ConnectionError(answer["error"])
        if answer["layout"] != layout(self.pools):
            raise ConnectionError(f"the sender's pools are {answer['layout']}, the receiver's {layout(self.pools)}")
        if answer["pages"] != len(self.pages):
            offered, reserved = counted(answer["pages"], "page"), len(self.pages)
            raise ConnectionError(f"the sender has {offered} to send, the receiver has reserved {reserved}")


def allowed_seconds(count: int) -> float:
    """Return the most seconds that a transfer of `count` bytes may take, on either side."""
    return TRANSFER_SECONDS + count / MIN_BYTES_PER_SECOND


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a numeric address or a name; names are looked up as IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET

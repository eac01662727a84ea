"""One transfer of pages over TCP, as the receiver sees it."""

import logging
import socket
import threading
import time
from collections.abc import Callable

from torch import Tensor

from .interruptible_socket import InterruptibleSocket
from .page_bytes import bytes_of, layout, on_host, page_views
from .page_handshake import Handshake, Ticket
from .staging import Staging

TRANSFER_SECONDS = 20.0  # the deadline of a transfer, and beyond it
MIN_BYTES_PER_SECOND = 10e6  # what its bytes take at this rate

logger = logging.getLogger(__name__)


class TcpTransfer:
    """Pages on their way into reserved ones. `bytes` and `seconds` are known once it is done."""

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
        self._reason = ""  # of a failure
        self._ended = threading.Event()
        self._lock = threading.Lock()  # for `_connection` and `_cancelled`, and for ending once

    def done(self) -> bool:
        """Whether every byte is in its place; raise ConnectionError, with the reason, if that will never be so."""
        if not self._ended.is_set():
            return False
        if self._complete:
            return True
        host, port, _, key = self.ticket
        raise ConnectionError(f"the pages of {key!r} did not arrive from {host}:{port}: {self._reason}")

    def wait(self, seconds: float) -> None:
        """Return when the transfer has succeeded or failed, after this many seconds at most."""
        self._ended.wait(seconds)

    def cancel(self) -> None:
        """End the transfer; return when nothing will be written to the reserved pages any more."""
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
        except BaseException as error:  # whatever it is, the pages are not complete
            self.end(error)
            if not isinstance(error, OSError):
                logger.exception("pages could not be fetched")

    def end(self, error: BaseException | None) -> None:
        """Record failure, or success without an error, and call `on_done`. Only the first call counts."""
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
            raise ConnectionError(f"the sender has {answer['pages']} pages to send, the receiver {len(self.pages)}")


def allowed_seconds(count: int) -> float:
    """How long a transfer of this many bytes may take, on either side."""
    return TRANSFER_SECONDS + count / MIN_BYTES_PER_SECOND


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

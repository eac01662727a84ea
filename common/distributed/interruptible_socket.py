"""A TCP socket whose calls have a common deadline, and which another thread can stop.

Python's own timeout is for a single call: a peer that sends a byte every few seconds never exceeds it, and holds a
thread for ever.
"""

import errno
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

STALL_SECONDS = 10.0  # without a byte in either direction; the end of a peer's process is noticed at once
# `stop` ends a wait at once on Linux. Other systems do not wake a thread that connects or accepts: it looks this often.
LOOK_SECONDS = 0.25
BUFFERS = 256  # most buffers in one system call: Linux takes up to 1,024
SCATTER_GATHER = hasattr(socket.socket, "recvmsg_into")  # not on Windows, which gets one buffer a call
CONNECTING = (errno.EINPROGRESS, errno.EWOULDBLOCK)
# select() cannot watch descriptors from 1,024 on, and Windows has no poll().
Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class InterruptibleSocket:
    """Wrap a socket for one thread; any thread may `stop` it. Methods raise OSError if they fail or are stopped.

    `deadline`, a time of `time.monotonic`, limits all calls together, and `stall`, in seconds, each wait: past them a
    method raises TimeoutError. `close` closes the socket.
    """

    def __init__(self, sock: socket.socket, stall: float = STALL_SECONDS):
        self.socket, self.stall = sock, stall
        self.deadline = math.inf
        self.stopped = False
        self._lock = threading.Lock()  # or `close` could free the descriptor for another file while `stop` uses it
        with suppress(OSError):  # the peer has closed the connection already
            # Without it a short message waits until the peer acknowledges the one before, which may take 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def stop(self) -> None:
        """End the call in progress and all later ones with ConnectionAbortedError; from any thread, at any time."""
        with self._lock:
            self.stopped = True
            with suppress(OSError):  # not connected yet, or closed
                self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            self.socket.close()

    def __enter__(self) -> "InterruptibleSocket":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def connect(self, address: tuple[str, int]) -> None:
        self.socket.setblocking(False)
        with self._lock:  # a `stop` before this is noticed here; one after it finds a socket that it can shut down
            self._check()
            error = self.socket.connect_ex(address)
        if error in CONNECTING:
            self._wait_for(self._finish_connecting)
        elif error:
            raise OSError(error, os.strerror(error))

    def accept(self) -> socket.socket:
        return self._wait_for(self.socket.accept)[0]

    def read(self, count: int) -> bytes:
        data = bytearray(count)
        self.read_into([memoryview(data)])
        return bytes(data)

    def read_into(self, pieces: Sequence[memoryview]) -> None:
        """Fill the pieces, one-dimensional and of bytes, in order. Raise ConnectionError if the peer ends before."""
        in_parts(pieces, lambda rest: self._wait_for(self._receive, rest))

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        in_parts(pieces, lambda rest: self._wait_for(self._send, rest))

    def _receive(self, pieces: list[memoryview]) -> int:
        count = self.socket.recvmsg_into(pieces)[0] if SCATTER_GATHER else self.socket.recv_into(pieces[0])
        if count == 0:
            self._check()
            raise ConnectionError("the other side ended the connection")
        return count

    def _send(self, pieces: list[bytes | memoryview]) -> int:
        return self.socket.sendmsg(pieces) if SCATTER_GATHER else self.socket.send(pieces[0])

    def _finish_connecting(self) -> None:
        with Selector() as selector:
            selector.register(self.socket, selectors.EVENT_WRITE)
            if not selector.select(self.socket.gettimeout()):
                raise TimeoutError  # without errno, as Python's own timeouts
        if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))

    def _wait_for(self, call: Callable, *arguments):
        """Repeat the call until it succeeds without a wait of more than LOOK_SECONDS; return its result."""
        stalled = time.monotonic() + self.stall
        while True:
            self._check()  # also before calls that do not wait: a peer may send one byte after another
            if (seconds := stalled - time.monotonic()) <= 0:
                raise TimeoutError(f"no byte arrived or left for {self.stall:g} s")
            self.socket.settimeout(min(LOOK_SECONDS, seconds))
            try:
                return call(*arguments)
            except OSError as error:
                if not isinstance(error, TimeoutError) or error.errno:  # Python's own timeouts have no errno
                    self._check()
                    raise

    def _check(self) -> None:
        if self.stopped:
            raise ConnectionAbortedError("this side ended the connection")
        if time.monotonic() >= self.deadline:
            raise TimeoutError("the other side was too slow: the deadline has passed")


def in_parts(pieces: Sequence[bytes | memoryview], step: Callable[[list[bytes | memoryview]], int]) -> None:
    """Call `step` with the remaining pieces until none remains; it returns the number of bytes that it has handled."""
    pieces = [piece for piece in pieces if len(piece)]
    place, offset = 0, 0  # the first piece that remains, and the number of its bytes that are done
    while place < len(pieces):
        offset += step([pieces[place][offset:], *pieces[place + 1 : place + BUFFERS]])
        while place < len(pieces) and offset >= len(pieces[place]):
            offset -= len(pieces[place])
            place += 1

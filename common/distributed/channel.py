"""Connect two processes that share a key, with the connections of `multiprocessing` and deadlines.

The standard library's connections have framing, pickling, and a challenge in both directions, so that the key never
travels. They have no deadlines: `multiprocessing.connection.Listener` waits for a silent peer for ever.
"""

import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

HANDSHAKE_SECONDS = 5.0
MOST_HANDSHAKES = 32  # at once
PAUSE_SECONDS = 0.1  # after an error of `accept`, such as too many open files


class Door:
    """Listen on `host` for the one peer that knows `key`."""

    def __init__(self, host: str):
        self.key = secrets.token_bytes(32)
        self.listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        self.open = True
        self.handshakes = threading.Semaphore(MOST_HANDSHAKES)

    def accept(self, seconds: float) -> Connection:
        """Return the first connection whose peer has the key, and close the door. Raise TimeoutError if none comes."""
        arrived: queue.Queue[Connection] = queue.Queue()
        threading.Thread(target=self._admit_all, args=(arrived,), name="door", daemon=True).start()
        try:
            return arrived.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no peer with the key has connected to {self.address} within {seconds} s") from None
        finally:
            self.close()

    def close(self) -> None:
        self.open = False
        with suppress(OSError):  # some systems cannot shut down a listening socket; there, closing it wakes `accept`
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _admit_all(self, arrived: "queue.Queue[Connection]") -> None:
        while self.open:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                time.sleep(PAUSE_SECONDS)
                continue
            if self.handshakes.acquire(blocking=False):
                try:
                    threading.Thread(target=self._admit, args=(peer, arrived), daemon=True).start()
                except RuntimeError:  # the system has no threads left
                    self.handshakes.release()
                    peer.close()
            else:
                peer.close()

    def _admit(self, peer: socket.socket, arrived: "queue.Queue[Connection]") -> None:
        try:
            arrived.put(shake_hands(peer, self.key, deliver_challenge, answer_challenge))
        except OSError:
            pass  # a peer without the key
        finally:
            self.handshakes.release()


def connect(address: tuple[str, int], key: bytes) -> Connection:
    """Connect to a door. Raise OSError if none listens, if it is silent, or if it has another key."""
    peer = socket.create_connection(address, timeout=HANDSHAKE_SECONDS)
    return shake_hands(peer, key, answer_challenge, deliver_challenge)


def limit_reads(connection: Connection, seconds: float) -> None:
    """Raise OSError from reads of a message whose rest does not arrive for this long: its sender has stopped."""
    if sys.platform != "win32":
        timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        with socket_of(connection) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def hang_up(connection: Connection) -> None:
    """End a connection, even while other threads use it; both sides see the end."""
    with suppress(OSError), socket_of(connection) as same:
        same.shutdown(socket.SHUT_RDWR)


@contextmanager
def socket_of(connection: Connection) -> Iterator[socket.socket]:
    """Give the connection's own socket, and leave it open: a copy needs a descriptor, and there may be none left."""
    same = socket.socket(fileno=connection.fileno())
    try:
        yield same
    finally:
        same.detach()


@contextmanager
def on_thread(
    work: Callable[..., None], messages: "queue.SimpleQueue[Any]", connection: Connection, closed: Any
) -> Iterator[None]:
    """Run `receive_into` or `send_from` on a thread; at the end of the block, end the connection and the thread.

    In this order: closing a socket does not wake a thread that reads from it, and until it wakes the peer is not told.
    """
    thread = threading.Thread(target=work, args=(messages, connection, closed), daemon=True)
    thread.start()
    try:
        yield
    finally:
        messages.put(closed)
        hang_up(connection)
        thread.join()


def receive_into(inbox: "queue.SimpleQueue[Any]", connection: Connection, closed: Any) -> None:
    """Put all messages into the inbox until the connection ends, and then `closed`. See `on_thread`."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        pass  # the peer is gone
    finally:
        inbox.put(closed)


def send_from(outbox: "queue.SimpleQueue[Any]", connection: Connection, closed: Any) -> None:
    """Send all messages from the outbox until `closed` comes. See `on_thread`.

    A process that hangs does not read, and its peer must not wait for it.
    """
    try:
        while (message := outbox.get()) is not closed:
            connection.send(message)
    except Exception:  # the peer is gone, or cannot be told: the thread that reads notices the end
        hang_up(connection)


def shake_hands(peer: socket.socket, key: bytes, *challenges) -> Connection:
    """Make both sides prove that they know the key. Raise OSError and close the socket if one of them does not."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:  # `connection` has its own descriptor, so that the deadline can shut down this one
        deadline = threading.Timer(HANDSHAKE_SECONDS, peer.shutdown, (socket.SHUT_RDWR,))
        deadline.daemon = True
        deadline.start()
        connection = Connection(peer.dup().detach())
        try:
            for challenge in challenges:
                challenge(connection, key)
            return connection
        except (AuthenticationError, EOFError, ValueError) as error:
            connection.close()
            raise ConnectionError(f"the other side does not know the key: {error}") from error
        except OSError:
            connection.close()
            raise
        finally:
            deadline.cancel()

"""Transports to test with, a peer that is played by hand, and waiting that is bounded."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from common.distributed import tcp_transport
from common.distributed.interruptible_socket import InterruptibleSocket
from common.distributed.page_handshake import Handshake, Ticket
from common.distributed.tcp_transport import TcpTransport

SHAPES = [(3, 50, 4, 2, 8), (3, 50, 4, 2, 8), (2, 50, 4, 1, 8)]  # K, V, and a smaller model's
BIG = [(2, 64, 1 << 16)]  # 32 MiB: more than the system takes without a reader
PATIENCE_SECONDS = 30  # for what takes milliseconds on a machine that has nothing else to do


def random_pools(dtype=torch.float32, shapes=SHAPES) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def zero_pools(dtype=torch.float32, shapes=SHAPES) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


@contextmanager
def transport(pools: list[torch.Tensor], kind: Callable[[], Any] = TcpTransport) -> Iterator[Any]:
    """Give a transport of this kind with these pools; see to it that no thread of it is left."""
    transport = kind()
    transport.register(pools)
    try:
        yield transport
    finally:
        if isinstance(transport, TcpTransport):
            transport.close()
        eventually(lambda: not threads("page fetcher") and not threads("page server"))


@contextmanager
def sender_by_hand(secret: bytes = bytes(32)) -> Iterator[tuple[Ticket, Callable[[], Handshake]]]:
    """A ticket, and a function that accepts the receiver's connection."""
    accepted = []

    def accept() -> Handshake:
        accepted.append(InterruptibleSocket(listener.accept()[0]))
        return Handshake(accepted[-1], secret)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_SECONDS)
        try:
            yield Ticket(*listener.getsockname(), secret, "a"), accept
        finally:
            for connection in accepted:
                connection.close()


@contextmanager
def receiver_by_hand(ticket: Ticket) -> Iterator[Handshake]:
    with InterruptibleSocket(socket.create_connection(ticket[:2], PATIENCE_SECONDS)) as connection:
        yield Handshake(connection, ticket.secret)


def never_stall(monkeypatch) -> None:
    """Senders wait for ever for the next byte: what ends their connections must be something else."""
    patient = partial(InterruptibleSocket, stall=1e6)
    monkeypatch.setattr(tcp_transport, "InterruptibleSocket", patient)


def fetched(transfer) -> bool:
    transfer.wait(PATIENCE_SECONDS)
    return transfer.done()


def assert_arrived(sender, receiver, source: list[int], places: list[int]) -> None:
    """Raise AssertionError unless these pages hold what was sent, and all others zeros."""
    others = [page for page in range(50) if page not in places]
    for sent, got in zip(sender.pools, receiver.pools, strict=True):
        assert torch.equal(sent[:, source], got[:, places].to(sent.device))
        assert not got[:, others].any()


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def untouched(transport: TcpTransport, pages: Sequence[int] = range(50)) -> bool:
    return not any(pool[:, pages].any() for pool in transport.pools)


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]

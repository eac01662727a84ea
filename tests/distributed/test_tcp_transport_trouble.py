"""Failures on a page transport's own machine, and cancelled transfers in each of their states."""

import errno
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial

import pytest
import torch

from common.distributed import interruptible_socket, tcp_transfer, tcp_transport
from common.distributed.interruptible_socket import InterruptibleSocket
from common.distributed.page_bytes import layout
from common.distributed.page_handshake import Ticket
from tests.helpers.page_ends import eventually, fetched, random_pools, sender_by_hand, threads, transport, untouched

# ---- Success is an explicit fact ----


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, ZeroDivisionError, SystemExit, OSError])
@pytest.mark.parametrize("where", ["page_views", "connect", "read_into"])
def test_any_error_of_the_fetching_thread_fails_the_transfer(sender, receiver, monkeypatch, error, where):
    def fail(*arguments):
        if threading.current_thread().name == "page fetcher":
            raise error("injected")
        return original(*arguments)

    ticket = sender.send("a", [1, 2])
    owner = tcp_transfer if where == "page_views" else InterruptibleSocket
    original = getattr(owner, where)
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, fail)
        transfer = receiver.receive(ticket, 0, [1, 2])
        transfer.wait(30)
    with pytest.raises(ConnectionError, match="injected"):
        transfer.done()
    assert fetched(receiver.receive(ticket, 0, [1, 2])), "the next transfer is none the worse for it"


def test_a_transfer_fails_if_no_thread_can_start(sender, receiver, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    ticket, calls = sender.send("a", [1, 2]), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        transfer = receiver.receive(ticket, 0, [1, 2], lambda: calls.append(1))
    with pytest.raises(ConnectionError, match="new thread"):
        transfer.done()
    assert fetched(receiver.receive(ticket, 0, [3, 4])) and calls == [1]
    assert not receiver.pools[0][:, 1:3].any(), "the first transfer has not been run afterwards"
    eventually(lambda: not receiver._transfers)


def test_a_transfer_waits_for_a_running_fetcher_if_no_thread_can_start(sender, receiver, monkeypatch):
    def start(thread):
        if thread.name == "page fetcher":
            raise RuntimeError("can't start new thread")
        start_any(thread)

    start_any, ticket = threading.Thread.start, sender.send("a", [1, 2])
    with sender_by_hand() as (silent, accept):
        first = receiver.receive(silent, 0, [3, 4])
        accept()
        monkeypatch.setattr(threading.Thread, "start", start)
        second = receiver.receive(ticket, 0, [1, 2])
        assert not second.done()
        first.cancel()
        assert fetched(second)


# ---- The accept loop ends with `close` only ----


@pytest.mark.parametrize("error", [*map(OSError, (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED)), MemoryError()])
def test_errors_do_not_end_the_accept_loop(receiver, monkeypatch, error):
    accept, failures = InterruptibleSocket.accept, [error] * 3
    monkeypatch.setattr(InterruptibleSocket, "accept", lambda listener: raise_or_accept(listener))

    def raise_or_accept(listener):
        if failures:
            raise failures.pop()
        return accept(listener)

    with transport(random_pools()) as sender:
        assert fetched(receiver.receive(sender.send("a", [1, 2]), 0, [1, 2]))
        assert not failures


def test_the_accept_loop_survives_a_process_without_descriptors(sender, receiver):
    resource = pytest.importorskip("resource")
    ticket, limits = sender.send("a", [1, 2]), resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (sockets[0].fileno(), limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for stranger in sockets:
            stranger.connect(ticket[:2])
        with pytest.raises(ConnectionError, match="Too many open files"):
            fetched(receiver.receive(ticket, 0, [1, 2]))
        time.sleep(3 * tcp_transport.ACCEPT_PAUSE_SECONDS)
    assert fetched(receiver.receive(ticket, 0, [1, 2]))


def test_the_accept_loop_survives_a_process_without_threads(sender, receiver, monkeypatch):
    ticket = sender.send("a", [1, 2])
    with monkeypatch.context() as patch:
        refused = threading.Event()
        patch.setattr(threading.Thread, "start", lambda thread: refused.set() or 1 / 0)
        with socket.create_connection(ticket[:2]) as stranger:
            assert refused.wait(30)
            assert stranger.recv(1) == b"", "it is told at once"
    assert fetched(receiver.receive(ticket, 0, [1, 2]))


# ---- After `cancel` nothing is written, and the thread is free ----


@pytest.fixture(params=["woken", "looking"])
def wake(request, monkeypatch):
    """Linux wakes a waiting thread; on other systems it looks every LOOK_SECONDS."""
    if request.param == "looking":
        monkeypatch.setattr(InterruptibleSocket, "stop", lambda sock: setattr(sock, "stopped", True))
    elif sys.platform == "linux":
        monkeypatch.setattr(interruptible_socket, "LOOK_SECONDS", 60)
        monkeypatch.setattr(tcp_transfer, "InterruptibleSocket", partial(InterruptibleSocket, stall=60))
    else:
        pytest.skip("it is so on Linux only")


def assert_cancelled(transfer) -> None:
    thread = threading.Thread(target=transfer.cancel, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "cancel has not returned at once"
    eventually(lambda: not threads("page fetcher"))
    with pytest.raises(ConnectionError, match="cancelled|this side ended"):
        transfer.done()


@pytest.mark.parametrize("said", ["nothing", "nonce", "answer", "some pages"])
def test_after_cancelling_nothing_is_written(receiver, wake, said):
    with sender_by_hand() as (ticket, accept):
        transfer = receiver.receive(ticket, 0, [1, 2])
        sender = accept()
        if said != "nothing":
            sender.hear()
        if said in ("answer", "some pages"):
            sender.reply({"layout": layout(receiver.pools), "pages": 2})
        if said == "some pages":
            sender.connection.write([b"x" * 300])
            eventually(lambda: not untouched(receiver))
        transfer.wait(0.1)  # for the next byte, in most of the cases
        assert_cancelled(transfer)
        written = [pool.clone() for pool in receiver.pools]
        with suppress(OSError):
            sender.connection.write([b"y" * transfer.bytes])
        assert all(torch.equal(*pair) for pair in zip(written, receiver.pools, strict=True))
        assert said == "some pages" or untouched(receiver)


def test_cancelling_waits_for_what_is_being_written(receiver, monkeypatch):
    """Its pages are free for another request as soon as `cancel` returns."""
    writing, written = threading.Event(), threading.Event()

    def fetch(transfer, connection):
        writing.set()
        eventually(lambda: connection.stopped)
        time.sleep(0.1)  # bytes that have arrived are still being copied
        written.set()
        connection.read(1)

    monkeypatch.setattr(tcp_transfer.TcpTransfer, "_fetch", fetch)
    transfer = receiver.receive(Ticket("127.0.0.1", 1, bytes(32), "a"), 0, [1, 2])
    assert writing.wait(30)
    transfer.cancel()
    assert written.is_set(), "cancel has returned while bytes were being written"


def test_cancelling_ends_an_attempt_to_connect(receiver, wake):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        ticket = Ticket(*listener.getsockname(), bytes(32), "a")
        with socket.create_connection(ticket[:2]):  # and with it the queue is full: the system answers no more
            transfer = receiver.receive(ticket, 0, [1, 2])
            eventually(lambda: transfer._connection)
            transfer.wait(0.1)
            assert not transfer.done()
            assert_cancelled(transfer)


def test_cancelling_while_it_starts(receiver):
    """Some threads have begun their transfer, others have not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ticket = Ticket(*listener.getsockname(), bytes(32), "a")
        for _ in range(50):
            assert_cancelled(receiver.receive(ticket, 0, [1, 2]))


def test_a_queued_transfer_can_be_cancelled(receiver, sender, monkeypatch):
    monkeypatch.setattr(tcp_transport, "MAX_FETCHES", 1)
    with sender_by_hand() as (ticket, accept):
        first = receiver.receive(ticket, 0, [1, 2])
        accept()
        second, third = (receiver.receive(sender.send("a", [3, 4]), 0, [page, page + 1]) for page in (3, 5))
        second.cancel()
        with pytest.raises(ConnectionError, match="cancelled"):
            second.done()
        assert not first.done() and not third.done()
        first.cancel()
        assert fetched(third)
    assert not receiver.pools[0][:, :5].any() and receiver.pools[0][:, 5:7].all()


def test_cancelling_what_is_complete_changes_nothing(receiver, sender):
    transfer = receiver.receive(sender.send("a", [3, 4]), 0, [1, 2])
    assert fetched(transfer)
    transfer.cancel()
    assert transfer.done()

"""The TCP transport's own: threads and queues, deadlines, what it believes of strangers, and cancelling at any time."""

import errno
import pickle
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from unittest.mock import patch

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.distributed import interruptible_socket, staging, tcp_transfer, tcp_transport
from common.distributed.interruptible_socket import InterruptibleSocket, in_parts
from common.distributed.page_bytes import bytes_of, layout, page_runs, page_views
from common.distributed.page_handshake import REQUEST, Ticket
from common.distributed.staging import Staging
from common.distributed.tcp_transport import TcpTransport
from tests.helpers.page_ends import (
    BIG,
    assert_arrived,
    eventually,
    fetched,
    never_stall,
    random_pools,
    receiver_by_hand,
    sender_by_hand,
    threads,
    transport,
    untouched,
    zero_pools,
)


@pytest.fixture
def sender():
    with transport(random_pools()) as sender:
        yield sender


@pytest.fixture
def receiver():
    with transport(zero_pools()) as receiver:
        yield receiver


@pytest.mark.parametrize("way", ["staged sender", "staged receiver", "both staged", "without scatter and gather"])
def test_pages_take_other_ways_where_they_must(sender, receiver, monkeypatch, way):
    """Through host memory, as a GPU's pages do, here with pools on the CPU. And Windows has no scatter and gather."""
    if way in ("staged sender", "both staged"):
        monkeypatch.setattr(tcp_transport, "on_host", lambda pools: False)
    if way in ("staged receiver", "both staged"):
        monkeypatch.setattr(tcp_transfer, "on_host", lambda pools: False)
    if way.startswith("without"):
        monkeypatch.setattr(interruptible_socket, "SCATTER_GATHER", False)
    assert fetched(receiver.receive(sender.send("a", [7, 8, 3]), 0, [5, 4, 20]))
    assert fetched(receiver.receive(sender.send("b", []), 0, []))
    assert_arrived(sender, receiver, [7, 8, 3], [5, 4, 20])


def test_transfers_beyond_the_limit_are_queued(sender, receiver, monkeypatch):
    monkeypatch.setattr(tcp_transport, "MAX_FETCHES", 3)
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 2)
    tickets = [sender.send(str(page), [page]) for page in range(50)]
    transfers = [receiver.receive(ticket, 0, [49 - page]) for page, ticket in enumerate(tickets)]
    assert len(threads("page fetcher")) <= 3 and len(threads("page server")) <= 2
    assert all(fetched(transfer) for transfer in transfers)
    assert_arrived(sender, receiver, list(range(50)), list(range(49, -1, -1)))


@pytest.mark.parametrize(
    ("wrong", "reason"), [({"key": "b"}, "not on offer"), ({"secret": bytes(32)}, "ended"), ({"port": 1}, "refused")]
)
def test_wrong_tickets_are_refused(sender, receiver, wrong, reason):
    ticket = sender.send("a", [1, 2])
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    with pytest.raises(ConnectionError, match=reason):
        fetched(receiver.receive(ticket._replace(**wrong), 0, [1, 2]))


@pytest.mark.parametrize("outcome", ["complete", "failed", "cancelled"])
def test_on_done_is_called_once(sender, receiver, monkeypatch, outcome):
    monkeypatch.setattr(tcp_transport, "MAX_FETCHES", 1)
    calls = []

    def on_done():
        calls.append(outcome)
        raise RuntimeError("the worker's own trouble, which ends no fetching thread")

    with sender_by_hand() as (silent, _):
        offered = sender.send("a", [1, 2])
        tickets = {"complete": offered, "failed": offered._replace(key="b"), "cancelled": silent}
        transfer = receiver.receive(tickets[outcome], 0, [1, 2], on_done)
        if outcome == "cancelled":
            transfer.cancel()
            transfer.cancel()
        eventually(lambda: not threads("page fetcher"))
    assert calls == [outcome]
    if outcome != "complete":
        with pytest.raises(ConnectionError):
            transfer.done()
    assert fetched(receiver.receive(offered, 0, [1, 2]))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_transport_listens_on_one_address_only(sender, receiver, host):
    try:
        transport = TcpTransport(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    try:
        assert transport._listener.socket.getsockname()[:2] == (host, transport.port)
        transport.register(sender.pools)
        assert fetched(receiver.receive(transport.send("a", [1, 2]), 0, [1, 2]))
    finally:
        transport.close()
        transport.close()
    assert not transport._acceptor.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, transport.port))


def test_closing_ends_all_threads_and_transfers(sender, receiver):
    with sender_by_hand() as (silent, accept), receiver_by_hand(sender.send("a", [1])):
        transfers = [receiver.receive(silent, 0, [page]) for page in range(50)]
        accept()
        receiver.close()
        sender.close()
        eventually(lambda: not threads("page fetcher") and not threads("page server"))
        transfers.append(receiver.receive(silent, 0, [3]))
        for transfer in transfers:
            with pytest.raises(ConnectionError):
                transfer.done()


def test_impossible_pools_pages_and_keys_are_refused(sender, receiver):
    turned, unlike = torch.zeros(50, 2, 4).transpose(0, 1), [torch.zeros(2, 50, 4), torch.zeros(2, 49, 4)]
    for pools in ([], [torch.zeros(5)], [torch.zeros(2, 0, 4)], [turned], unlike):
        with pytest.raises(ValueError, match="pools must"):
            sender.register(pools)
    for pages in ([50], [-1]):
        with pytest.raises(ValueError, match="no page"):
            sender.send("a", pages)
        with pytest.raises(ValueError, match="no page"):
            receiver.receive(sender.send("a", [1]), 0, pages)
    with pytest.raises(ValueError, match="1024 bytes"):
        sender.send("ä" * 513, [1])
    assert fetched(receiver.receive(sender.send("ä" * 512, numpy.arange(2)), 0, numpy.arange(2)))


# ---- The bytes of pages ----

NUM_PAGES = 9
page_lists = st.lists(st.integers(0, NUM_PAGES - 1), max_size=NUM_PAGES)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64])
pool_shapes = st.tuples(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2))


@given(st.data(), st.lists(pool_shapes, min_size=1, max_size=3), dtypes, page_lists, st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_views_are_the_bytes_of_the_pages_in_order(data, shapes, dtype, pages, piece_bytes):
    pools = [torch.randint(0, 100, (layers, NUM_PAGES, *rest)).to(dtype) for layers, rest in shapes]
    expected = b"".join(pool[:, pages].contiguous().flatten().view(torch.uint8).numpy().tobytes() for pool in pools)
    with patch.object(staging, "PIECE_BYTES", piece_bytes):
        pieces = [bytes(piece) for piece in Staging(pools, pages).read()]  # one is valid until the next
    assert b"".join(page_views(pools, pages)) == b"".join(pieces) == expected
    assert bytes_of(pools, pages) == len(expected)
    assert [page for first, end in page_runs(pages) for page in range(first, end)] == pages

    places = data.draw(st.permutations(range(NUM_PAGES)))[: len(pages)]  # the sizes in which bytes come do not matter
    rest = memoryview(expected)

    def step(pieces: list[memoryview]) -> int:
        nonlocal rest
        count = left = data.draw(st.integers(1, min(len(rest), sum(map(len, pieces)))))
        for piece in pieces:
            part = min(left, len(piece))
            piece[:part], rest, left = rest[:part], rest[part:], left - part
        return count

    received, unpacked = ([torch.zeros_like(pool) for pool in pools] for _ in range(2))
    in_parts(page_views(received, places), step)
    with patch.object(staging, "PIECE_BYTES", piece_bytes), Staging(unpacked, places).write() as to_fill:
        done = 0
        for piece in to_fill:
            piece[:] = expected[done : done + len(piece)]
            done += len(piece)
    for pool, got, also in zip(pools, received, unpacked, strict=True):
        assert torch.equal(pool[:, pages], got[:, places]) and torch.equal(got, also)
        assert not got[:, [page for page in range(NUM_PAGES) if page not in places]].any()


# ---- Withdrawn during a transfer ----


@pytest.mark.parametrize("withdraw", ["abort", "clear", "send again"])
def test_pages_withdrawn_during_a_transfer_are_never_complete(sender, receiver, monkeypatch, withdraw):

    def write_and_withdraw(connection, pieces):
        write(connection, pieces)
        if len(pieces) > 2:  # the pages, and no message
            actions = {"abort": lambda: sender.abort("a"), "clear": sender.clear}
            actions.get(withdraw, lambda: sender.send("a", [1, 2]))()

    write = InterruptibleSocket.write
    ticket = sender.send("a", [1, 2])
    monkeypatch.setattr(InterruptibleSocket, "write", write_and_withdraw)
    with pytest.raises(ConnectionError):
        fetched(receiver.receive(ticket, 0, [1, 2]))


def test_a_withdrawal_ends_a_transfer_whose_receiver_does_not_read(monkeypatch):
    never_stall(monkeypatch)
    monkeypatch.setattr(tcp_transfer, "TRANSFER_SECONDS", 1e6)
    with transport(zero_pools(shapes=BIG)) as sender, receiver_by_hand(sender.send("a", range(64))) as receiver:
        receiver.ask("a", 0, 64)
        eventually(lambda: None not in sender._connections.values())
        sender.abort("a")
        eventually(lambda: not threads("page server"))


# ---- Strangers, and peers that are slow ----


@contextmanager
def chatting(strangers: list[socket.socket]):
    """Have peers send a byte now and then, and never prove that they have a ticket."""
    ended = threading.Event()

    def chat() -> None:
        while not ended.wait(0.05):
            for stranger in strangers:
                with suppress(OSError):  # it has been dropped
                    stranger.send(b"x")

    thread = threading.Thread(target=chat)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "byte by byte"])
def test_connections_without_a_proof_are_bounded_and_keep_no_receiver_out(sender, receiver, monkeypatch, chatty):
    """Many more connect than MAX_CONNECTIONS allows; while there are places, a handshake keeps its whole deadline.

    And who has proved that it has a ticket keeps its deadline all the same.
    """
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 1e6)
    monkeypatch.setattr(tcp_transport, "CROWDED_SECONDS", 0.2)
    monkeypatch.setattr(tcp_transport, "page_views", lambda *pages: time.sleep(1) or page_views(*pages))
    ticket = sender.send("a", [1, 2])
    with ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(ticket[:2])) for _ in range(30)]
        if chatty:
            stack.enter_context(chatting(strangers))
        transfer = receiver.receive(ticket, 0, [1, 2])
        most = 0
        while not transfer._ended.wait(0.01):
            most = max(most, len(threads("page server")))
        assert transfer.done() and most <= 8


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "byte by byte"])
def test_a_connection_without_a_proof_ends_after_the_handshake_deadline(sender, monkeypatch, chatty):
    never_stall(monkeypatch)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 0.3)
    with ExitStack() as stack:
        stranger = stack.enter_context(socket.create_connection((sender.host, sender.port)))
        if chatty:
            stack.enter_context(chatting([stranger]))
        assert len(stranger.recv(99)) == 16, "the nonce"
        eventually(lambda: not sender._connections)


@pytest.mark.parametrize("when", ["in the handshake", "with the pages"])
def test_a_sender_that_trickles_exceeds_the_deadline(receiver, monkeypatch, when):
    monkeypatch.setattr(tcp_transfer, "TRANSFER_SECONDS", 0.5)
    with sender_by_hand() as (ticket, accept):
        transfer = receiver.receive(ticket, 0, [1, 2])
        sender = accept()
        if when == "with the pages":
            sender.hear()
            sender.reply({"layout": layout(receiver.pools), "pages": 2})
        for _ in range(300):
            try:
                if transfer.done():
                    break
                sender.connection.write([b"x"])
            except ConnectionError:
                break
            time.sleep(0.1)
        with pytest.raises(ConnectionError, match="deadline"):
            fetched(transfer)


def test_a_receiver_that_trickles_exceeds_the_deadline(monkeypatch):
    never_stall(monkeypatch)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 1e6)
    monkeypatch.setattr(tcp_transfer, "TRANSFER_SECONDS", 0.5)
    monkeypatch.setattr(tcp_transfer, "MIN_BYTES_PER_SECOND", 1e12)
    with ExitStack() as stack:
        sender = stack.enter_context(transport(zero_pools(shapes=BIG)))
        receiver = stack.enter_context(receiver_by_hand(sender.send("a", range(64))))
        receiver.ask("a", 0, 64)
        for _ in range(300):
            receiver.connection.read(1)
            time.sleep(0.02)
            if not threads("page server"):
                return
    pytest.fail("the sender still waits")


# ---- Which messages are believed ----


class Recorder:
    """A proxy between receiver and sender that records both directions; `change` alters a request."""

    def __init__(self, address, change=lambda data: data):
        self.said = {"receiver": b"", "sender": b""}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address, self.change = address, change
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self):
        connection = self.listener.accept()[0]
        target = socket.create_connection(self.address)
        back = threading.Thread(target=self._copy, args=(target, connection, "sender"), daemon=True)
        back.start()
        self._copy(connection, target, "receiver", self.change)

    def _copy(self, source, target, who, change=lambda data: data):
        try:
            while data := source.recv(1 << 16):
                self.said[who] += data
                target.sendall(change(data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def through(recorder: Recorder, ticket):
    host, port = recorder.listener.getsockname()
    return ticket._replace(host=host, port=port)


def test_the_secret_is_never_sent_and_no_message_can_be_replayed(sender, receiver):
    ticket = sender.send("a", [1, 2])
    recorder = Recorder((sender.host, sender.port))
    assert fetched(receiver.receive(through(recorder, ticket), 0, [1, 2]))
    for said in recorder.said.values():
        assert len(said) > 32 and ticket.secret not in said and ticket.secret.hex().encode() not in said

    with socket.create_connection(ticket[:2]) as stranger:  # the same request again: another nonce, no answer
        stranger.settimeout(30)
        stranger.sendall(recorder.said["receiver"])
        said = b""
        while data := stranger.recv(1 << 16):
            said += data
        assert len(said) == 16

    for pool in receiver.pools:
        pool.zero_()
    with sender_by_hand(ticket.secret) as (fake, accept):  # the same answer again, to another request
        transfer = receiver.receive(fake, 0, [1, 2])
        accept().connection.write([recorder.said["sender"]])
        with pytest.raises(ConnectionError, match="secret"):
            fetched(transfer)
    assert untouched(receiver)


@pytest.mark.parametrize("offset", [16, 20], ids=["pages to skip", "pages"])
def test_a_request_changed_in_transit_is_refused(sender, receiver, offset):
    def change(data: bytes) -> bytes:
        return data[: offset + 3] + bytes([data[offset + 3] ^ 1]) + data[offset + 4 :] if len(data) > 32 else data

    assert REQUEST.size == 26
    recorder = Recorder((sender.host, sender.port), change)
    with pytest.raises(ConnectionError):
        fetched(receiver.receive(through(recorder, sender.send("a", [1, 2])), 0, [1, 2]))
    assert len(recorder.said["sender"]) == 16 and untouched(receiver)


def test_pages_without_the_last_proof_are_not_complete(receiver):
    with sender_by_hand() as (ticket, accept):
        for last_word in (b"\1", bytes(32), b""):
            transfer = receiver.receive(ticket, 0, [1, 2])
            sender = accept()
            sender.hear()
            sender.reply({"layout": layout(receiver.pools), "pages": 2})
            sender.connection.write([*page_views(receiver.pools, [1, 2]), last_word])
            sender.connection.close()
            with pytest.raises(ConnectionError):
                fetched(transfer)


UNLIKE = {
    "another dtype": [torch.ones(3, 50, 4, 2, 8, dtype=torch.int32), *zero_pools()[1:]],
    "another shape of the same size": [torch.ones(3, 50, 2, 4, 8), *zero_pools()[1:]],
    "fewer layers": [torch.ones(2, 50, 4, 2, 8), *zero_pools()[1:]],
    "fewer pools": zero_pools()[:2],
}


@pytest.mark.parametrize("pools", UNLIKE.values(), ids=UNLIKE.keys())
def test_pages_of_unlike_pools_are_refused_before_a_byte_is_written(receiver, pools):
    with transport(pools) as sender, pytest.raises(ConnectionError, match="the sender's pools are .*float32"):
        fetched(receiver.receive(sender.send("a", [1, 2]), 0, [1, 2]))
    assert untouched(receiver)


@pytest.mark.parametrize(("skip", "pages"), [(0, [1]), (0, [1, 2, 3]), (1, [1, 2]), (3, [1])])
def test_another_number_of_pages_is_refused_before_a_byte_is_written(sender, receiver, skip, pages):
    with pytest.raises(
        ConnectionError, match=f"{max(0, 2 - skip)} pages? to send, the receiver has reserved {len(pages)}"
    ):
        fetched(receiver.receive(sender.send("a", [1, 2]), skip, pages))
    assert untouched(receiver)


# ---- Failures on its own machine ----


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


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "no descriptors"), MemoryError()], ids=repr)
def test_no_error_ends_the_accept_loop(sender, receiver, monkeypatch, error):
    accept, failures = InterruptibleSocket.accept, [error] * 3

    def fail_at_first(listener):
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(InterruptibleSocket, "accept", fail_at_first)
    for _ in range(2):  # the loop may wait for the first one already
        assert fetched(receiver.receive(sender.send("a", [1, 2]), 0, [1, 2]))
    assert not failures


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

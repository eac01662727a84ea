"""The TCP transport's own: threads and queues, deadlines, what it believes of strangers, and cancelling at any time."""

import errno
import pickle
import socket
import sys
import threading
import time
from collections import defaultdict
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
from common.distributed.page_bytes import layout, page_views
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


# ---- Ways, places and ends ----


def test_transfers_beyond_the_limit_are_queued(sender, receiver, monkeypatch):
    """All of them arrive, though at first the system has no descriptors or no memory for their connections."""
    accept, failures = InterruptibleSocket.accept, [OSError(errno.EMFILE, "no descriptors"), MemoryError()] * 2

    def fail_at_first(listener):
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(InterruptibleSocket, "accept", fail_at_first)
    monkeypatch.setattr(tcp_transport, "MAX_FETCHES", 3)
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 2)
    tickets = [sender.send(str(page), [page]) for page in range(50)]
    transfers = [receiver.receive(ticket, 0, [49 - page]) for page, ticket in enumerate(tickets)]
    assert len(threads("page fetcher")) <= 3 and len(threads("page server")) <= 2
    assert all(fetched(transfer) for transfer in transfers) and not failures
    assert_arrived(sender, receiver, list(range(50)), list(range(49, -1, -1)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_transport_listens_on_one_address_until_it_is_closed(receiver, host):
    """Closing it ends all transfers, and all threads."""
    try:
        socket.create_server((host, 0), family=tcp_transfer.family_of(host)).close()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with transport(random_pools(), partial(TcpTransport, host)) as sender, sender_by_hand() as (silent, accept):
        assert sender._listener.socket.getsockname()[:2] == (host, sender.port)
        assert fetched(receiver.receive(sender.send("a", [1, 2]), 0, [1, 2]))
        with receiver_by_hand(sender.send("a", [1])):
            transfers = [receiver.receive(silent, 0, [page]) for page in range(50)]
            accept()
            for one in (sender, sender, receiver):
                one.close()
            eventually(lambda: not threads("page fetcher") and not threads("page server"))
        for transfer in [*transfers, receiver.receive(silent, 0, [3])]:
            with pytest.raises(ConnectionError):
                transfer.done()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, sender.port))


def test_impossible_pools_pages_and_keys_are_refused(sender, receiver):
    turned, unlike = torch.zeros(50, 2, 4).transpose(0, 1), [torch.zeros(2, 50, 4), torch.zeros(2, 49, 4)]
    for pools in ([], [torch.zeros(5)], [torch.zeros(2, 0, 4)], [turned], unlike):
        with pytest.raises(ValueError, match="pools must"):
            sender.register(pools)
    for page in (50, -1):
        with pytest.raises(ValueError, match="no page"):
            sender.send("a", [page])
        with pytest.raises(ValueError, match="no page"):
            receiver.receive(sender.send("a", [1]), 0, [page])
    with pytest.raises(ValueError, match="1024 bytes"):
        sender.send("ä" * 513, [1])
    assert fetched(receiver.receive(sender.send("ä" * 512, numpy.arange(2)), 0, numpy.arange(2)))


NUM_PAGES = 9
page_lists = st.lists(st.integers(0, NUM_PAGES - 1), max_size=NUM_PAGES)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64])
pool_shapes = st.tuples(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2))


@given(st.data(), st.lists(pool_shapes, min_size=1, max_size=3), dtypes, page_lists, st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_bytes_are_those_of_the_pages_in_order(data, shapes, dtype, pages, piece_bytes):
    """Read and written by views and, on their way to a GPU, in pieces, whatever the size of these."""
    pools = [torch.randint(0, 100, (layers, NUM_PAGES, *rest)).to(dtype) for layers, rest in shapes]
    expected = b"".join(pool[:, pages].contiguous().flatten().view(torch.uint8).numpy().tobytes() for pool in pools)
    places, rest = data.draw(st.permutations(range(NUM_PAGES)))[: len(pages)], memoryview(expected)

    def step(pieces: list[memoryview]) -> int:
        nonlocal rest
        part = min(len(pieces[0]), piece_bytes)
        pieces[0][:part], rest = rest[:part], rest[part:]
        return part

    received, unpacked = ([torch.zeros_like(pool) for pool in pools] for _ in range(2))
    in_parts(page_views(received, places), step)
    with patch.object(staging, "PIECE_BYTES", piece_bytes):
        pieces = [bytes(piece) for piece in Staging(pools, pages).read()]  # one is valid until the next
        with Staging(unpacked, places).write() as to_fill:
            for piece, sent in zip(to_fill, pieces, strict=True):
                piece[:] = sent
    assert b"".join(page_views(pools, pages)) == b"".join(pieces) == expected
    for pool, got, also in zip(pools, received, unpacked, strict=True):
        assert torch.equal(pool[:, pages], got[:, places]) and torch.equal(got, also)
        assert not got[:, [page for page in range(NUM_PAGES) if page not in places]].any()


# ---- Withdrawn during a transfer ----


@pytest.mark.parametrize("withdraw", ["abort", "clear", "send again"])
def test_pages_withdrawn_during_a_transfer_are_never_complete(sender, receiver, monkeypatch, withdraw):
    actions = {"abort": lambda: sender.abort("a"), "clear": sender.clear, "send again": lambda: sender.send("a", [1])}

    def write_and_withdraw(connection, pieces):
        write(connection, pieces)
        if len(pieces) > 2:  # the pages, and no message
            actions[withdraw]()

    write, ticket = InterruptibleSocket.write, sender.send("a", [1, 2])
    monkeypatch.setattr(InterruptibleSocket, "write", write_and_withdraw)
    with pytest.raises(ConnectionError):
        fetched(receiver.receive(ticket, 0, [1, 2]))


@pytest.mark.parametrize("ends", ["withdrawn", "deadline"])
def test_a_receiver_that_does_not_read_or_trickles_holds_no_thread(monkeypatch, ends):
    never_stall(monkeypatch)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 1e6)
    monkeypatch.setattr(tcp_transfer, "TRANSFER_SECONDS", 0.5 if ends == "deadline" else 1e6)
    monkeypatch.setattr(tcp_transfer, "MIN_BYTES_PER_SECOND", 1e12)
    with transport(zero_pools(shapes=BIG)) as sender, receiver_by_hand(sender.send("a", range(64))) as receiver:
        receiver.ask("a", 0, 64)
        if ends == "withdrawn":
            sender.abort("a")
        eventually(lambda: not threads("page server") or (ends == "deadline" and not receiver.connection.read(1)))


# ---- Strangers, and peers that are slow ----


@contextmanager
def strangers(address: tuple[str, int], count: int):
    """Connect peers that never prove that they have a ticket: half are silent, the others send a byte now and then."""
    ended = threading.Event()

    def chat() -> None:
        while not ended.wait(0.05):
            for peer in peers[::2]:
                with suppress(OSError):  # it has been dropped
                    peer.send(b"x")

    with ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        thread = threading.Thread(target=chat)
        thread.start()
        yield peers
        ended.set()
        thread.join()


def test_connections_without_a_proof_are_bounded_and_keep_no_receiver_out(sender, receiver, monkeypatch):
    """Many more connect than MAX_CONNECTIONS allows; while there are places, a handshake keeps its whole deadline.

    And who has proved that it has a ticket keeps its deadline all the same.
    """
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 1e6)
    monkeypatch.setattr(tcp_transport, "CROWDED_SECONDS", 0.2)
    monkeypatch.setattr(tcp_transport, "page_views", lambda *pages: time.sleep(1) or page_views(*pages))
    ticket, most = sender.send("a", [1, 2]), 0
    with strangers(ticket[:2], 30):
        transfer = receiver.receive(ticket, 0, [1, 2])
        while not transfer._ended.wait(0.01):
            most = max(most, len(threads("page server")))
    assert transfer.done() and most <= 8


def test_a_connection_without_a_proof_ends_after_the_handshake_deadline(sender, monkeypatch):
    never_stall(monkeypatch)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 0.3)
    with strangers((sender.host, sender.port), 2) as peers:
        assert [len(peer.recv(99)) for peer in peers] == [16, 16], "the nonce"
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
        with suppress(ConnectionError):
            for _ in range(300):
                sender.connection.write([b"x"])
                time.sleep(0.1)
        with pytest.raises(ConnectionError, match="deadline"):
            fetched(transfer)


# ---- Which messages are believed ----


@pytest.mark.parametrize(
    ("wrong", "reason"), [({"key": "b"}, "not on offer"), ({"secret": bytes(32)}, "ended"), ({"port": 1}, "refused")]
)
def test_wrong_tickets_are_refused(sender, receiver, wrong, reason):
    ticket = sender.send("a", [1, 2])
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    with pytest.raises(ConnectionError, match=reason):
        fetched(receiver.receive(ticket._replace(**wrong), 0, [1, 2]))


@pytest.fixture
def said(monkeypatch) -> dict[str, bytes]:
    """What both sides write, by the names of their threads."""

    def record(connection, pieces):
        said[threading.current_thread().name] += b"".join(pieces)
        write(connection, pieces)

    said, write = defaultdict(bytes), InterruptibleSocket.write
    monkeypatch.setattr(InterruptibleSocket, "write", record)
    return said


def test_the_secret_is_never_sent_and_no_message_can_be_replayed(sender, receiver, said):
    ticket = sender.send("a", [1, 2])
    assert fetched(receiver.receive(ticket, 0, [1, 2]))
    request, answer = said["page fetcher"], said["page server"]
    for words in (request, answer):
        assert len(words) > 32 and ticket.secret not in words and ticket.secret.hex().encode() not in words
    said["page server"] = b""
    with socket.create_connection(ticket[:2]) as stranger:  # the same request again: another nonce, no answer
        stranger.sendall(request)
        eventually(lambda: said["page server"] and not threads("page server"))
    assert len(said["page server"]) == 16
    for pool in receiver.pools:
        pool.zero_()
    with sender_by_hand(ticket.secret) as (fake, accept):  # the same answer again, to another request
        transfer = receiver.receive(fake, 0, [1, 2])
        accept().connection.write([answer])
        with pytest.raises(ConnectionError, match="secret"):
            fetched(transfer)
    assert untouched(receiver)


@pytest.mark.parametrize("place", [19, 23], ids=["pages to skip", "pages"])
def test_a_request_changed_in_transit_is_refused(sender, receiver, said, monkeypatch, place):
    def change(connection, pieces):
        message = bytearray(pieces[0])
        if len(message) == REQUEST.size + len("a"):
            message[place] ^= 1
        write(connection, [message, *pieces[1:]])

    write = InterruptibleSocket.write
    monkeypatch.setattr(InterruptibleSocket, "write", change)
    with pytest.raises(ConnectionError):
        fetched(receiver.receive(sender.send("a", [1, 2]), 0, [1, 2]))
    assert len(said["page server"]) == 16 and untouched(receiver)


@pytest.mark.parametrize("last_word", [b"\1", bytes(32), b""])
def test_pages_without_the_last_proof_are_not_complete(receiver, last_word):
    with sender_by_hand() as (ticket, accept):
        transfer = receiver.receive(ticket, 0, [1, 2])
        sender = accept()
        sender.hear()
        sender.reply({"layout": layout(receiver.pools), "pages": 2})
        sender.connection.write([*page_views(receiver.pools, [1, 2]), last_word])
        sender.connection.close()
        with pytest.raises(ConnectionError):
            fetched(transfer)


@pytest.mark.parametrize(
    ("pools", "skip", "count", "says"),
    [
        ([torch.ones(3, 50, 4, 2, 8, dtype=torch.int32), *zero_pools()[1:]], 0, 2, "the sender's pools are .*int32"),
        ([torch.ones(3, 50, 2, 4, 8), *zero_pools()[1:]], 0, 2, "the sender's pools are .*float32"),  # of the same size
        (zero_pools()[:2], 0, 2, "the sender's pools are .*float32"),
        (random_pools(), 0, 1, "2 pages to send, the receiver has reserved 1"),
        (random_pools(), 1, 2, "1 page to send, the receiver has reserved 2"),
        (random_pools(), 3, 1, "0 pages to send, the receiver has reserved 1"),
    ],
    ids=["dtype", "shape", "fewer pools", "more pages", "fewer pages", "no pages"],
)
def test_pages_that_do_not_fit_are_refused_before_a_byte_is_written(receiver, pools, skip, count, says):
    with transport(pools) as sender, pytest.raises(ConnectionError, match=says):
        fetched(receiver.receive(sender.send("a", [1, 2]), skip, list(range(count))))
    assert untouched(receiver)


# ---- Failures on its own machine ----


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, SystemExit, OSError, RuntimeError])
def test_any_error_of_the_fetching_thread_fails_the_transfer(sender, receiver, monkeypatch, error):
    """Also if none can start. The worker is told once, and the next transfer is none the worse for it."""
    ticket, calls = sender.send("a", [1, 2]), []

    def fail(*_):
        raise error("injected")

    def on_done():
        calls.append(error)
        raise RuntimeError("the worker's own trouble, which ends no fetching thread")

    with monkeypatch.context() as patch:
        if error is RuntimeError:
            patch.setattr(threading.Thread, "start", fail)
        else:
            patch.setattr(tcp_transfer, "page_views", fail)
        transfer = receiver.receive(ticket, 0, [1, 2], on_done)
        transfer.wait(30)
    with pytest.raises(ConnectionError, match="injected"):
        transfer.done()
    assert fetched(receiver.receive(ticket, 0, [3, 4], on_done)) and untouched(receiver, [1, 2])
    eventually(lambda: not receiver._transfers and calls == [error] * 2)


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
    calls = []
    with sender_by_hand() as (ticket, accept):
        first = receiver.receive(ticket, 0, [1, 2])
        accept()
        second, third = (
            receiver.receive(sender.send("a", [3, 4]), 0, [page, page + 1], lambda: calls.append(1)) for page in (3, 5)
        )
        for _ in range(2):
            second.cancel()
        with pytest.raises(ConnectionError, match="cancelled"):
            second.done()
        assert not first.done() and not third.done() and calls == [1]
        first.cancel()
        assert fetched(third)
    assert not receiver.pools[0][:, :5].any() and receiver.pools[0][:, 5:7].all()

"""Transfers of pages over TCP between well-behaved peers: pages arrive as they were sent, or the transfer fails."""

import pickle
import socket
from unittest.mock import patch

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.distributed import interruptible_socket, staging, tcp_transfer, tcp_transport
from common.distributed.interruptible_socket import InterruptibleSocket, in_parts
from common.distributed.page_bytes import bytes_of, layout, page_runs, page_views
from common.distributed.staging import Staging
from common.distributed.tcp_transport import TcpTransport
from tests.helpers.page_ends import (
    BIG,
    SHAPES,
    eventually,
    fetched,
    never_stall,
    random_pools,
    receiver_by_hand,
    sender_by_hand,
    threads,
    transport,
    zero_pools,
)


@pytest.fixture(params=["float32", "bfloat16"])
def ends(request):
    """Two transports with pools of 50 pages: one full of numbers, one of zeros."""
    dtype = getattr(torch, request.param)
    with transport(random_pools(dtype)) as sender, transport(zero_pools(dtype)) as receiver:
        yield sender, receiver


def assert_arrived(sender, receiver, source: list[int], places: list[int]) -> None:
    untouched = [page for page in range(50) if page not in places]
    for sent, got in zip(sender.pools, receiver.pools, strict=True):
        assert torch.equal(sent[:, source], got[:, places].to(sent.device))
        assert not got[:, untouched].any()


@pytest.mark.parametrize("skip", [0, 2, 6])
def test_pages_arrive_as_they_were_sent_and_nothing_else_is_touched(ends, skip):
    sender, receiver = ends
    source, places = [7, 8, 9, 3, 49, 0], [5, 4, 20, 21, 22, 6]
    transfer = receiver.receive(sender.send("a", source), skip, places[skip:])
    assert fetched(transfer) and transfer.seconds > 0
    assert transfer.bytes == sum(pool[:, 0].nbytes for pool in sender.pools) * (6 - skip)
    assert_arrived(sender, receiver, source[skip:], places[skip:])


@pytest.mark.parametrize("staged", ["sender", "receiver", "both"])
def test_pages_pass_through_host_memory_where_they_must(ends, monkeypatch, staged):
    """The way of a GPU's pages, walked with pools on the CPU."""
    if staged != "receiver":
        monkeypatch.setattr(tcp_transport, "on_host", lambda pools: False)
    if staged != "sender":
        monkeypatch.setattr(tcp_transfer, "on_host", lambda pools: False)
    sender, receiver = ends
    assert fetched(receiver.receive(sender.send("a", [7, 8, 3]), 0, [5, 4, 20]))
    assert fetched(receiver.receive(sender.send("b", []), 0, []))
    assert_arrived(sender, receiver, [7, 8, 3], [5, 4, 20])


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")], ids="-to-".join)
def test_pages_of_a_gpu_arrive(kinds):
    pools = [[pool.to(kind) for pool in make()] for make, kind in zip((random_pools, zero_pools), kinds, strict=True)]
    with transport(pools[0]) as sender, transport(pools[1]) as receiver:
        assert fetched(receiver.receive(sender.send("a", [7, 8, 3]), 0, [5, 4, 20]))
        assert_arrived(sender, receiver, [7, 8, 3], [5, 4, 20])


def test_pages_arrive_without_scatter_and_gather(ends, monkeypatch):
    """Windows has no scatter and gather."""
    monkeypatch.setattr(interruptible_socket, "SCATTER_GATHER", False)
    sender, receiver = ends
    assert fetched(receiver.receive(sender.send("a", [7, 8, 3]), 0, [5, 4, 20]))
    assert_arrived(sender, receiver, [7, 8, 3], [5, 4, 20])


def test_transfers_beyond_the_limit_are_queued(ends, monkeypatch):
    monkeypatch.setattr(tcp_transport, "MAX_FETCHES", 3)
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 2)
    sender, receiver = ends
    tickets = [sender.send(str(page), [page]) for page in range(50)]
    transfers = [receiver.receive(ticket, 0, [49 - page]) for page, ticket in enumerate(tickets)]
    assert len(threads("page fetcher")) <= 3 and len(threads("page server")) <= 2
    assert all(fetched(transfer) for transfer in transfers)
    assert_arrived(sender, receiver, list(range(50)), list(range(49, -1, -1)))


def test_withdrawn_and_unknown_offers_and_wrong_secrets_are_refused(ends):
    sender, receiver = ends
    ticket = sender.send("a", [1, 2])
    for wrong, reason in (({"key": "b"}, "not on offer"), ({"secret": bytes(32)}, "ended"), ({"port": 1}, "refused")):
        with pytest.raises(ConnectionError, match=reason):
            fetched(receiver.receive(ticket._replace(**wrong), 0, [1, 2]))
    sender.send("c", [1, 2])
    sender.abort("a")
    sender.abort("a")
    with pytest.raises(ConnectionError, match="not on offer"):
        fetched(receiver.receive(ticket, 0, [1, 2]))
    assert fetched(receiver.receive(ticket._replace(key="c"), 0, [1, 2]))
    sender.clear()
    with pytest.raises(ConnectionError, match="not on offer"):
        fetched(receiver.receive(ticket._replace(key="c"), 0, [1, 2]))


@pytest.mark.parametrize("withdraw", ["abort", "clear", "send again"])
def test_pages_withdrawn_during_a_transfer_are_never_complete(ends, monkeypatch, withdraw):
    sender, receiver = ends

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


@pytest.mark.parametrize("outcome", ["complete", "failed", "cancelled"])
def test_on_done_is_called_once(ends, monkeypatch, outcome):
    monkeypatch.setattr(tcp_transport, "MAX_FETCHES", 1)
    sender, receiver = ends
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


def test_a_ticket_can_be_pickled(ends):
    ticket = ends[0].send("a", [3])
    assert pickle.loads(pickle.dumps(ticket)) == ticket


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_transport_listens_on_one_address_only(ends, host):
    try:
        transport = TcpTransport(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    try:
        assert transport._listener.socket.getsockname()[:2] == (host, transport.port)
        transport.register(ends[0].pools)
        assert fetched(ends[1].receive(transport.send("a", [1, 2]), 0, [1, 2]))
    finally:
        transport.close()
        transport.close()
    assert not transport._acceptor.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, transport.port))


def test_closing_ends_all_threads_and_transfers(ends):
    sender, receiver = ends
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


@pytest.mark.parametrize(
    "pools",
    [
        [],
        [torch.zeros(5)],
        [torch.zeros(2, 0, 4)],
        [torch.zeros(50, 2, 4).transpose(0, 1)],
        [torch.zeros(2, 50, 4), torch.zeros(2, 49, 4)],
    ],
    ids=["none", "one dimension", "empty", "not contiguous", "unlike numbers of pages"],
)
def test_incompatible_pools_are_refused(ends, pools):
    with pytest.raises(ValueError, match="pools must"):
        ends[0].register(pools)


def test_pages_and_keys_that_do_not_exist_are_refused(ends):
    sender, receiver = ends
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


def test_neighbouring_pages_are_one_piece():
    pools = zero_pools()
    pieces = page_views(pools, [7, 8, 9, 3])
    assert page_runs([7, 8, 9, 3]) == [(7, 10), (3, 4)]
    assert [len(piece) for piece in pieces[:4]] == [3 * 256, 256, 3 * 256, 256]
    pieces[0][:4] = numpy.float32(2.5).tobytes()
    assert pools[0][0, 7, 0, 0, 0] == 2.5, "a view is the pool's own memory"


def test_the_layout_of_a_pool():
    assert layout(zero_pools(torch.bfloat16, SHAPES[2:])) == ["torch.bfloat16 [2, 4, 1, 8]"]

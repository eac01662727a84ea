"""Transfers of pages with peers that have no ticket, peers that are slow, and forged or replayed messages."""

import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
import torch

from common.distributed import tcp_transfer, tcp_transport
from common.distributed.page_bytes import layout, page_views
from common.distributed.page_handshake import REQUEST
from tests.helpers.page_ends import (
    BIG,
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

# ---- Strangers, and peers that are slow ----


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "byte by byte"])
def test_connections_without_a_proof_are_bounded_and_keep_no_receiver_out(sender, receiver, monkeypatch, chatty):
    """Many more connect than MAX_CONNECTIONS allows; while there are places, a handshake keeps its whole deadline."""
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 1e6)
    monkeypatch.setattr(tcp_transport, "CROWDED_SECONDS", 0.2)
    ticket, ended = sender.send("a", [1, 2]), threading.Event()
    with ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(ticket[:2])) for _ in range(30)]
        stack.callback(ended.set)

        def chat():
            while not ended.wait(0.05):
                for stranger in strangers:
                    with suppress(OSError):  # it has been dropped
                        stranger.send(b"x")

        if chatty:
            thread = threading.Thread(target=chat)
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
        transfer = receiver.receive(ticket, 0, [1, 2])
        most = 0
        while not transfer._ended.wait(0.01):
            most = max(most, len(threads("page server")))
        assert transfer.done() and most <= 8


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "byte by byte"])
def test_a_connection_without_a_proof_ends_after_the_handshake_deadline(monkeypatch, chatty):
    never_stall(monkeypatch)
    monkeypatch.setattr(tcp_transport, "HANDSHAKE_SECONDS", 0.3)
    with transport(zero_pools()) as sender, socket.create_connection((sender.host, sender.port)) as stranger:
        stranger.settimeout(1.0)
        assert len(stranger.recv(99)) == 16, "the nonce"
        for _ in range(30):  # fewer bytes than a request has
            with suppress(TimeoutError, BrokenPipeError):
                if chatty:
                    stranger.send(b"\0")
                if stranger.recv(99) == b"":
                    break
        eventually(lambda: not sender._connections)


def test_a_receiver_with_a_proof_keeps_its_deadline(receiver, monkeypatch):
    """Its transfer goes on, and the second receiver waits for a place."""
    monkeypatch.setattr(tcp_transport, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(tcp_transport, "CROWDED_SECONDS", 0.1)
    slow, gate = threading.Event(), threading.Event()

    def views_at_the_gate(pools, pages):
        slow.set()
        assert gate.wait(30)
        return page_views(pools, pages)

    with transport(random_pools()) as sender:
        monkeypatch.setattr(tcp_transport, "page_views", views_at_the_gate)
        ticket = sender.send("a", [1, 2])
        first = receiver.receive(ticket, 0, [1, 2])
        assert slow.wait(30)
        second = receiver.receive(ticket, 0, [3, 4])
        second.wait(1.0)
        assert not first.done() and not second.done()
        gate.set()
        assert fetched(first) and fetched(second)


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

"""Connections with a key: peers without it are refused, and cannot block the one that has it."""

import errno
import os
import queue
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import Mock

import pytest

from common.distributed import channel
from common.distributed.channel import Door, connect, hang_up, limit_reads, on_thread, receive_into, send_from


@contextmanager
def knock(door: Door, before=lambda: None):
    """Give both ends of a connection through a door. before: what happens while it is open, and nobody has come."""
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(door.accept, 60.0)
        before()
        with connect(door.address, door.key) as here, accepting.result() as there:
            yield here, there


@pytest.fixture
def ends():
    with knock(Door("127.0.0.1")) as ends:
        yield ends


def test_messages_go_both_ways():
    door = Door("127.0.0.1")
    with knock(door) as (here, there):
        here.send({"a": [1, 2]})
        there.send("b" * 10**6)
        assert there.recv() == {"a": [1, 2]} and len(here.recv()) == 10**6
    assert door.address[0] == "127.0.0.1"
    with pytest.raises(OSError):
        connect(door.address, door.key)  # the door is closed behind the first one


def test_reading_from_a_sender_that_stops_in_a_message_fails(ends):
    here, there = ends
    limit_reads(here, 0.3)
    there.send("whole")
    assert here.recv() == "whole"
    os.write(there.fileno(), struct.pack("!i", 1000) + b"the first of 1000 bytes")
    with pytest.raises(OSError):
        here.recv()


def test_a_connection_is_ended_also_when_no_descriptor_is_left(ends):
    resource = pytest.importorskip("resource")
    here, there = ends
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        hang_up(here)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert there.poll(20)
    with pytest.raises(EOFError):
        there.recv()


@pytest.mark.parametrize("work", [receive_into, send_from])
def test_the_end_of_the_block_ends_a_thread_that_waits_for_a_silent_peer(ends, work):
    here, there = ends
    messages = queue.SimpleQueue()
    with on_thread(work, messages, here, None):
        if work is send_from:
            messages.put(bytes(10**8))  # more than a socket holds, and the peer does not read
            assert there.poll(20)
    with pytest.raises((EOFError, OSError)):
        there.recv()


# ---- Strangers ----


@pytest.mark.parametrize("trouble", ["another key", "silent peers", "errors of accept"])
def test_nothing_keeps_out_the_peer_with_the_key(monkeypatch, trouble):
    """Once, a single EMFILE ended the loop for good, without a message."""
    monkeypatch.setattr(channel, "MOST_HANDSHAKES", 4)
    door, failures = Door("127.0.0.1"), [OSError(errno.EMFILE, "too many open files")] * 3
    listener = door.listener

    def accept():
        if trouble == "errors of accept" and failures:
            raise failures.pop()
        return listener.accept()

    def before():
        if trouble == "another key":
            with pytest.raises(OSError):
                connect(door.address, bytes(32))
        if trouble == "silent peers":
            for _ in range(3):
                stack.enter_context(socket.create_connection(door.address))

    door.listener = Mock(wraps=listener, accept=accept)
    with ExitStack() as stack, knock(door, before) as (here, there):
        here.send("in")
        assert there.recv() == "in"
    assert not failures or trouble != "errors of accept"


def test_a_listener_without_the_key_is_refused():
    """Another program listens in the worker's place and accepts any key."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def welcome_all():
            peer, _ = stranger.accept()
            with channel.Connection(peer.detach()) as connection:
                connection.send_bytes(b"#CHALLENGE#" + bytes(40))
                connection.recv_bytes()
                connection.send_bytes(b"#WELCOME#")
                connection.recv_bytes()
                connection.send_bytes(bytes(16))

        threading.Thread(target=welcome_all, daemon=True).start()
        with pytest.raises(OSError):
            connect(stranger.getsockname(), bytes(32))


def test_neither_end_waits_for_ever_for_the_other(monkeypatch):
    monkeypatch.setattr(channel, "HANDSHAKE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError):
        connect(silent.getsockname(), bytes(32))
    with pytest.raises(TimeoutError, match="no peer with the key"):
        Door("127.0.0.1").accept(0.3)

"""Connections with a key: peers without it are refused, and cannot block the one that has it."""

import errno
import os
import queue
import socket
import struct
import threading

import pytest

from common.distributed import channel
from common.distributed.channel import Door, connect, hang_up, limit_reads, on_thread, receive_into, send_from


def accept(door, seconds=20.0):
    """Run `door.accept` on a thread; the list gets its result or its exception."""
    result = []

    def run():
        try:
            result.append(door.accept(seconds))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


@pytest.fixture
def ends():
    """The two ends of a connection."""
    door = Door("127.0.0.1")
    thread, result = accept(door)
    with connect(door.address, door.key) as here:
        thread.join()
        with result[0] as there:
            yield here, there


def test_messages_go_both_ways():
    door = Door("127.0.0.1")
    thread, result = accept(door)
    with connect(door.address, door.key) as here:
        thread.join()
        with result[0] as there:
            here.send({"a": [1, 2]})
            there.send("b" * 10**6)
            assert there.recv() == {"a": [1, 2]} and len(here.recv()) == 10**6
    with pytest.raises(OSError):
        connect(door.address, door.key)  # the door is closed behind the first one


def test_reading_from_a_sender_that_stops_in_a_message_fails(ends):
    here, there = ends
    limit_reads(here, 0.3)
    there.send("whole")
    assert here.recv() == "whole"
    header = struct.pack("!i", 1000)
    os.write(there.fileno(), header + b"the first of 1000 bytes")
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


def test_a_peer_with_the_wrong_key_is_refused():
    door = Door("127.0.0.1")
    thread, result = accept(door)
    with pytest.raises(OSError):
        connect(door.address, bytes(32))
    with connect(door.address, door.key):
        thread.join()
        result[0].close()


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


def test_silent_peers_do_not_keep_out_the_one_with_the_key(monkeypatch):
    monkeypatch.setattr(channel, "MOST_HANDSHAKES", 4)
    door = Door("127.0.0.1")
    thread, result = accept(door, 60.0)
    strangers = [socket.create_connection(door.address) for _ in range(3)]
    with connect(door.address, door.key):
        thread.join()
        result[0].close()
    for stranger in strangers:
        stranger.close()


def test_connecting_to_a_silent_listener_fails_after_the_deadline(monkeypatch):
    monkeypatch.setattr(channel, "HANDSHAKE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError):
        connect(silent.getsockname(), bytes(32))


def test_accept_fails_and_closes_if_no_peer_comes():
    with pytest.raises(TimeoutError, match="no peer with the key"):
        Door("127.0.0.1").accept(0.3)


def test_an_error_of_accept_does_not_end_its_loop(monkeypatch):
    """Once, a single EMFILE ended the loop for good, without a message."""
    door = Door("127.0.0.1")
    failures = [OSError(errno.EMFILE, "too many open files")] * 3

    class Listener:
        def __init__(self, listener):
            self.listener = listener

        def accept(self):
            if failures:
                raise failures.pop()
            return self.listener.accept()

        def __getattr__(self, name):
            return getattr(self.listener, name)

    door.listener = Listener(door.listener)
    thread, result = accept(door)
    with connect(door.address, door.key):
        thread.join()
        result[0].close()
    assert not failures


def test_it_listens_on_its_host_only():
    door = Door("127.0.0.1")
    assert door.address[0] == "127.0.0.1"
    door.close()

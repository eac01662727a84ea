"""Pages arrive as they were sent, once they are offered and until withdrawn, whatever happens to their sender."""

import atexit
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from common.distributed import nixl_transport, page_transport

try:
    nixl_transport.nixl()
except ImportError:
    pytest.skip("needs the package nixl", allow_module_level=True)
from tests.helpers.serving_stage_03 import wait_until  # noqa: E402  a machine with a GPU may lack its packages, too

SHAPES = [(50, 4, 8, 2, 8), (50, 2, 8, 1, 8)]  # of a model, and of a smaller one
PATIENCE_SECONDS = 60  # What is waited for takes milliseconds on an idle machine.
SOURCE, PLACES = [7, 8, 9, 3, 49, 0], [5, 4, 20, 21, 22, 6]


def sender_pools() -> list[torch.Tensor]:
    return [torch.arange(1.0, 51.0).view(-1, *[1] * (len(shape) - 1)).expand(shape) * 2 for shape in SHAPES]


@contextmanager
def transport(pools: list[torch.Tensor]) -> Iterator:
    one = nixl_transport.NixlTransport()
    one.register([pool.contiguous() for pool in pools])
    try:
        yield one
    finally:
        one.close()


def arrived(transfer) -> bool:
    transfer.wait(PATIENCE_SECONDS)
    return transfer.done()


@pytest.mark.parametrize(
    ("skip", "kind"),
    [(2, torch.float32), (6, torch.bfloat16), pytest.param(0, "cuda", marks=pytest.mark.gpu)],
)
def test_pages_arrive_as_they_were_sent_and_nothing_else_is_touched(skip, kind):
    pools, told = [pool.to(kind) for pool in sender_pools()], []
    with transport(pools) as sender, transport([torch.zeros_like(pool) for pool in pools]) as receiver:
        transfer = receiver.receive(sender.send("a", SOURCE), skip, PLACES[skip:], lambda: told.append("final"))
        assert arrived(transfer) and transfer.final and transfer.seconds > 0
        wait_until(lambda: told == ["final"])
        assert transfer.bytes == sum(pool[0].nbytes for pool in sender.pools) * (6 - skip)
        for got, sent in zip(receiver.pools, sender.pools, strict=True):
            assert torch.equal(got[PLACES[skip:]], sent[SOURCE[skip:]])
            assert not got[[page for page in range(50) if page not in PLACES[skip:]]].any()


def test_pages_that_are_withdrawn_while_they_travel_are_never_complete():
    """They may hold another request's contents by then, and nobody tells the receiver."""
    with transport(sender_pools()) as sender, transport(sender_pools()) as receiver:
        read, reads = receiver._read, []

        def withdrawn_meanwhile(*arguments):
            yield from read(*arguments)
            reads.append(arguments)
            if len(reads) == 1:  # the pages are there, and their stamp is not
                sender.abort("a")

        receiver._read = withdrawn_meanwhile
        with pytest.raises(ConnectionError, match="withdrawn"):
            arrived(receiver.receive(sender.send("a", SOURCE), 0, PLACES))
        assert len(reads) == 2


# ---- Senders in another process ----


def offer(pipe) -> None:
    """The work of a process: offer 64 pages until it is told to end, and then say whether its thread lives."""
    one = nixl_transport.NixlTransport()
    atexit.register(lambda: pipe.send(one.thread.is_alive()))  # It runs after handlers that are registered later.
    one.register([torch.full((64, 1 << 16), 3.0)])
    pipe.send(one.send("a", range(64)))
    pipe.recv()


@pytest.fixture
def other_process(monkeypatch):
    """A ticket for 64 pages full of threes, the process that offers them, and the pipe to it.

    By TCP, which the sender's process must serve; the kernel reads the memory of a stopped one as well.
    """
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=offer, args=(there,), daemon=True)
    process.start()
    assert here.poll(PATIENCE_SECONDS)
    yield here.recv(), process, here
    process.kill()  # This ends a stopped process, too: pytest would wait for it at its end.
    process.join()


def fails(transfer) -> bool:
    try:
        transfer.done()
    except ConnectionError:
        return True
    return False


def test_a_sender_may_stop_go_on_and_end(monkeypatch, other_process):
    """The receiver learns in time that a sender has stopped, and waits for its bytes, which may arrive late.

    Offers of a sender that has ended are refused.
    """
    ticket, process, pipe = other_process
    with transport([torch.zeros(64, 1 << 16)]) as receiver:
        [pages] = receiver.pools
        assert arrived(receiver.receive(ticket, 0, range(64)))  # The two are connected.
        with monkeypatch.context() as deadline:
            deadline.setattr(nixl_transport, "TRANSFER_SECONDS", 0.5)
            deadline.setattr(nixl_transport, "MIN_BYTES_PER_SECOND", 1e9)
            pages.zero_()
            os.kill(process.pid, signal.SIGSTOP)
            transfer = receiver.receive(ticket, 0, range(64))
            wait_until(lambda: fails(transfer))
        transfer.cancel()
        assert not transfer.final, "bytes may still arrive"
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: transfer.final)
        assert (pages == 3).all(), "they did arrive"
        last = receiver.receive(ticket, 0, range(64))
        pipe.send("end")
        assert pipe.recv() is False, "or the process aborts, now and then: a thread leaves NIXL while Python ends"
        process.join()
        assert process.exitcode == 0
        wait_until(lambda: last.final)  # It may be done or failed.
        late = receiver.receive(ticket, 0, range(64))
        wait_until(lambda: late.final)
        assert fails(late)


def test_where_nixl_is_missing_pages_travel_through_ray(monkeypatch):
    pytest.importorskip("ray", reason="needs the package ray")

    def missing():
        raise ModuleNotFoundError("No module named 'nixl'")

    monkeypatch.setattr(nixl_transport, "nixl", missing)
    assert "object store" in page_transport(loopback=True).description

"""What holds of every transport of pages: they arrive as they were sent, once they are offered and until withdrawn."""

import pytest
import torch

from common.distributed import interruptible_socket, tcp_transfer, tcp_transport
from common.distributed.tcp_transport import TcpTransport
from common.stages import load_stage_module
from tests.helpers.page_ends import assert_arrived, fetched, random_pools, transport, zero_pools

LocalTransport = load_stage_module("08", "kv_transport").LocalTransport


@pytest.fixture(params=["local", "tcp", "tcp, through host memory", "tcp, without scatter and gather"])
def ends(request, monkeypatch):
    """Two transports of a kind with pools of 50 pages: one full of numbers, one of zeros.

    Pages of a GPU go through host memory, here those on the CPU do. Windows has no scatter and gather.
    """
    kind = LocalTransport if request.param == "local" else TcpTransport
    for module in (tcp_transport, tcp_transfer) if "memory" in request.param else ():
        monkeypatch.setattr(module, "on_host", lambda pools: False)
    if "without" in request.param:
        monkeypatch.setattr(interruptible_socket, "SCATTER_GATHER", False)
    with transport(random_pools(), kind) as sender, transport(zero_pools(), kind) as receiver:
        yield sender, receiver


def receive(ticket, receiver, skip: int, pages: list[int]):
    return receiver.receive(ticket, skip, pages, lambda: None)


@pytest.mark.parametrize("skip", [0, 2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pages_arrive_as_they_were_sent_and_nothing_else_is_touched(ends, dtype, skip):
    sender, receiver = ends
    sender.register(random_pools(dtype))
    receiver.register(zero_pools(dtype))
    source, places = [7, 8, 9, 3, 49, 0], [5, 4, 20, 21, 22, 6]
    transfer = receive(sender.send("a", source), receiver, skip, places[skip:])
    assert fetched(transfer) and transfer.seconds > 0
    assert transfer.bytes == sum(pool[:, 0].nbytes for pool in sender.pools) * (6 - skip)
    assert_arrived(sender, receiver, source[skip:], places[skip:])
    transfer.cancel()
    assert transfer.done(), "cancelling what is complete changes nothing"


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")], ids="-to-".join)
def test_pages_of_a_gpu_arrive(kinds):
    pools = [[pool.to(kind) for pool in make()] for make, kind in zip((random_pools, zero_pools), kinds, strict=True)]
    with transport(pools[0]) as sender, transport(pools[1]) as receiver:
        assert fetched(receive(sender.send("a", [7, 8, 3]), receiver, 0, [5, 4, 20]))
        assert_arrived(sender, receiver, [7, 8, 3], [5, 4, 20])


def test_an_offer_stands_until_it_is_withdrawn(ends):
    """Whoever has the ticket may fetch it, again and again; other offers are none the worse."""
    sender, receiver = ends
    first, other = sender.send("a", [1, 2]), sender.send("c", [1, 2])
    for pages in ([3, 4], [5, 6]):
        assert fetched(receive(first, receiver, 0, pages))
    sender.abort("a")
    sender.abort("a")
    with pytest.raises(ConnectionError, match="not on offer|withdrawn"):
        fetched(receive(first, receiver, 0, [7, 8]))
    assert_arrived(sender, receiver, [1, 2, 1, 2], [3, 4, 5, 6])
    assert fetched(receive(other, receiver, 0, [1, 2]))
    sender.clear()
    with pytest.raises(ConnectionError, match="not on offer|withdrawn"):
        fetched(receive(other, receiver, 0, [1, 2]))

"""Stage 08's workers as real processes under Ray: killed, stopped, on two nodes, and no token shows it."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from common.distributed.object_transport import ObjectTransport
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import endless

ray = pytest.importorskip("ray", reason="needs the package ray")
routing = load_stage_module("08", "routing")

Engine = load_engine("08")
POOL = {"kv_memory": "64M", "max_running": 16, "token_budget": 128, "num_draft_tokens": 0}  # slow enough to be killed
SECONDS = 60.0  # the longest wait for anything
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def engine(two_nodes, loaded) -> Iterator[Engine]:
    """What one worker sends the other goes from node to node."""
    router = replace(loaded, model=None)  # its workers load the weights
    engine = Engine(router, prefill=1, decode=2, workers="ray", ray_address=two_nodes, hang_seconds=10, **POOL)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def all_there(request):
    """Each test begins with all workers up, and ends with nothing left in any of them."""
    engine = request.getfixturevalue("engine")
    until(engine, lambda: all(handle.up for handle in engine.handles))
    yield
    until(engine, lambda: all(handle.up for handle in engine.handles))
    settle(engine)
    engine.check()
    assert engine.stats()["unfinished"] == 0


def settle(engine) -> None:
    """Wait until no worker holds anything, and the router has read all reports about it."""
    told = [handle.stats for handle in engine.handles]
    until(  # Each worker has read all its mail, and has sent a heartbeat since now.
        engine,
        lambda: all(each.stats is not last and not each.probe for each, last in zip(engine.handles, told, strict=True)),
    )
    until(engine, lambda: engine.stats()["kv_tokens_used"] == 0)


def until(engine, condition) -> None:
    give_up = time.monotonic() + SECONDS
    while not condition():
        if not engine.step():
            time.sleep(0.01)  # The workers may share a core with this process.
        assert time.monotonic() < give_up, (engine.stats(), [flight.phase for flight in engine.flights.values()])


WORK = [
    ([*range(100, 700)], endless(40)),
    ([*range(200, 230)], endless(50)),
    ([*range(300, 305)], endless(50, temperature=1.0, seed=5)),
    ([*range(400, 900)], endless(25, temperature=0.8, seed=6, logprobs=1)),
    ("Once upon a time, there was", endless(50, stop="where the river")),
    ([*range(500, 520)], endless(30, temperature=1.0, seed=3, repetition_penalty=1.3, frequency_penalty=0.5)),
    ("The capital of France is", endless(1)),
]


@pytest.fixture(scope="module")
def undisturbed(loaded) -> list:
    """All of WORK, by workers in this process which live."""
    prompts, params = zip(*WORK, strict=True)
    return Engine(loaded, **POOL).generate(prompts, params)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_lost_workers_cost_time_and_no_request(engine, undisturbed, monkeypatch):
    """A worker is killed as soon as it receives pages, and the other one stopped as soon as it decodes.

    The prefill worker, the last of the three, does the whole job then. Nobody tells of a process that has stopped: it
    is noticed by the deadline. (Before other tests: no prompt is cached, and prefill takes a while.)
    """
    monkeypatch.setattr(engine.fleet, "hang_seconds", 3)
    strikes = [(routing.TRANSFER, 0, signal.SIGKILL), (routing.DECODE, 6, signal.SIGSTOP)]
    lost, pids = engine.lost, {handle.number: handle.hello.process for handle in engine.handles}
    requests = [engine.add(prompt, params) for prompt, params in WORK]

    def strike() -> bool:
        """Return whether all requests have ended."""
        for flight in engine.flights.values():
            phase, tokens, sent = strikes[0] if strikes else ("", 0, None)
            if flight.phase == phase and len(flight.request.token_ids) >= tokens and flight.decode.number in pids:
                os.kill(pids.pop(flight.decode.number), sent)
                del strikes[0]
        return not engine.has_unfinished

    until(engine, strike)
    for request, right in zip(requests, undisturbed, strict=True):
        assert (request.token_ids, request.text) == (right.token_ids, right.text)
    assert not strikes
    until(engine, lambda: engine.lost >= lost + 2)


def test_eighty_handovers_are_right_and_who_leaves_frees_pages_in_both_processes(engine, reference):
    assert "on 2 machines" in engine.startup_notes
    leaving = [engine.add(prompt, endless(200)) for prompt, _ in WORK]
    for _ in range(20):
        engine.step()
    for request in leaving:
        engine.abort(request.request_id)
    assert engine.step() == []
    settle(engine)  # Pages of aborted requests may still arrive, and count as a handoff.
    prompts = [[*range(100 + 40 * n, 160 + 41 * n)] for n in range(8)]
    right = [reference.generate(prompt, 3, ignore_eos=True) for prompt in prompts]
    handed, failed = engine.handoffs, engine.failed_transfers
    requests = [engine.add(prompts[n % 8], endless(3)) for n in range(80)]
    until(engine, lambda: not engine.has_unfinished)
    assert [request.token_ids for request in requests] == right * 10
    assert engine.handoffs - handed == 80 and engine.failed_transfers == failed


def test_pages_travel_through_rays_object_store_where_there_is_no_nixl(engine):
    sender, receiver = ObjectTransport(), ObjectTransport()
    sender.register([torch.randn(9, 4, 2).to(dtype) for dtype in (torch.float32, torch.bfloat16)])
    receiver.register([torch.zeros_like(pool) for pool in sender.pools])
    sent, told = [pool.clone() for pool in sender.pools], []
    ticket = sender.send("a", [7, 2, 5])
    sender.pools[0].zero_()  # Ray's object does not change.
    transfer = receiver.receive(ticket, 1, [3, 4], lambda: told.append("arrived"))
    transfer.wait(SECONDS)
    assert transfer.done() and told and transfer.bytes == sum(2 * pool[0].nbytes for pool in sender.pools)
    for here, there in zip(receiver.pools, sent, strict=True):
        assert torch.equal(here[[3, 4]], there[[2, 5]]) and not here[5:].any()
    sender.abort("a")
    sender.abort("a")

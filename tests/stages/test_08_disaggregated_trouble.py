"""What stage 08 does in rarer trouble: idle workers, suspects, memory that shrinks, slow pages, a failing engine."""

import time
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from test_08_disaggregated_router import undisturbed, until

from common.distributed.channel import connect
from common.process import start
from common.stages import load_stage_module
from tests.helpers import faulty_fleet
from tests.helpers.engine_options import endless
from tests.helpers.faulty_fleet import fleet_without_model, kv_transport, messages, worker_module


def worker_without_model(pages: int = 12):
    return worker_module.Worker(faulty_fleet.WorkerWithoutModel(pages), kv_transport.LocalTransport())


def order(number: int, **attributes) -> messages.Order:
    return messages.Order(f"{number}#0", [number, 2, 3], [1], endless(6), 0, 6, **attributes)


def test_a_deadline_shorter_than_the_time_between_heartbeats_is_refused():
    """With it every idle worker would be ended and replaced, again and again."""
    with pytest.raises(ValueError, match="hang_seconds is 0.5, and an idle worker reports every 1 s: give at least 2"):
        load_stage_module("08", "deployment").Engine(faulty_fleet.NO_MODEL, hang_seconds=0.5)


def test_suspects_do_not_hold_each_other_up():
    """Two deaths make suspects of all that a worker was running; each runs alone, and only until it is cleared."""
    router, fleet = fleet_without_model(1, 1, pages=100)
    requests = [router.add([n, 2, 3], endless(60)) for n in range(4)]
    for _ in range(2):
        until(router, lambda: all(len(request.token_ids) >= 1 for request in requests))
        for _ in range(3):
            router.step()
        fleet.die(1)
        fleet.die(0)
    until(router, lambda: router.recovery.suspects)
    steps = 0
    while router.recovery.suspects:
        router.step()
        router.check()
        steps += 1
        assert steps < 4 * 40, "the second waits for the whole answer of the first"
    until(router, lambda: not router.has_unfinished)
    assert [request.token_ids for request in requests] == [undisturbed([n, 2, 3], 60) for n in range(4)]


def test_a_worker_that_comes_back_with_less_memory_is_not_killed_by_what_never_fits():
    router, fleet = fleet_without_model(1, 1, pages=12)
    long = router.add([1] * 4, endless(18))
    fleet.makers[1] = lambda: faulty_fleet.WorkerWithoutModel(5)
    fleet.die(1)
    until(router, lambda: long.finished)
    assert router.max_model_len == 10 and long.finish_reason in ("length", "error")
    short = router.add([1, 2], endless(4))
    until(router, lambda: short.finished)
    assert short.token_ids == undisturbed([1, 2], 4)


def test_pages_that_arrive_together_delay_a_step_together(monkeypatch):
    """The requests that decode wait once for them, however many they are."""
    now = [0.0]

    class Slow(SimpleNamespace):
        def wait(self, seconds):
            now[0] += seconds

        def done(self):
            return False

    worker = worker_without_model()
    monkeypatch.setattr(worker.transport, "receive", lambda *_: Slow())
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worker.read(messages.Mail(1, [order(number, ticket="pages") for number in range(3)], []))
    worker.turn()
    assert len(worker.in_transfer) == 3 and now == [worker_module.ARRIVAL_SECONDS]


@pytest.mark.ray
def test_an_error_of_the_engine_ends_the_connection(monkeypatch):
    """At once, though a thread of the worker's process reads from it: the router need not wait for its deadline."""
    pytest.importorskip("ray", reason="needs the package ray")

    def fail():
        time.sleep(0.5)  # the thread that reads now waits for the next mail
        raise ZeroDivisionError

    process = load_stage_module("08", "ray_fleet").WorkerProcess()
    process.host, process.worker = "127.0.0.1", worker_without_model()
    monkeypatch.setattr(process.worker.engine, "step", fail)
    address, key = process.listen()
    running, _ = start(process.run)
    with connect(address, key) as router:
        router.send(messages.Mail(1, [order(1)], []))
        with pytest.raises(EOFError):
            while router.poll(10):
                router.recv()
    with pytest.raises(ZeroDivisionError):
        running.result(20)


@pytest.mark.ray
def test_closing_the_fleet_ends_a_worker_that_still_loads(monkeypatch):
    """Loading may take minutes, and its keeper waits for it."""
    pytest.importorskip("ray", reason="needs the package ray")
    module = load_stage_module("08", "ray_fleet")
    loading, killed = Event(), Event()

    def get(*_, timeout):
        loading.set()
        killed.wait(20)
        raise RuntimeError("the actor is dead")

    cluster = SimpleNamespace(description="", failure="", device="cpu", loopback=True, close=lambda: None)
    cluster.gpu_share, cluster.threads, cluster.actor_options = lambda: 1.0, lambda number: 1, lambda number: {}
    cluster.measuring = nullcontext
    monkeypatch.setattr(module, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(module, "ray", Mock(get=get, kill=lambda actor: killed.set()))
    fleet = module.RayFleet({"device": "cpu"}, [{}], 1, None, 1.0)
    assert loading.wait(20)
    fleet.close()
    assert killed.is_set() and not fleet.keepers[0].is_alive()

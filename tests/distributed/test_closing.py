"""The ends of a fleet of processes, without processes: nothing waits for an answer that does not come."""

import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from common import process
from common.distributed.channel import Door, connect
from common.stages import load_stage_module
from tests.helpers.engine_options import endless
from tests.helpers.faulty_fleet import WorkerWithoutModel, kv_transport, messages, worker_module

pytest.importorskip("ray", reason="needs the package ray")
from common.distributed import cluster as module  # noqa: E402 (not before ray is known to be there)

ray_fleet = load_stage_module("08", "ray_fleet")
SECONDS = 60.0


@pytest.fixture
def make_fleet(monkeypatch):
    """A function that makes a RayFleet of one worker, with these answers of Ray."""
    alone = SimpleNamespace(description="", failure="", device="cpu", loopback=True, close=lambda: None)
    alone.gpu_share, alone.threads, alone.actor_options = lambda: 1.0, lambda number: 1, lambda number: {}
    alone.measuring = nullcontext
    monkeypatch.setattr(ray_fleet, "Cluster", lambda *_: alone)

    def make(**answers):
        monkeypatch.setattr(ray_fleet, "ray", Mock(**answers))
        return ray_fleet.RayFleet({"device": "cpu"}, [{}], 1, None, hang_seconds=1e4)

    return make


def test_a_look_without_an_answer_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "SILENCE_SECONDS", 1e4)
    looking, answer = threading.Event(), threading.Event()
    cluster = module.Cluster.__new__(module.Cluster)
    cluster._closing, cluster._look = Future(), lambda: looking.set() or answer.wait()
    watching = threading.Thread(target=cluster._watch, daemon=True)
    watching.start()
    assert looking.wait(SECONDS)
    cluster._closing.set_result(None)
    watching.join(SECONDS)
    assert not watching.is_alive()
    answer.set()


def test_a_worker_that_ray_does_not_kill_does_not_hold_up_the_end(make_fleet, monkeypatch):
    """As SIGTERM to a whole process group leaves it: Ray's head ends first."""
    door = Door("127.0.0.1")
    actor = Mock(**{"listen.remote.return_value": (door.address, door.key)})
    monkeypatch.setattr(ray_fleet.RayFleet, "_start", lambda fleet, number: fleet.actors.update({number: actor}))
    fleet = make_fleet(get=lambda answer, timeout: answer)
    with door.accept(SECONDS) as connection:
        fleet.close()
        assert not fleet.keepers[0].is_alive()
        with pytest.raises(EOFError):
            connection.recv()


def test_closing_ends_a_worker_that_still_loads(make_fleet):
    """Loading may take minutes, and its keeper waits for it."""
    loading, killed = threading.Event(), threading.Event()

    def get(*_, timeout):
        loading.set()
        killed.wait(SECONDS)
        raise RuntimeError("the actor is dead")

    fleet = make_fleet(get=get, kill=lambda actor: killed.set())
    assert loading.wait(SECONDS)
    fleet.close()
    assert killed.is_set() and not fleet.keepers[0].is_alive()


def test_keepers_that_do_not_end_are_waited_for_together(make_fleet, monkeypatch):
    """Eight workers whose Ray is gone: 5 seconds in all, where each keeper had 5."""
    now = [0.0]

    def join(seconds):
        now[0] += seconds

    monkeypatch.setattr(ray_fleet.RayFleet, "_keep", lambda fleet, number: None)
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    fleet = make_fleet()
    fleet.keepers = [SimpleNamespace(join=join)] * 8
    fleet.close()
    assert now == [ray_fleet.CLOSE_SECONDS]


def test_an_error_of_the_engine_ends_the_connection(monkeypatch):
    """At once, though a thread of the worker's process reads from it: the router need not wait for its deadline."""

    def fail():
        time.sleep(0.5)  # the thread that reads now waits for the next mail
        raise ZeroDivisionError

    actor = ray_fleet.WorkerProcess()
    actor.host = "127.0.0.1"
    actor.worker = worker_module.Worker(WorkerWithoutModel(12), kv_transport.LocalTransport())
    monkeypatch.setattr(actor.worker.engine, "step", fail)
    address, key = actor.listen()
    running, _ = process.start(actor.run)
    with connect(address, key) as router:
        router.send(messages.Mail(1, [messages.Order("a#0", [1, 2, 3], [1], endless(6), 0, 6)], []))
        with pytest.raises(EOFError):
            while router.poll(10):
                router.recv()
    with pytest.raises(ZeroDivisionError):
        running.result(20)

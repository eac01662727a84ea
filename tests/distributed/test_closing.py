"""The ends of a fleet of processes, without processes: nothing waits for an answer that does not come."""

import ctypes
import signal
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from common.stages import load_stage_module

pytest.importorskip("ray", reason="needs the package ray")
from common.distributed import cluster as module  # noqa: E402 (not before ray is known to be there)
from common.distributed import joining

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
        return ray_fleet.RayFleet({"device": "cpu"}, [{}], None, hang_seconds=1e4)

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


def test_what_sigterm_does_is_not_rays_to_change():
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append("ours"))
    with joining.own_sigterm():
        ctypes.pythonapi.PyOS_setsig(signal.SIGTERM, 0)  # as Ray's library does, behind Python's back
    signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert told == ["ours"]


def test_closing_ends_a_worker_that_still_loads(make_fleet):
    """Loading may take minutes, and its keeper waits for it."""
    loading, killed = threading.Event(), threading.Event()

    def get(*_, timeout):
        loading.set()
        killed.wait(SECONDS)
        raise RuntimeError("the actor is dead")

    fleet = make_fleet(get=get, kill=lambda actor: killed.set(), wait=lambda calls, timeout: ([], calls))
    assert loading.wait(SECONDS)
    fleet.close()
    assert killed.is_set() and not fleet.keepers[0].is_alive()


def test_a_worker_that_is_stopped_while_it_loads_gets_a_new_process(make_fleet, monkeypatch):
    """Loading may take minutes, so its deadline is of no use; but a process that loads still answers."""
    monkeypatch.setattr(ray_fleet, "AGAIN_SECONDS", 0.0)
    started = []

    def get(answer, timeout):
        assert timeout == ray_fleet.SIGN_SECONDS, "the deadline of the sign of life, not of loading"
        started.append(answer)
        raise module.ray.exceptions.GetTimeoutError("some object(s) not ready")

    fleet = make_fleet(get=get, wait=lambda calls, timeout: ([], calls))
    news = [event.news for event in fleet.events(SECONDS)]
    while len(started) < 2:
        news += [event.news for event in fleet.events(SECONDS)]
    fleet.close()
    assert {one.reason for one in news} == {"no sign of life for 60 s: is the machine too busy?"}

"""Leaving a Ray whose head is gone: nothing waits for an answer of Ray, which does not come."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from common import process
from common.distributed.channel import Door
from common.stages import load_stage_module

pytest.importorskip("ray", reason="needs the package ray")
from common.distributed import cluster as module  # noqa: E402 (not if ray is missing)

SECONDS = 60.0


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


def test_a_worker_that_ray_does_not_kill_does_not_hold_up_the_end(monkeypatch):
    """As SIGTERM to a whole process group leaves it: Ray's head ends first."""
    ray_fleet, door = load_stage_module("08", "ray_fleet"), Door("127.0.0.1")
    alone = SimpleNamespace(description="", device="cpu", gpu_share=lambda: 1.0, close=lambda: None)
    actor = SimpleNamespace(
        listen=SimpleNamespace(remote=lambda: (door.address, door.key)), run=SimpleNamespace(remote=lambda: None)
    )
    monkeypatch.setattr(ray_fleet, "Cluster", lambda *_: alone)
    monkeypatch.setattr(ray_fleet, "ray", SimpleNamespace(get=lambda answer, timeout: answer, kill=lambda actor: None))
    monkeypatch.setattr(ray_fleet.RayFleet, "_start", lambda fleet, number: fleet.actors.update({number: actor}))
    fleet = ray_fleet.RayFleet({"device": "cpu"}, [{}], 1, None, hang_seconds=1e4)
    with door.accept(SECONDS) as connection:
        fleet.close()
        assert not fleet.keepers[0].is_alive()
        with pytest.raises(EOFError):
            connection.recv()


def test_keepers_that_do_not_end_are_waited_for_together(monkeypatch):
    """Eight workers whose Ray is gone: 5 seconds in all, where each keeper had 5."""
    now = [0.0]

    def join(seconds):
        now[0] += seconds

    ray_fleet = load_stage_module("08", "ray_fleet")
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    fleet = ray_fleet.RayFleet.__new__(ray_fleet.RayFleet)
    fleet.actors, fleet.connections, fleet.closing = {}, {}, threading.Event()
    fleet.cluster, fleet.keepers = SimpleNamespace(close=lambda: None), [SimpleNamespace(join=join)] * 8
    fleet.close()
    assert now == [ray_fleet.CLOSE_SECONDS]

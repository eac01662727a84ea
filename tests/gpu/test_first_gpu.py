"""What is decided before anything runs on a GPU: which one is current, types, sizes of steps, and memory."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from common import memory, token_budget, transfers
from common.acceleration import accelerate
from common.engine import BaseEngine
from common.stages import load_stage_module

SECOND = torch.device("cuda:1")
GIB = 2**30


def test_a_step_runs_with_its_own_gpu_as_the_current_one(loaded, monkeypatch):
    current = []

    @contextmanager
    def device(wanted):
        current.append(wanted)
        yield
        current.pop()

    class Engine(BaseEngine):
        def step(self):
            with self.trace.step():
                return list(current)

    engine = Engine(replace(loaded, device=SECOND))
    monkeypatch.setattr(torch.cuda, "device", device)
    assert engine.step() == [SECOND] and not current
    assert Engine(loaded).step() == [], "a CPU is not looked for among the GPUs"


@pytest.mark.parametrize(("seconds", "budget"), [(1.0, 2048), (0.0, 16384)])
def test_a_step_is_larger_on_a_gpu(loaded, monkeypatch, seconds, budget):
    """seconds: of a pass."""
    monkeypatch.setattr(token_budget, "pass_seconds", lambda *_, **__: seconds)
    assert token_budget.choose_token_budget(replace(loaded, device=SECOND), 256, 4)[0] == budget


# ---- Memory ----


@pytest.fixture
def card(loaded, monkeypatch):
    """A GPU of 24 GiB with 2 of them taken, on which a step takes 1 and no time."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (22 * GIB, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "device", Mock(side_effect=transfers.nullcontext))
    monkeypatch.setattr(memory, "peak_of_step", lambda *_: GIB)
    monkeypatch.setattr(token_budget, "pass_seconds", lambda *_, **__: 0.0)
    return replace(loaded, device=SECOND)


def test_graphs_and_distributions_of_draft_tokens_are_in_the_budget(card, monkeypatch):
    without = memory.kv_bytes_left(card, 2048, 256)
    torch.cuda.device.assert_called_once_with(SECOND)
    assert without == int(0.9 * 24 * GIB) - 3 * GIB
    assert memory.kv_bytes_left(replace(card, reserved_bytes=5 * GIB), 2048, 256) == without - 5 * GIB
    for drawn, rows in ((576, 576), (4096, 2048)):  # a step has no more rows than tokens
        left = memory.kv_bytes_left(card, 2048, drawn, drawn=drawn)
        assert without - left == 8 * rows * card.config.vocab_size
    with pytest.raises(ValueError, match=r"a step of 2048 tokens takes 1.0 and graphs 20.0; give a smaller --token-b"):
        memory.kv_bytes_left(replace(card, reserved_bytes=20 * GIB), 2048, 256)
    too_large = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 55.00 GiB."))
    monkeypatch.setattr(memory, "peak_of_step", too_large)
    with pytest.raises(ValueError, match=r"no memory for a step of 9000 tokens that scores 576 of them: give"):
        memory.kv_bytes_left(card, 9000, 576)


def test_workers_of_one_process_share_what_a_draft_model_and_the_graphs_of_each_leave(card, monkeypatch):
    module, found = load_stage_module("08", "deployment"), []
    monkeypatch.setattr(module, "load_draft_model", lambda *_: found.append("draft model"))
    monkeypatch.setattr(module, "kv_bytes_left", lambda loaded, *_, **__: found.append(loaded.reserved_bytes) or 0)
    monkeypatch.setattr(module, "LocalFleet", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        accelerate.make_engine(module.Engine, card, prefill=2)
    assert found == ["draft model", 3 * memory.graph_bytes(card.config, card.dtype, 64)]


@pytest.mark.parametrize("stage", ["07", "08"])
def test_only_rows_that_can_be_scored_are_in_the_budget(stage, loaded, monkeypatch):
    module = load_stage_module(stage, "engine")
    engine_class = module.Engine if stage == "07" else module.WorkerEngine
    asked = []

    def left(loaded, tokens, rows, share=1.0, drawn=0):
        asked.append((tokens, rows, drawn))
        return 2**24

    monkeypatch.setattr(module, "kv_bytes_left", left)
    monkeypatch.setattr(module, "measured_costs", lambda *_: None)
    for draft in ("lookup", "draft"):
        options = {"token_budget": 4096, "num_draft_tokens": 3, "attention": "torch", "draft": draft}
        engine_class(loaded, max_running=5, **options)
    assert asked == [(4096, 20, 0), (4096, 20, 20)], "prompt lookup draws from no distribution"


def test_workers_that_share_a_gpu_measure_in_turn(monkeypatch):
    """Each fills its share of what it finds free, so none may look before the last one has its memory."""
    pytest.importorskip("ray", reason="needs the package ray")
    ray_fleet, cluster_module = load_stage_module("08", "ray_fleet"), import_module("common.distributed.cluster")
    cluster, locked = cluster_module.Cluster.__new__(cluster_module.Cluster), []
    cluster._workers_per_gpu, cluster._measuring = 2, threading.Lock()
    cluster.actor_options, cluster.threads, cluster.loopback = lambda number: {}, lambda number: 1, True
    fleet = SimpleNamespace(actors={}, cluster=cluster, model={}, options=[{}])
    loaded = lambda *_, timeout: locked.append(cluster._measuring.locked())  # noqa: E731
    monkeypatch.setattr(ray_fleet, "ray", Mock(get=loaded, wait=lambda calls, timeout: (calls, [])))
    ray_fleet.RayFleet._start(fleet, 0)
    assert locked == [True] and not cluster._measuring.locked()

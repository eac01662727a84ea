"""Where `--token-budget` does not say, a step on a CPU has as many tokens as an objective in time allows."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import pytest

from common import token_budget
from common.gpu.accelerate import make_engine
from common.parallel.shard import Shard
from common.stages import load_engine
from common.token_budget import LEAST, MOST, STEP_SECONDS, choose_token_budget


@pytest.fixture
def passes(loaded, monkeypatch):
    """A loaded model whose passes take `per_token` seconds a token on a clock of their own; `.sizes` lists them."""
    made = SimpleNamespace(sizes=[], now=0.0, per_token=0.0, late=[])

    def model(token_ids, positions, attend):
        made.sizes.append(len(token_ids))
        made.now += made.per_token * len(token_ids) + (made.late.pop() if made.late else 0.0)

    monkeypatch.setattr(token_budget, "time", SimpleNamespace(thread_time=lambda: made.now))
    made.loaded = replace(loaded, model=model)
    return made


@pytest.mark.parametrize(
    ("fits", "expected"),
    [(10_000, 2048), (2048, 2048), (2040, 1024), (256, 256), (255, 128), (128, 128), (127, 64), (64, 64), (3, 64)],
)
def test_the_budget_is_the_largest_that_fits_into_the_objective(passes, fits, expected):
    passes.per_token = STEP_SECONDS / fits * 0.999
    budget, note = choose_token_budget(passes.loaded, 100, 64)
    assert budget == expected and note.startswith(f"token_budget={expected} (a pass of ")
    assert max(passes.sizes) <= 2 * expected, "a pass of a large model takes seconds"


def test_one_disturbed_pass_does_not_decide(passes):
    passes.per_token, passes.late = STEP_SECONDS / 300, [STEP_SECONDS] * 3  # one where nothing is measured, and two
    assert choose_token_budget(passes.loaded, 100, 64)[0] == 256


def test_kernels_that_the_first_pass_compiles_do_not_decide(passes):
    passes.per_token, passes.late = STEP_SECONDS / 300, [10.0]
    assert choose_token_budget(passes.loaded, 100, 64)[0] == 256


def test_a_hopeless_pass_is_measured_once(passes):
    passes.per_token = STEP_SECONDS
    assert choose_token_budget(passes.loaded, 100, 64)[0] == LEAST
    assert passes.sizes == [1, 2 * LEAST]


@pytest.mark.parametrize(
    ("max_running", "expected"), [(1, LEAST), (65, 128), (129, 256), (1024, 1024), (1025, MOST), (5000, 5000)]
)
def test_each_running_request_has_its_token(passes, max_running, expected):
    passes.per_token = STEP_SECONDS
    assert choose_token_budget(passes.loaded, 100, max_running)[0] == expected


def test_ranks_do_not_measure(passes):
    passes.per_token = STEP_SECONDS
    assert choose_token_budget(replace(passes.loaded, shard=Shard(1, 2)), 100, 64) == (100, "")
    assert choose_token_budget(replace(passes.loaded, shard=Shard(1, 2)), 100, 300) == (300, "")
    assert not passes.sizes


@pytest.mark.parametrize("stage", ["04", "05"])
def test_the_engine_has_that_budget_and_says_so(loaded, monkeypatch, stage):
    monkeypatch.setattr(token_budget, "STEP_SECONDS", 0.0)
    engine = make_engine(load_engine(stage), loaded)
    assert engine.scheduler.token_budget == LEAST and f"token_budget={LEAST} (" in engine.startup_notes
    assert make_engine(load_engine(stage), loaded, token_budget=100).scheduler.token_budget == 100
    default = inspect.signature(load_engine(stage)).parameters["token_budget"].default
    assert load_engine(stage)(loaded).scheduler.token_budget == default, "without make_engine, nothing is measured"


def test_a_router_says_so_too(loaded, monkeypatch):
    monkeypatch.setattr(token_budget, "STEP_SECONDS", 0.0)
    engine = make_engine(load_engine("08"), loaded)
    assert engine.startup_notes.count(f"token_budget={LEAST} (") == 1
    engine.close()

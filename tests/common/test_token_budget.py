"""Where `--token-budget` does not say, a step on a CPU has as many tokens as an objective in time allows."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import token_budget
from common.acceleration import accelerate
from common.acceleration.accelerate import make_engine
from common.loader import load_model
from common.loader.shard import Shard
from common.stages import load_engine
from common.token_budget import MIN_BUDGET, PROMPTS, STEP_SECONDS, ChunkPrice, choose_token_budget


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
    ("fits", "max_running", "expected"),
    [
        (10_000, 64, 2048), (2040, 64, 1024), (256, 64, 256), (255, 64, 128), (3, 64, 64), (3, 65, 128),
        (3, 1025, 2048), (3, 5000, 5000),
    ],
)  # fmt: skip
def test_the_budget_is_the_largest_that_fits_and_running_requests_have_their_tokens(
    passes, fits, max_running, expected
):
    passes.per_token = STEP_SECONDS / fits * 0.999
    budget, _, note = choose_token_budget(passes.loaded, 100, max_running)
    assert budget == expected and note.startswith(f"token_budget={expected}")
    assert max(passes.sizes) <= 2 * expected, "a pass of a large model takes seconds"
    sharded = replace(passes.loaded, shard=Shard(1, 2))
    assert choose_token_budget(sharded, 100, max_running) == (max(100, max_running), None, "")


@pytest.mark.parametrize("late", [[STEP_SECONDS] * 3, [10.0]], ids=["disturbed passes", "kernels are compiled"])
def test_passes_that_are_late_do_not_decide(passes, late):
    passes.per_token, passes.late = STEP_SECONDS / 300, late  # The first late pass is not measured.
    assert choose_token_budget(passes.loaded, 100, 64)[0] == 256


@pytest.mark.parametrize(("attention", "reading"), [("torch", 1e-3), (None, 1e-3), ("torch", 0.0)])
def test_attention_has_a_price_where_it_takes_time(passes, monkeypatch, attention, reading):
    """An attention that takes 1 ms for a pair of tokens, and as much for a K and V that it reads, or nothing."""
    passes.per_token = STEP_SECONDS / 256

    def attend(loaded, name, requests, tokens, seen):
        def run():
            assert name == attention
            passes.now += requests * (reading * seen + 1e-3 * tokens * (seen - tokens / 2)) / loaded.config.num_layers

        return run

    monkeypatch.setattr(token_budget, "attend_slots" if attention is None else "attend_pages", attend)
    budget, price, note = choose_token_budget(passes.loaded, 100, 64, attention)
    assert budget == 256 and "others counts as two" in note
    token_seconds = STEP_SECONDS / 256
    assert price.pair == pytest.approx(1e-3 / token_seconds, rel=0.05)
    assert price.read == pytest.approx(reading / token_seconds, rel=0.05)


prices = st.builds(ChunkPrice, st.floats(0, 2), st.floats(0, 2))


@given(prices, st.lists(st.integers(0, 10_000), max_size=20), st.integers(21, 5_000))
def test_prompts_have_their_share_beside_long_texts(price, starts, budget):
    left, paid = price.left(budget, starts), sum(price(start, 1) for start in starts)
    assert 1 <= left <= budget - len(starts)
    assert left == pytest.approx(max(budget - paid, min(budget * PROMPTS, budget - len(starts))))


@pytest.mark.parametrize("stage", ["04", "05", "08"])
def test_the_engine_has_that_budget_and_says_so(loaded, monkeypatch, stage):
    monkeypatch.setattr(token_budget, "STEP_SECONDS", 0.0)
    prices = []
    monkeypatch.setattr(accelerate, "pace", lambda scheduler, price: prices.append(price))
    engine = make_engine(load_engine(stage), loaded, **{"num_draft_tokens": 2} if stage == "08" else {})
    assert engine.startup_notes.count(f"token_budget={MIN_BUDGET} (") == 1
    engines = [worker.engine for worker in engine.fleet.workers] if stage == "08" else [engine]
    assert {one.scheduler.token_budget for one in engines} == {MIN_BUDGET}
    assert len(prices) == len(engines) and len({*prices}) == 1 and prices[0].pair > 0, "all workers have the router's"
    if stage == "08":
        engine.close()


def test_what_is_given_is_not_measured(loaded):
    assert make_engine(load_engine("05"), loaded, token_budget=100).scheduler.token_budget == 100


@pytest.mark.parametrize(
    ("dtype", "times", "says"), [("bfloat16", 1.3, True), ("bfloat16", 0.7, False), ("float32", 1.3, False)]
)
def test_an_engine_says_where_bfloat16_does_not_pay(monkeypatch, dtype, times, says):
    monkeypatch.setattr(accelerate, "slowness_of_bfloat16", lambda block, rows: times)
    engine = make_engine(load_engine("05"), load_model(device="cpu", dtype=dtype), token_budget=64)
    assert ("1.3 times as long in bfloat16 as in float32 here" in engine.startup_notes) is says

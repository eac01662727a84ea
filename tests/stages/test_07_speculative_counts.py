"""How many tokens stage 07 drafts: the arithmetic, and what is learned while it runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.stages import load_stage_module

speculation_module = load_stage_module("07", "adaptive_speculation")


class SimpleSequence:
    """Stands for a sequence of which nothing has been seen."""


def costs(per_pass: float, per_token: float, draft: float = 0.0):
    target = speculation_module.PassTimes({1: per_pass + per_token, 1000: per_pass + 1000 * per_token})
    return speculation_module.Costs(target, speculation_module.PassTimes({1: draft, 1000: draft}))


def best(rate: float, batch: int, costs, factor: float = 1.0) -> int:
    counts = speculation_module.best_counts([rate] * batch, costs, factor)
    assert len(set(counts)) == 1
    return counts[0]


def test_the_best_number_by_arithmetic():
    assert best(0.0, 1, costs(1.0, 0.0)) == 0 and best(1.0, 1, costs(1.0, 0.0)) == 8
    assert best(0.9, 1, costs(0.0, 1.0)) == 0, "if each token costs a pass of its own, there is nothing to gain"
    assert best(0.5, 1, costs(1.0, 0.0, draft=0.6)) == 0, "a draft that costs more than it brings"
    cheap = costs(1.0, 0.02, draft=0.05)
    counts = [best(0.8, batch, cheap) for batch in (1, 2, 4, 8, 16, 64, 256)]
    assert counts == sorted(counts, reverse=True) and counts[0] >= 4 and counts[-1] == 0
    assert [best(rate / 10, 1, cheap) for rate in range(11)] == sorted(best(rate / 10, 1, cheap) for rate in range(11))
    assert best(0.8, 1, cheap, factor=1.2) <= best(0.8, 1, cheap) and best(0.8, 1, cheap, factor=5.0) == 0
    # By hand: 1, 1.5, 1.75 tokens in 1, 1.2, 1.45 seconds for 0, 1, 2 draft tokens
    by_hand = speculation_module.PassTimes({1: 1, 2: 1.2, 3: 1.45, 9: 9})
    assert best(0.5, 1, speculation_module.Costs(by_hand, None)) == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.floats(0.01, 1), st.floats(0, 0.5), st.floats(0, 0.5))
def test_no_equal_number_for_all_is_better(rates, per_pass, per_token, draft):
    """Tokens a second with the chosen numbers, against none, and for equal requests, nearly, against every number."""

    def tokens_per_second(counts):
        return sum(rate**i for rate, k in zip(rates, counts, strict=True) for i in range(k + 1)) / price.step(counts)

    price = costs(per_pass, per_token, draft)
    chosen = tokens_per_second(speculation_module.best_counts(rates, price))
    assert chosen >= tokens_per_second([0] * len(rates)) * (1 - 1e-6)
    others = range(1, 9) if len(set(rates)) == 1 else []
    little = speculation_module.LEAST_GAIN**2  # no gain that is so small has to be taken
    assert all(chosen * little >= tokens_per_second([k] * len(rates)) * (1 - 1e-6) for k in others)


def test_requests_differ():
    counts = speculation_module.best_counts([0.95, 0.1, 0.8], costs(1.0, 0.03, draft=0.02))
    assert counts[0] >= counts[2] > counts[1]


def test_time_is_learned():
    adaptive = speculation_module.AdaptiveSpeculation(costs(1.0, 0.02, draft=0.05))
    fresh = [SimpleSequence() for _ in range(2)]
    usual = adaptive.counts(fresh)
    for _ in range(60):
        adaptive.record_step_time(3 * adaptive.costs.step(usual), usual)
    assert usual[0] > 0 and adaptive.counts(fresh) == [0, 0], "steps with draft tokens take three times as long"
    for _ in range(3000):
        adaptive.record_step_time(adaptive.costs.step([0, 0]), [0, 0])
    assert adaptive.counts(fresh) == usual, "and when that is forgotten they are tried again"


def test_acceptance_is_learned_and_forgotten():
    acceptance = speculation_module.Acceptance()
    assert acceptance.rate(0.7) == pytest.approx(0.7)
    for _ in range(50):
        acceptance.learn(4, 0)  # of four, one was looked at
    assert acceptance.judged == pytest.approx(10, rel=0.01) and acceptance.rate(0.7) < 0.25
    for _ in range(500):
        acceptance.learn(0, 0)
    assert acceptance.rate(0.7) == pytest.approx(0.7, abs=0.02), "a request that was given up is tried again"
    for _ in range(50):
        acceptance.learn(3, 3)
    assert acceptance.rate(0.7) > 0.9


@pytest.mark.parametrize("stage", ["07", "08"])
@pytest.mark.parametrize(
    ("per_token", "largest"), [(1e-6, 512), (0.101 / 64, 64), (0.101 / 11, 16), (0.101 / 8, 8), (0.1, 2), (1.0, 2)]
)
def test_long_passes_are_not_measured(monkeypatch, stage, per_token, largest):
    """The others lie on the line through the two longest measured ones, which are not neighbours like 10 and 11."""
    module, model = load_stage_module(stage, "pass_times"), SimpleSequence()
    monkeypatch.setattr(module, "decode_pass", lambda model, cache, size: lambda: size)
    monkeypatch.setattr(module, "timed", lambda run: per_token * run())
    times = module.pass_times(model, None)
    assert times.sizes[-1] == largest and times.sizes[-1] > 1.3 * times.sizes[-2]
    assert times(1000) == pytest.approx(1000 * per_token)
    assert module.pass_times(model, None) is times, "measured once"

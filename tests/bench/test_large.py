"""Benchmarks at a real model's shape: which sizes they take, what is simulated, and what their titles claim."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from common.bench.harness import aggregate
from common.bench.settings import Settings
from common.bench.suite import Suite
from common.bench.tables import committed
from tests.helpers.measured_here import shrink_products

SEVEN, EIGHT = (import_module(f"{stage}.benchmark") for stage in ("07_speculative", "08_disaggregated"))
GAPS = {"itl_p99_ms": 1.0, "tokens_per_second": 1.0, "goodput": 1.0, "itl_p50_ms": 1.0}
GAPS |= {"ttft_long_p50_ms": 1.0, "ttft_short_p90_ms": 1.0}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Settings(device="cpu"), ["full", "quick"]),
        (Settings("Qwen3-0.6B", device="cpu", load_format="dummy"), ["large", "large-quick"]),
        (Settings("draft", device="cpu"), ["full", "quick"]),
    ],
)
def test_a_large_model_has_sizes_of_its_own_on_a_cpu(settings, names):
    assert [settings.size_set(name) for name in ("full", "quick")] == names
    assert [settings.size_set(name) for name in ("tiny", "predict", "gpu")] == ["tiny", "predict", "gpu"]
    files = {name: Suite([], settings, name, Path()).path.name for name in (*names, "full", "large")}
    assert len({*files.values()}) == len(files), "no set of sizes replaces the results of another"
    assert [files[name].removesuffix(".json").endswith("-quick") for name in names] == [False, True]


def test_simulated_drafts_are_right_as_often_as_asked(monkeypatch):
    """Of greedy requests every accepted token is the target's own, so that all sides give the same text."""
    shrink_products(monkeypatch)
    sizes = {"acceptance": [0.0, 0.5, 1.0], "fixed": 2, "batches": [1, 2], "prompt": 4, "most_tokens": 12}
    sizes |= {"least_jobs": 16}
    figures = SEVEN.simulated(Settings(device="cpu", dtype="float32"), sizes)
    assert figures["simulated_0_acceptance"] == [0, 0] and min(figures["simulated_100_acceptance"]) > 99
    # A token behind a wrong one is not accepted: (a + a^2) / 2.
    assert figures["simulated_50_acceptance"] == pytest.approx([37.5, 37.5], abs=12)
    assert len(figures["pass_ms"]) == len(SEVEN.pass_sizes(sizes)) == 4  # 1, 2, 3 and 6 tokens
    derived = SEVEN.derive(None, None, sizes, {SEVEN.NOW: figures | {"pass_ms": [1.0, 1.0, 2.0, 4.0]}})
    assert derived["predicted_simulated_50_speedup"] == [1.75 / 2, 1.75 / 4]
    assert SEVEN.report({"sizes": sizes, "figures": aggregate([derived])})["simulated"][4][1:] == ["0.88", "0.44"]


def three_sides(gaps: list, goodput: list) -> dict:
    """Return the committed document of stage 08 as if it had replicas; figures are by rate, of one repeat each."""
    document = json.loads(json.dumps(committed("08_disaggregated.benchmark")))
    rates = len(document["sizes"]["rates"])
    repeats = []
    for each, reached in zip(gaps, goodput, strict=True):
        sides = {side: {name: [value] * rates for name, value in GAPS.items()} for side in EIGHT.LABELS}
        sides[EIGHT.REPLICAS]["goodput"] = [0.5] * rates
        sides[EIGHT.REPLICAS]["itl_p99_ms"], sides[EIGHT.NOW]["goodput"] = each, reached
        repeats.append(sides)
    document["sides"] = {side: aggregate([each[side] for each in repeats]) for side in EIGHT.LABELS}
    document["sides"][EIGHT.BEFORE] |= aggregate([dict.fromkeys(EIGHT.ALONE.values(), 2.0)] * len(repeats))
    document["figures"] = aggregate([EIGHT.derive(None, None, document["sizes"], each) for each in repeats])
    return document


def test_the_title_says_at_which_rates_it_is_true(tmp_path):
    """In every repeat; at a rate where one of them disagrees, nothing is claimed."""
    document = three_sides([[9, 0.5, 4, 6], [9, 2, 4, 8]], [[2, 0, 1, 2], [2, 0, 1, 3]])
    assert EIGHT.message_of(document) == "Apart, p99 gaps are 4.0 to 7.0 times shorter than replicas', from 1/s on"
    assert document["figures"]["goodput_lead"]["min"] == [1, -1, 0, 1]
    EIGHT.draw(document, tmp_path / "three.png")
    header, *rows = EIGHT.report(document)["gaps"]
    assert len(header) == 7 and header[5] == "replicas, 2 long a second" and rows[1][5] == "7"
    assert "no shorter gaps" in EIGHT.message_of(three_sides([[9, 1, 1, 1]], [[1, 1, 1, 1]]))

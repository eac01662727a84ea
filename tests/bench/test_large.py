"""Benchmarks at a real model's shape: which sizes they take, what is simulated, and what their titles claim."""

from importlib import import_module
from pathlib import Path

import pytest

from common.bench.harness import aggregate, spread
from common.bench.settings import Settings
from common.bench.suite import Suite
from tests.helpers.measured_here import shrink_measurements

SEVEN, EIGHT = (import_module(f"{stage}.benchmark") for stage in ("07_speculative", "08_disaggregated"))


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
    shrink_measurements(monkeypatch)
    sizes = {"acceptance": [0.0, 0.5, 1.0], "fixed": 2, "batches": [1, 2], "prompt": 4, "most_tokens": 12}
    sizes |= {"least_jobs": 8}
    figures = SEVEN.simulated(Settings("draft", device="cpu", dtype="float32"), sizes)
    assert figures["simulated_0_acceptance"] == [0, 0] and min(figures["simulated_100_acceptance"]) > 99
    # A token behind a wrong one is not accepted: (a + a^2) / 2.
    assert figures["simulated_50_acceptance"] == pytest.approx([37.5, 37.5], abs=12)
    assert len(figures["pass_ms"]) == len(SEVEN.pass_sizes(sizes)) == 4  # 1, 2, 3 and 6 tokens
    derived = SEVEN.derive(None, None, sizes, {SEVEN.NOW: figures | {"pass_ms": [1.0, 1.0, 2.0, 4.0]}})
    assert derived["predicted_simulated_50_speedup"] == [1.75 / 2, 1.75 / 4]
    assert SEVEN.report({"sizes": sizes, "figures": aggregate([derived])})["simulated"][4][1:] == ["0.88", "0.44"]


def test_the_title_says_at_which_rates_it_is_true():
    """In every repeat; at a rate where one of them disagrees, nothing is claimed."""

    def message(*repeats: list) -> str:
        document = {"sizes": {"rates": [0, 0.5, 1, 2]}, "figures": {"replicas_p99_ratio": spread(list(repeats))}}
        return EIGHT.message_of(document)

    assert message([9, 0.5, 4, 6], [9, 2, 4, 8]) == (
        "A decode worker's p99 gap is 14 to 25 % of the replicas', from 1/s on"
    )
    assert message([9, 2, 1, 3]).endswith("33 to 50 % of the replicas', at 0.5 and 2/s")
    assert "no shorter gaps" in message([9, 1, 1, 1])

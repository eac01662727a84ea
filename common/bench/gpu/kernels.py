"""Are the kernels right on this device, and how long does each take?

Method. All tests that are marked as needing a GPU, in one process; then the microbenchmarks of
common/bench/experiments/kernels.py, for few of its sizes, since every row compiles something. A kernel's time means
nothing while its result is wrong: tests that fail make the part fail.

Expectation. What happens between matrix products is little arithmetic on many bytes, so a kernel that does it in one
pass takes what a copy of its bytes takes; but none is faster than the smallest kernel there is, some 2 us.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from common.bench import plots
from common.bench.experiments import kernels
from common.bench.hardware import ROOT
from common.bench.harness import Benchmark, Figures, run_benchmark
from common.bench.settings import Settings
from common.loader.device import DTYPES
from common.model import ModelConfig

from .suites import run_pytest
from .tiles import tune

SIZES = {
    "model": "Qwen3-8B",
    "select": ["-m", "gpu"],
    "dtype": "bfloat16",
    "rows": {"tokens": [1, 256], "requests": [1, 64, 256], "context": 1024},
}
TINY = {
    "model": None,
    "select": ["-m", "not gpu", "-k", "test_the_choice_says_why"],  # without a GPU those that need one are skipped
    "dtype": "float32",
    "rows": {"tokens": [1, 2], "requests": [2], "context": 20, "copy_bytes": 2**20, "repeats": 1, "compiler": "eager"},
}
MARKERS = {"eager": "o", "compiled": "s", "triton": "D"}
TINTS = {"eager": plots.COLORS["01"], "compiled": plots.COLORS["04"], "triton": plots.COLORS["06"]}


def measure_tests(settings: Settings, sizes: dict) -> Figures:
    # Only files with such tests: others may import packages that a GPU machine does not have.
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(path) for path in paths if re.search(r"mark\.gpu|triton_marks", path.read_text(encoding="utf-8"))]
    counts = run_pytest([*files, *sizes["select"]])
    if counts["failures"]:
        raise ValueError(f"{len(counts['failures'])} tests of the kernels fail: {'; '.join(counts['failures'])}")
    return {key: counts[key] for key in ("passed", "skipped")}


def measure_times(settings: Settings, sizes: dict) -> Figures:
    """Return rows of microseconds; print each as soon as it is measured. On a GPU tune the decode kernel first."""
    device, dtype = settings.place()
    if device.type == "cuda":
        tune(device, dtype)
    rows = {key: tuple(value) if isinstance(value, list) else value for key, value in sizes["rows"].items()}
    chosen = kernels.Sizes({settings.describe()["model"]: settings.config()}, dtype=DTYPES[sizes["dtype"]], **rows)
    document = kernels.measure(device, chosen, lambda row: print(kernels.line(row), file=sys.stderr, flush=True))
    return {key: document[key] for key in ("copy_bytes_per_second", "smallest_kernel_us", "rows")}


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    """Return how many times the floor the fused kernels take, at best and at worst."""
    rows = [row for row in measured["times"]["rows"] if "triton" in row["us"] and row["operation"] != "block"]
    ratios = [row["us"]["triton"] / row["floor_us"] for row in rows]
    return {"least_over_floor": min(ratios), "most_over_floor": max(ratios)}


def draw(document: dict, png: Path) -> None:
    """Draw operations between the products side by side; for each number of tokens a panel."""
    sides, figures = document["sides"], document["figures"]
    [rows] = sides["times"]["rows"]["values"]
    rows = [row for row in rows if row["us"].keys() & TINTS.keys()]
    least, most = (plots.short(figures[f"{name}_over_floor"]["median"]) for name in ("least", "most"))
    remark = (
        f"{document['settings']['model']}, what happens in a layer between the matrix products, and a whole block "
        "without attention. Replayed CUDA graphs,\nmedians. Dashed: the bytes at the bandwidth of a large copy, or the "
        f"smallest kernel. Tests of the kernels on this device: {sides['tests']['passed']['median']} passed, "
        f"{sides['tests']['skipped']['median']} skipped."
    )
    message = f"Fused kernels take {least} to {most} times as long as their bytes"
    counts = sorted({row["tokens"] for row in rows})
    with plots.page(png, document, message, columns=len(counts), height=5.2, remark=remark) as panels:
        for panel, tokens in zip(panels, counts, strict=True):
            here = [row for row in rows if row["tokens"] == tokens]
            places = list(range(len(here)))
            plots.predicted(panel, places, {"median": [row["floor_us"] for row in here]}, "bytes")
            for variant, tint in TINTS.items():
                found = [(place, row["us"][variant]) for place, row in enumerate(here) if variant in row["us"]]
                if found:  # a compiler may have refused all of them
                    panel.plot(*zip(*found, strict=True), MARKERS[variant], color=tint, label=variant, markersize=8)
            panel.set_xticks(places, [row["operation"].replace("_", "\n").replace(", ", "\n") for row in here])
            panel.tick_params(axis="x", labelsize=10)
            plots.logarithmic(panel)
            plots.axes(panel, "", "microseconds", f"{tokens} token{'s' * (tokens > 1)} in the step")


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"tests": measure_tests, "times": measure_times},
    sizes={"full": SIZES, "tiny": TINY},
    derive=derive,
    draw=draw,
    seconds={"gpu": 75},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""The kernels on this device: their tests, which need it, and how long each takes.

Method. All tests that are marked as needing a GPU, in one process; then the microbenchmarks of common/bench/kernels.py,
for few of its sizes, since every row compiles something. A kernel's time means nothing while its result is wrong, so
tests that fail make the part fail, after everything has been measured.

Expectation. What happens between matrix products is little arithmetic on many bytes, so a kernel that does it in one
pass takes what a copy of its bytes takes; but none is faster than the smallest kernel there is, some 2 us.
"""

from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.hardware import ROOT
from common.loader.device import DTYPES

from .run import Run, config_of
from .suites import in_words, run_pytest
from .tiles import tune

SIZES: dict[str, Any] = {
    "select": ["-m", "gpu"],
    "model": "Qwen3-8B",
    "rows": {"dtype": "bfloat16", "tokens": [1, 256], "requests": [1, 64, 256], "context": 1024},
}
TINY: dict[str, Any] = {
    "select": ["-m", "not gpu", "-k", "test_the_choice_says_why"],  # without a GPU those that need one are skipped
    "model": "tiny",
    "rows": {"dtype": "float32", "tokens": [1, 2], "requests": [2], "context": 20, "copy_bytes": 2**20, "repeats": 1}
    | {"compiler": "eager"},
}
MARKERS = {"eager": "o", "compiled": "s", "triton": "D"}
TINTS = {"eager": plots.COLORS["01"], "compiled": plots.COLORS["04"], "triton": plots.COLORS["06"]}


def measure(run: Run) -> None:
    tests = run_pytest([*files_with_gpu_tests(), *run.sizes["select"]], run.log("tests"))
    run.keep(tests=tests)
    run.say(f"tests: {in_words(tests)}")
    if run.device.type == "cuda":
        run.keep(tiles=tune(run.device, run.dtype))
    times = microbenchmarks(run)
    run.headline(
        passed=tests["passed"],
        failed=tests["failed"] + tests["errors"],
        skipped=tests["skipped"],
        rows=len(times["rows"]),
    )
    if tests["failed"] or tests["errors"]:
        raise ValueError(f"tests of the kernels: {in_words(tests)}; the first: {tests['failures'][0]}")


def files_with_gpu_tests() -> list[str]:
    """Only these: others may import packages that a GPU machine does not have."""
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    return [str(path) for path in paths if "mark.gpu" in path.read_text(encoding="utf-8")]


def microbenchmarks(run: Run) -> dict[str, Any]:
    """Rows of microseconds, each kept as soon as it is measured."""
    from common.bench import kernels  # which needs Triton

    name, options = run.sizes["model"], dict(run.sizes["rows"])
    options["dtype"] = DTYPES[options["dtype"]]
    sizes = kernels.Sizes({name: config_of(name)}, **{key: as_tuple(value) for key, value in options.items()})
    run.document["settings"] |= {"model": name, "dtype": run.sizes["rows"]["dtype"], "load_format": "dummy"}
    rows: list[dict] = []

    def keep_row(row: dict) -> None:
        rows.append(row)
        run.keep(microbenchmarks={"rows": rows})
        run.say(f"{row['operation']}, {row['tokens']} tokens, us: { {k: round(v, 1) for k, v in row['us'].items()} }")

    times = kernels.measure(run.device, sizes, keep_row)
    run.keep(microbenchmarks=times)
    return times


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    """Operations between the products side by side; for each number of tokens a panel."""
    figures, sizes = document["figures"], document["sizes"]
    rows = [row for row in figures["microbenchmarks"]["rows"] if row["us"].keys() & TINTS.keys()]
    ours = [
        row["us"]["triton"] / row["floor_us"] for row in rows if "triton" in row["us"] and row["operation"] != "block"
    ]
    message = f"Fused kernels take {plots.short(min(ours))} to {plots.short(max(ours))} times as long as their bytes"
    tests = figures["tests"]
    remark = (
        f"{sizes['model']}, what happens in a layer between the matrix products, and a whole block without attention. "
        "Replayed CUDA graphs,\nmedians. Dashed: the bytes at the bandwidth of a large copy, or the smallest kernel. "
        f"Tests of the kernels on this device: {tests['passed']} passed, {tests['failed'] + tests['errors']} failed, "
        f"{tests['skipped']} skipped."
    )
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

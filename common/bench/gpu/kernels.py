"""Are the kernels right on this device, and how long does each take, beside the operations that it replaces?

Method. All tests that are marked as needing a GPU, in one process: a kernel's time means nothing while its result is
wrong, and tests that fail make the part fail. Then each operation between the matrix products, a whole block without
attention, and attention in decode: plain PyTorch, torch.compile and the course's Triton kernels, medians of replayed
CUDA graphs, where the gaps between kernels are the GPU's own; "launched" is the same from Python, call by call. The
floor is the bytes to move over the bandwidth of a copy, but not less than the smallest kernel takes. The seconds of a
variant's first call are kept as well: torch.compile compiles again in every row, Triton has its kernels from the first
number of tokens on, and both are faster with a cache on disk.

Expectation. What happens between matrix products is little arithmetic on many bytes, so a kernel that does it in one
pass takes what a copy of its bytes takes; but none is faster than the smallest kernel there is, some 2 us. An operation
whose inputs fit into the GPU's cache can beat the floor; what a block computes for many tokens takes longer, and
"products alone" says how long.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from common.bench import plots
from common.bench.ceilings import copy_bytes_per_second
from common.bench.hardware import ROOT
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.timing import REPEATS, median_seconds
from common.fused.triton_launch import why_not_triton
from common.loader.config import first_sentence
from common.model import ModelConfig
from common.transfers import synchronize

from .suites import run_pytest
from .tiles import tune

if TYPE_CHECKING:
    from .kernel_cases import Case  # needs Triton; a machine without it gets one sentence

SIZES = {
    "model": "Qwen3-8B",
    "select": ["-m", "gpu"],
    "tokens": [1, 256],  # in a step; few, since every row compiles something
    "requests": [1, 64, 256],  # of attention in decode
    "context": 1024,
    "copy_bytes": 2**30,
    "compiler": "inductor",  # the backend of torch.compile
    "times": REPEATS,
}
TINY = {
    "model": None,
    "select": ["-m", "not gpu", "-k", "test_the_choice_says_why"],  # without a GPU those that need one are skipped
    "tokens": [2],
    "requests": [2],
    "context": 20,
    "copy_bytes": 2**20,
    "compiler": "eager",
    "times": 1,
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
    """Time all operations; on a GPU, tune the decode kernel first."""
    device, dtype = settings.place()
    if device.type == "cuda":
        tune(device, dtype)
    return measure_rows(settings.config(), device, dtype, sizes)


@torch.inference_mode()
def measure_rows(config: ModelConfig, device: torch.device, dtype: torch.dtype, sizes: dict) -> Figures:
    """Return the bandwidth, and a row for each operation and number of tokens; print each as soon as it is measured.

    Raise ValueError where Triton cannot run.
    """
    if (reason := why_not_triton(device)) is not None:
        raise ValueError(f"the kernels cannot be measured here: {reason}")
    bandwidth = copy_bytes_per_second(device, sizes["copy_bytes"], sizes["times"])
    smallest = 1e6 * median_seconds(torch.zeros(1, device=device).add_, device, [(1.0,)], repeats=sizes["times"])
    print(f"{'operation':18} tokens floor | variant, in us (times the floor)", file=sys.stderr)
    rows = []
    for case in all_cases(config, device, dtype, sizes):
        floor = max(1e6 * case.nbytes / bandwidth, smallest)
        microseconds, first_calls, failed = times_of(case, device, sizes)
        row = {
            "operation": case.operation,
            "tokens": case.tokens,
            "bytes": case.nbytes,
            "floor_us": floor,
            "us": microseconds,
            "over_floor": {name: value / floor for name, value in microseconds.items()},
            "first_call_s": first_calls,
            "missing": case.missing | failed,
        }
        print(line(row), file=sys.stderr, flush=True)
        rows.append(row)
    return {"copy_bytes_per_second": bandwidth, "smallest_kernel_us": smallest, "rows": rows}


def all_cases(config: ModelConfig, device: torch.device, dtype: torch.dtype, sizes: dict) -> Iterator["Case"]:
    from .kernel_cases import attention_case, layers_of, model_cases

    layers = layers_of(config, device, dtype)
    for tokens in sizes["tokens"]:
        yield from model_cases(layers, tokens)
    del layers
    for requests in sizes["requests"]:
        yield attention_case(config, requests, sizes["context"], device, dtype)


def times_of(case: "Case", device: torch.device, sizes: dict) -> tuple[dict, dict, dict]:
    """Return by variant microseconds of a call, seconds of the first one, and for those that fail the reason."""
    inputs = case.inputs(device)
    microseconds, first_calls, failed = {}, {}, {}
    for name, function in case.variants.items():
        if name == "compiled":
            torch.compiler.reset()  # it gives up compiling a function for more than a few shapes
            function = torch.compile(function, fullgraph=True, dynamic=False, backend=sizes["compiler"])
        try:
            first_calls[name] = seconds_of_one(function, inputs[0], device)
            # A variant that compiled again for the next input, or gave up, would not be what its name says.
            with torch.compiler.set_stance("fail_on_recompile"):
                for graph in (True, False) if case.launched else (True,):
                    seconds = median_seconds(function, device, inputs, graph=graph, repeats=sizes["times"])
                    microseconds[name if graph else f"{name}, launched"] = 1e6 * seconds
        except RuntimeError as error:  # a long benchmark does not end because a compiler or a library refuses a case
            failed[name] = first_sentence(error)
    return microseconds, first_calls, failed


def seconds_of_one(function: Callable, arguments: tuple, device: torch.device) -> float:
    start = time.perf_counter()
    function(*arguments)
    synchronize(device)
    return time.perf_counter() - start


def line(row: dict) -> str:
    """Return a row of the table: each variant's time, and in parentheses how many times the floor that is."""
    times = (f"{name} {value:.1f} ({row['over_floor'][name]:.1f})" for name, value in row["us"].items())
    missing = (f"no {name}: {reason}" for name, reason in row["missing"].items())
    start = f"{row['operation']:18} {row['tokens']:5} {row['floor_us']:9.1f}"
    return " | ".join([start, *times, *missing])


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

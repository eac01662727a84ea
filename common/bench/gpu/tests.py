"""Are the kernels right on this device, and do all stages say the same tokens on it as transformers does?

Method. All tests that are marked as needing a GPU, in several processes; and the contract suite in float32, for each
stage and for those that have graphs and the overlapped loop around them, as on a GPU by default, each engine in a
process of its own. Nothing is timed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from common.bench.hardware import ROOT
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.suite import wrong_in
from common.setup.machine import usable_cores
from common.stages import stage_folders

MOST_OUTPUT = 50_000  # characters of a run in which something failed
AT_ONCE = 6  # engines that share a GPU
CORES = 2  # of a process
SIZES = {
    "engines": [
        # As a GPU has them by default, in the words of tests/conftest.py. They take longest: each test captures graphs.
        *("07_speculative+graphs", "06_prefix_cache+overlap+graphs", "05_paged_attention+overlap+graphs"),
        *(folder.name for folder in reversed(stage_folders())),
    ],
    "select": [],
}
TINY = {"engines": ["06_prefix_cache"], "select": ["-k", "test_a_prompt_alone"]}


def measure_marked(settings: Settings, sizes: dict) -> Figures:
    """Return what pytest says of all tests that need a GPU, in several processes: kernels take a second to compile."""
    options = ["-n", str(max(1, 3 * usable_cores() // 4))] if find_spec("xdist") else []
    return told({"marked gpu": run_pytest([*map(str, files_with_marked()), "-m", "gpu", *options])})


def files_with_marked() -> list[Path]:
    """Return the files with such tests, those of whole engines first, as they take longest: others may import packages
    that a GPU machine does not have."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (path.parent.name != "gpu", path))
    return [path for path in paths if re.search(r"mark\.gpu|triton_marks", path.read_text(encoding="utf-8"))]


def measure_contract(settings: Settings, sizes: dict) -> Figures:
    """Return what pytest says of each engine."""
    arguments = ["tests/test_contract.py", "--device", settings.place()[0].type, *sizes["select"]]
    with ThreadPoolExecutor(min(AT_ONCE, max(1, usable_cores() // CORES))) as pool:
        runs = pool.map(lambda name: run_pytest([*arguments, "--engine", name]), sizes["engines"])
    return told(dict(zip(sizes["engines"], runs, strict=True)))


def told(runs: dict[str, tuple[str, list[str], str]]) -> Figures:
    """Return the figures of several runs of `run_pytest`, by their names."""
    return {
        "pytest": {name: last for name, (last, _, _) in runs.items()},
        "wrong": [f"{name}: {line}" for name, (_, failed, _) in runs.items() for line in failed],
        "output": {name: text for name, (_, failed, text) in runs.items() if failed},
    }


def run_pytest(arguments: Sequence[str]) -> tuple[str, list[str], str]:
    """Return pytest's last line, such as "62 passed, 8 skipped in 20.31s"; what failed, or why no test could be run;
    and the end of all that it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(CORES), "COLUMNS": "300"}  # lines that are not cut
    done = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    text = (done.stdout.strip() or done.stderr.strip()).replace(f"{ROOT}{os.sep}", "")
    *_, last = text.splitlines() or [""]
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return last, [*failed, last] if done.returncode else [], text[-MOST_OUTPUT:]


def report(document: dict) -> dict[str, list]:
    """Return a line for each run of pytest."""
    found = [said for side in document["sides"].values() for said in side["pytest"]["values"][0].items()]
    wrong = [(said, "") for said in wrong_in(document["sides"])]
    return {"tests": [("tests", "pytest says"), *found, *wrong]}


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"kernels": measure_marked, "contract": measure_contract},
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 85},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

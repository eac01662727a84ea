"""Are the kernels right on this device, and do all stages say the same tokens on it as transformers does?

Method. All tests that are marked as needing a GPU, in several processes; and the contract suite in float32, for each
stage and for those that have graphs and the overlapped loop around them, as on a GPU by default, each engine in a
process of its own. Nothing is timed.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from common.bench.hardware import ROOT
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.suite import wrong_in
from common.setup.machine import usable_cores

MAX_OUTPUT = 50_000  # characters of a run in which something failed
AT_ONCE = 6  # engines that share a GPU
CORES = 2  # of a process


def measure_marked(settings: Settings, sizes: dict) -> Figures:
    """Return what pytest says of all tests that need a GPU, in several processes: kernels take a second to compile."""
    options = ["-n", str(max(1, 3 * usable_cores() // 4))] if find_spec("xdist") else []
    return told({"marked gpu": run_pytest(*files_with_marked(), "-m", "gpu", *options)})


def files_with_marked() -> list[Path]:
    """Return the files with such tests, those of whole engines first, as they take longest: others may import packages
    that a GPU machine does not have."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (path.parent.name != "gpu", path))
    return [path for path in paths if re.search(r"mark\.gpu|triton_marks", path.read_text(encoding="utf-8"))]


def measure_contract(settings: Settings, sizes: dict) -> Figures:
    """Return what pytest says of each engine."""
    arguments = ["tests/test_contract.py", "--device", settings.place()[0].type, *sizes["select"]]
    with ThreadPoolExecutor(min(AT_ONCE, max(1, usable_cores() // CORES))) as pool:
        runs = pool.map(lambda name: run_pytest(*arguments, "--engine", name), sizes["engines"])
    return told(dict(zip(sizes["engines"], runs, strict=True)))


def told(runs: dict[str, tuple[int, str]]) -> Figures:
    """Return the figures of several runs of pytest, by their names, from the status of each and what it printed.

    "pytest": its last line, such as "62 passed, 8 skipped in 20.31s". "wrong": what failed, or why no test could be
    run. "output": the end of all that such a run has printed.
    """
    figures: Figures = {"pytest": {}, "wrong": [], "output": {}}
    for name, (status, text) in runs.items():
        lines = text.splitlines() or [""]
        figures["pytest"][name] = lines[-1]
        if status:
            failed = [line for line in lines[:-1] if line.startswith(("FAILED", "ERROR"))]
            figures["wrong"] += [f"{name}: {line}" for line in [*failed, lines[-1]]]
            figures["output"][name] = text[-MAX_OUTPUT:]
    return figures


def run_pytest(*arguments: object) -> tuple[int, str]:
    """Run pytest in a process of its own; return its status and what it has printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(CORES), "COLUMNS": "300"}  # COLUMNS: no line is cut
    command += map(str, arguments)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, (done.stdout.strip() or done.stderr.strip()).replace(f"{ROOT}{os.sep}", "")


def report(document: dict) -> dict[str, list]:
    """Return a line for each run of pytest, then what went wrong, without last lines that are there already."""
    found = [said for side in document["sides"].values() for said in side["pytest"]["values"][0].items()]
    found += [tuple(said.split(": ", 1)) for said in wrong_in(document["sides"])]
    return {"tests": [("tests", "pytest says"), *dict.fromkeys(found)]}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={"kernels": measure_marked, "contract": measure_contract},
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""Are the kernels right on this device, and do all stages say the same tokens on it as transformers does?

Method. All tests that are marked as needing a GPU; and the contract suite in float32, for each stage and for those that
have graphs and the overlapped loop around them, as on a GPU by default, in processes side by side. Nothing is timed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.bench.hardware import ROOT
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.stages import stage_folders

SIZES = {
    "engines": [
        *(folder.name for folder in stage_folders() if folder.name < "08"),
        # As a GPU has them by default, in the words of tests/conftest.py.
        *("05_paged_attention+overlap+graphs", "06_prefix_cache+overlap+graphs", "07_speculative+graphs"),
    ],
    "select": [],
}
TINY = {"engines": ["06_prefix_cache"], "select": ["-k", "test_a_prompt_alone"]}


def measure_marked(settings: Settings, sizes: dict) -> Figures:
    """Return what pytest says of all tests that need a GPU. Raise ValueError with the failures if there are any."""
    return {"pytest": {"marked gpu": run_pytest([*map(str, files_with_marked()), "-m", "gpu"])}}


def files_with_marked() -> list[Path]:
    """Return the files with such tests: others may import packages that a GPU machine does not have."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in paths if re.search(r"mark\.gpu|triton_marks", path.read_text(encoding="utf-8"))]


def measure_contract(settings: Settings, sizes: dict) -> Figures:
    """Return what pytest says of each engine. Raise ValueError with the failures if there are any."""
    arguments = ["tests/test_contract.py", "--device", settings.place()[0].type, *sizes["select"]]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:  # each process has two cores
        runs = {name: pool.submit(run_pytest, [*arguments, "--engine", name]) for name in sizes["engines"]}
    if problems := [f"{name}: {error}" for name, run in runs.items() if (error := run.exception())]:
        raise ValueError("; ".join(problems))
    return {"pytest": {name: run.result() for name, run in runs.items()}}


def run_pytest(arguments: Sequence[str]) -> str:
    """Return pytest's last line, such as "62 passed, 8 skipped in 20.31s".

    Raise ValueError with what failed, or why no test could be run. What pytest prints goes to stderr.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "COLUMNS": "300"}  # lines that are not cut
    done = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or [""]
    if done.returncode:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        raise ValueError("; ".join([*failed, lines[-1]]))
    return lines[-1]


def report(document: dict) -> dict[str, list]:
    """Return a line for each run of pytest."""
    found = [said for side in document["sides"].values() for said in side["pytest"]["values"][0].items()]
    return {"tests": [("tests", "pytest says"), *found]}


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"kernels": measure_marked, "contract": measure_contract},
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 120},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

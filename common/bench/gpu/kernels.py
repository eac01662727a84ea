"""The kernels on this device: their tests, which need it, and how long each takes.

Method. All tests that are marked as needing a GPU, in one process; then the microbenchmarks of common/bench/kernels.py.
A kernel's time means nothing while its result is wrong, so tests that fail make the part fail, after everything has
been measured.
"""

from typing import Any

from common.bench.hardware import ROOT

from .run import Run
from .suites import in_words, run_pytest

SIZES: dict[str, Any] = {"select": ["-m", "gpu"]}
TINY = {"select": ["-m", "not gpu", "-k", "test_the_choice_says_why"]}  # without a GPU those that need one are skipped


def measure(run: Run) -> None:
    tests = run_pytest([*files_with_gpu_tests(), *run.sizes["select"]], run.log("tests"))
    run.keep(tests=tests)
    run.say(f"tests: {in_words(tests)}")
    from common.bench import kernels

    run.keep(microbenchmarks=kernels.measure(run.device))
    run.headline(passed=tests["passed"], failed=tests["failed"] + tests["errors"], skipped=tests["skipped"])
    if tests["failed"] or tests["errors"]:
        raise ValueError(f"tests of the kernels: {in_words(tests)}; the first: {tests['failures'][0]}")


def files_with_gpu_tests() -> list[str]:
    """Only these: others may import packages that a GPU machine does not have."""
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    return [str(path) for path in paths if "mark.gpu" in path.read_text(encoding="utf-8")]

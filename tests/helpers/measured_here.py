"""Measure a benchmark's sides in this process, in place of one each: a process needs seconds to import torch."""

import io
from contextlib import redirect_stdout
from weakref import WeakKeyDictionary

import pytest

from common import pass_times, token_budget
from common.bench import ceilings
from common.bench.harness import Run, parsed
from common.bench.run import main
from common.bench.settings import Settings
from common.process import freeze_loaded_objects


def measure_here(run: Run, settings: Settings, size_set: str, *_) -> tuple[dict[str, dict], str | None]:
    """Stand in for `harness.run_process`: the same command line, with the same answers on stdout."""
    words = ["--measure", ",".join(run.sides), "--sizes", size_set, *settings.arguments()]
    with redirect_stdout(io.StringIO()) as printed:
        main(run.benchmark.name, "", [run.benchmark], words)
    answers = {answer["side"]: answer for answer in map(parsed, printed.getvalue().splitlines()) if answer}
    errors = [f"{side}: {answer['error']}" for side, answer in answers.items() if "error" in answer]
    return answers, errors[0] if errors else None


def shrink_measurements(patch: pytest.MonkeyPatch) -> None:
    """Shrink what a machine is judged by, and a budget or a number of draft tokens is chosen by: each takes 0.1 to 1 s.

    What draft tokens cost is noted for each model: these notes are for one test.
    """
    for sizes, size in ((ceilings.LARGE, 64), (ceilings.REFERENCE, 256), (ceilings.COPIED, 2**20)):
        patch.setitem(sizes, "cpu", size)
    patch.setattr(token_budget, "MAX_BUDGET", token_budget.MIN_BUDGET)
    patch.setattr(token_budget, "KV_BYTES", 2**20)
    patch.setattr(pass_times, "SIZES", pass_times.SIZES[:3])
    patch.setattr(pass_times, "_known", WeakKeyDictionary())
    freeze_loaded_objects()  # Otherwise each garbage collection around a side or an engine takes 0.2 s.

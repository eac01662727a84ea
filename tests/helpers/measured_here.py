"""Measure a benchmark's sides in this process, in place of one each: a process needs seconds to import torch."""

import pytest

from common import token_budget
from common.bench import ceilings
from common.bench.harness import Run, measure_sides
from common.bench.settings import Settings


def measure_here(run: Run, settings: Settings, size_set: str, *_) -> tuple[dict[str, dict], str | None]:
    """Stand in for `harness.run_process`."""
    answers = {answer["side"]: answer for answer in measure_sides(run.benchmark, run.sides, settings, size_set)}
    errors = [f"{side}: {answer['error']}" for side, answer in answers.items() if "error" in answer]
    return answers, errors[0] if errors else None


def shrink_products(patch: pytest.MonkeyPatch) -> None:
    """Make the products small by which a machine is judged, and a budget chosen: they take a second on a CPU."""
    for sizes in (ceilings.LARGE, ceilings.REFERENCE):
        patch.setitem(sizes, "cpu", 256)
    patch.setattr(token_budget, "MOST", token_budget.LEAST)

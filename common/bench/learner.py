"""`course.py bench my/05`: a learner's stage beside the reference of its name, which is one more side.

Its results stay in its own folder: those of the machine hold the course's stages alone.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .harness import Benchmark, Figures
from .settings import Settings

REFERENCE = "reference"


def is_learners(benchmark: Benchmark) -> bool:
    """Return whether it is the benchmark of the stage for which course.py has set COURSE_STAGE."""
    return os.environ.get("COURSE_STAGE") == str(Path(benchmark.file).resolve().parent)


def beside_reference(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the reference as a side: the headline compares both, and plots show both."""
    name, headline = benchmark.name, benchmark.headline
    measure = benchmark.sides[name]

    def measure_reference(settings: Settings, sizes: dict) -> Figures:
        del os.environ["COURSE_STAGE"]  # in this process, which measures nothing else, the name is the reference's
        return measure(settings, sizes)

    def value(sizes: dict, side: Figures) -> float:
        found = headline.value(sizes, side)
        return [*found.values()][-1] if isinstance(found, dict) else found

    return replace(
        benchmark,
        sides={**benchmark.sides, REFERENCE: measure_reference},
        headline=headline and replace(headline, sides=(REFERENCE, name), value=value),
        draw=benchmark.draw and (lambda document, png: benchmark.draw(with_reference(document, name), png)),
    )


def with_reference(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the document whose figures of the learner's side have those of the reference under "reference"."""
    sides = document["sides"]
    both = {key: {**figure, REFERENCE: sides[REFERENCE][key]} for key, figure in sides[name].items()}
    return {**document, "sides": {**sides, name: both}}

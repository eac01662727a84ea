"""What every benchmark.py ends with.

`course.py bench my/05` runs a learner's own: the reference of its name is one more side, and the results stay in the
learner's folder. Those of the machine hold the course's stages alone.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.terminal import run_to_end

from .commands import main
from .harness import Benchmark, Figures
from .settings import Settings

REFERENCE = "reference"


def run_benchmark(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> None:
    """Run the command line of a benchmark. Exit with 1 and a sentence if a side fails, with 130 after Ctrl-C."""
    defaults = {}
    if os.environ.get("COURSE_STAGE") == str(Path(benchmark.file).resolve().parent):  # course.py has set it
        benchmark, defaults = beside_reference(benchmark), {"home": benchmark.results}
    name = f"python -m {benchmark.module}"
    run_to_end(lambda: main(name, benchmark.description, [benchmark], arguments, **defaults))


def beside_reference(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the reference as a side: the headline compares both, and plots show both."""
    name, headline = benchmark.name, benchmark.headline

    def measure(settings: Settings, sizes: dict) -> Figures:
        del os.environ["COURSE_STAGE"]  # in this process, which measures nothing else, the name is the reference's
        return benchmark.sides[name](settings, sizes)

    def value(sizes: dict, side: Figures) -> float:
        found = headline.value(sizes, side)
        return [*found.values()][-1] if isinstance(found, dict) else found

    def draw(document: dict[str, Any], png: Path) -> None:
        own, reference = (document["sides"][side] for side in (name, REFERENCE))
        both = {key: {**figure, REFERENCE: reference[key]} for key, figure in own.items()}
        benchmark.draw({**document, "sides": {**document["sides"], name: both}}, png)

    return replace(
        benchmark,
        sides={**benchmark.sides, REFERENCE: measure},
        headline=replace(headline, sides=(REFERENCE, name), value=value),
        draw=draw,
    )

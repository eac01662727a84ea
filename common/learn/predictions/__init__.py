"""The predictions of each stage: questions about what its benchmark measures, and what arithmetic answers.

A file for each stage has `BENCHMARK`, the stage's own benchmark with sizes that take seconds, and `QUESTIONS`, at most
four. `python -m common.learn.predictions.stage_05 --measure SIDE --sizes quick` measures one side in its own process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from common.bench.harness import Benchmark
from common.bench.plots import short
from common.model import ModelConfig
from common.stages import stage_folder

CLOSE = 0.1  # relative difference up to which arithmetic and measurement agree
NOISE = "That is not expected: look for other programs that keep the cores busy, and measure again."


class Found(NamedTuple):
    """What was measured: figures by side, with the sizes, the model and its type."""

    sizes: Mapping[str, Any]
    sides: Mapping[str, Mapping[str, Any]]
    config: ModelConfig
    dtype: torch.dtype


@dataclass(frozen=True)
class Question:
    """A question whose answer is a number, or a curve: one number at each of some positions.

    name: its option. title: for plot and table. ask, known: the question, and what is needed to reason; sizes are
    filled in. unit: of the answer. arithmetic, measured: one value, or one for each position.
    positions: sizes -> the positions of a curve; None for a number. x: their unit.
    why_less, why_more: why a measurement lies below arithmetic, or above.
    """

    name: str
    title: str
    ask: str
    known: str
    unit: str
    arithmetic: Callable[[Found], float | list[float]]
    measured: Callable[[Found], float | list[float]]
    positions: Callable[[Mapping[str, Any]], list] | None = None
    x: str = ""
    why_less: str = NOISE
    why_more: str = NOISE

    def at(self, sizes: Mapping[str, Any]) -> list:
        """Return the positions of a curve; none for a number."""
        return self.positions(sizes) if self.positions else []

    def count(self, sizes: Mapping[str, Any]) -> int:
        """Return how many numbers answer it."""
        return len(self.at(sizes)) or 1

    def result(self, found: Found, guess: Sequence[float] | None, drift: float = 0.0) -> dict[str, Any]:
        """Return the question and its answers as JSON values; each answer is a list.

        drift: by how much the machine's speed changed while it was measured, relative to the slowest.
        """
        arithmetic, measured = (listed(value(found)) for value in (self.arithmetic, self.measured))
        return {
            "name": self.name,
            "title": self.title,
            "question": self.ask.format(**found.sizes),
            "known": self.known.format(**found.sizes),
            "unit": self.unit,
            "x": self.x,
            "at": self.at(found.sizes),
            "guess": guess,
            "arithmetic": arithmetic,
            "measured": measured,
            "why": self.why(self.at(found.sizes), arithmetic, measured, drift),
        }

    def why(self, at: Sequence, arithmetic: Sequence[float], measured: Sequence[float], drift: float) -> str:
        """Return how they compare where they differ most, and why, in a sentence or two."""
        gap = widest_gap(arithmetic, measured)
        if abs(gap) <= CLOSE:
            return f"Arithmetic and measurement agree within {CLOSE:.0%}."
        place = [*map(relative_gap, arithmetic, measured)].index(gap)
        expected, found = arithmetic[place], measured[place]
        where = f"At {at[place]} {self.x} it is" if at else "It is"
        which = (
            f"{where} {'more' if gap > 0 else 'less'} than arithmetic says, {short(found)} against {short(expected)}."
        )
        if abs(gap) <= drift:
            return f"{which} That says nothing: the machine's own speed changed by more."
        return f"{which} {self.why_more if gap > 0 else self.why_less}"


def widest_gap(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Return the largest difference between the two, relative to the larger one; above 0 where more was measured."""
    return max(map(relative_gap, expected, measured), key=abs)


def relative_gap(expected: float, measured: float) -> float:
    return (measured - expected) / (max(expected, measured) or 1)


def listed(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def over_first(values: Sequence[float]) -> list[float]:
    """Return how many times the first value each later one is."""
    return [value / values[0] for value in values[1:]]


def benchmark_of(
    file: str, sides: Sequence[str], *, seconds: float, quick: dict, tiny: dict | None = None
) -> Benchmark:
    """Return the benchmark of the stage that a file here is about, with these sides only.

    quick, tiny: changes to its sizes of these names. seconds: what all sides take on two CPU cores.
    """
    stage = stage_folder(Path(file).stem.removeprefix("stage_")).name
    whole: Benchmark = import_module(f"{stage}.benchmark").BENCHMARK
    sizes = {name: whole.sizes[name] | changes for name, changes in (("quick", quick), ("tiny", tiny or {}))}
    return replace(
        whole,
        file=file,
        sides={side: whole.sides[side] for side in sides},
        sizes={"full": whole.sizes["full"], **sizes},
        seconds={"quick": seconds},
    )

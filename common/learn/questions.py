"""The questions of `course.py predict`, and what guess, arithmetic and measurement answer.

They stand beside the lesson that asks them, in questions.toml, and are about figures in the plot of its benchmark:

name, title     the option for a guess, and what the table calls it
panel           the title of the panel that shows the figure
ask, known      the question, and what is needed to reason; {a path into the sizes} is filled in
unit            of the answer; a ratio in percent is multiplied by 100
at, x           where the answer stands in the panel: the number of a bar, or a path into the sizes. With x, the unit of
                the sizes there, the answer is a curve: a number at each of them
measured        a path into the benchmark's document, of which the medians count. "A / B" is a ratio, "A / first" those
                of a curve to its first value, where nothing is asked
arithmetic      the same, or a number
less, more      why a measurement lies below arithmetic, or above
"""

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.bench.plots import short

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLOSE = 0.1  # relative difference up to which arithmetic and measurement agree
STEADY = 0.25  # relative change of the machine's speed up to which a measurement says something
WIDTH = 100  # characters of a line of text
ANSWERS = ("guess", "arithmetic", "measured")
NOISE = "That is not expected: look for other programs that keep the cores busy, and measure again."


@dataclass(frozen=True)
class Question:
    """A question whose answer is a number, or a curve; the fields are those of questions.toml."""

    name: str
    title: str
    panel: str
    ask: str
    known: str
    unit: str
    at: list
    measured: str
    arithmetic: str | float
    x: str = ""
    less: str = NOISE
    more: str = NOISE

    @property
    def count(self) -> int:
        """Return how many numbers answer it."""
        return len(self.at)

    def operands(self, document: Mapping[str, Any], figure: str | float) -> tuple[list[float], list[float]]:
        """Return the medians above and below the line of "A / B": their ratios are in the question's unit."""
        if not isinstance(figure, str):
            return [figure] * self.count, [1] * self.count
        above, _, below = figure.partition(" / ")
        top = listed(look_up(document, above))
        top, first = (top[1:], top[0]) if below == "first" else (top, look_up(document, below) if below else 1)
        bottom = listed(first) if isinstance(first, list) else [first] * len(top)
        return top, [value / 100 for value in bottom] if below and self.unit == "percent" else bottom

    def result(self, document: Mapping[str, Any], guess: Sequence[float] | None) -> dict[str, Any]:
        """Return the question and its answers as JSON values; each answer is a list.

        "marks": where in the panel the guess stands, as `plots.mark_guesses` takes it. What a ratio is guessed to be is
        drawn over what it is a ratio to.
        """
        arithmetic, measured = (
            [one / other for one, other in zip(*self.operands(document, figure), strict=True)]
            for figure in (self.arithmetic, self.measured)
        )
        heights = zip(self.at, guess or (), self.operands(document, self.measured)[1], strict=False)
        return asdict(self) | {
            "guess": guess,
            "arithmetic": arithmetic,
            "measured": measured,
            "why": self.why(arithmetic, measured, drift(document)),
            "marks": [
                {"panel": self.panel, "name": self.name, "x": x, "y": value * worth} for x, value, worth in heights
            ],
        }

    def why(self, arithmetic: Sequence[float], measured: Sequence[float], drifted: float) -> str:
        """Return how they compare where they differ most, and why, in a sentence or two; drifted: see `drift`."""
        gap = widest_gap(arithmetic, measured)
        if abs(gap) <= CLOSE:
            return f"Arithmetic and measurement agree within {CLOSE:.0%}."
        place = [*map(relative_gap, arithmetic, measured)].index(gap)
        where = f"At {self.at[place]} {self.x} it is" if self.x else "It is"
        values = f"{short(measured[place])} against {short(arithmetic[place])}"
        which = f"{where} {'more' if gap > 0 else 'less'} than arithmetic says, {values}."
        if abs(gap) <= 1 - 1 / drifted:
            return f"{which} That says nothing: the machine's own speed changed by more."
        return f"{which} {self.more if gap > 0 else self.less}"


def read_questions(stage: Path, sizes: Mapping[str, Any]) -> list[Question]:
    """Return the questions about a stage, with these sizes of its benchmark filled in."""

    def fill(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        return re.sub(r"{([^}]*)}", lambda path: str(look_up(sizes, path[1])), " ".join(text.split()))

    questions = []
    for found in tomllib.loads((stage / "questions.toml").read_text(encoding="utf-8"))["question"]:
        at = listed(look_up(sizes, found["at"]) if isinstance(found["at"], str) else found["at"])
        after_first = found["measured"].endswith("/ first")
        questions.append(Question(**{key: fill(value) for key, value in found.items()} | {"at": at[after_first:]}))
    return questions


def look_up(found: Any, path: str) -> Any:
    """Return what stands at a path such as "sides.02_kv_cache.seconds.-1"; of a figure its median."""
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
        found = found.get("median", found) if isinstance(found, dict) else found
    return found


def listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def widest_gap(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Return the largest difference between the two, relative to the larger one; above 0 where more was measured."""
    return max(map(relative_gap, expected, measured), key=abs)


def relative_gap(expected: float, measured: float) -> float:
    return (measured - expected) / (max(expected, measured) or 1)


def drift(document: Mapping[str, Any]) -> float:
    """Return slowest over fastest of the reference product while this was measured; 1 on a steady machine."""
    times = [milliseconds for sides in document["reference_ms"] for both in sides.values() for milliseconds in both]
    return max(times) / min(times)


# ---- What is printed ----


def table(document: Mapping[str, Any]) -> str:
    """Return a line for each number; below, how steady the machine was, and why arithmetic and measurement differ."""
    rows: list[tuple[str, Sequence[str]]] = [("", ANSWERS)]
    for question in document["questions"]:
        title, answers = f"{question['title']} ({question['unit']})", [question[name] for name in ANSWERS]
        cells = [[short(each[i]) if each else "-" for each in answers] for i in range(len(question["at"]))]
        if question["x"]:
            labels = [f"   {at} {question['x']}" for at in question["at"]]
            rows += [(title, ()), *zip(labels, cells, strict=True)]
        else:
            rows.append((title, cells[0]))
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:{width}}" + "".join(f"{cell:>13}" for cell in cells) for label, cells in rows]
    reasons = [textwrap.fill(f"{one['title']}: {one['why']}", WIDTH) for one in document["questions"]]
    said = [steadiness(drift(document)), how_close(document["questions"]), *reasons]
    return "\n".join([*(line.rstrip() for line in lines), "", *said])


def steadiness(drifted: float) -> str:
    """Return by how much the speed of the machine changed, and what to do if that was too much."""
    advice = " Close other programs, and measure again." if drifted > 1 + STEADY else ""
    return f"The machine's speed changed by {drifted - 1:.0%} meanwhile.{advice}"


def how_close(questions: Sequence[Mapping[str, Any]]) -> str:
    """Return how many measurements arithmetic foretells, and how many the guess."""

    def count(name: str) -> int:
        return sum(abs(widest_gap(one[name], one["measured"])) <= CLOSE for one in questions if one[name])

    found = f"Arithmetic is right within {CLOSE:.0%} in {count('arithmetic')} of {len(questions)}"
    return found + f", the guess in {count('guess')}" * any(one["guess"] for one in questions) + "."

"""The questions of `course.py predict`, and what guess, arithmetic and measurement answer.

They stand beside the lesson that asks them, in questions.toml, and are about figures in the plot of its benchmark:

name, title     the option for a guess, and what the table calls it
panel           the title of the panel that shows the figure
ask, known      the question, and what is needed to reason; {a path into the sizes} is filled in
bundled, smollm2    what else is known, of that model
only            the one model that is asked about, where it is not each
unit            of the answer; a ratio in percent is multiplied by 100
at, x           where the answer stands in the panel: the number of a bar, or a path into the sizes. With x, the unit of
                the sizes there, the answer is a curve: a number at each of them
measured        a path into the benchmark's document, of which the medians count. "A / B" is a ratio, "A / first" those
                of a curve to its first value, where nothing is asked
arithmetic      the same, or a number
counted         true if no clock is read for it: then the machine's speed does not matter
less, more      why a measurement lies below arithmetic, or above
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.bench import summary
from common.bench.description import listed, look_up, operands
from common.bench.plots import short
from common.toml import tomllib

CLOSE = 0.1  # relative difference up to which arithmetic and measurement agree
STEADY = 0.25  # relative change of the machine's speed up to which a measurement says something
WIDTH = 100  # characters of a line of text
ANSWERS = ("guess", "arithmetic", "measured")
UNSTEADY = "The machine was not steady, so this figure says nothing."
NOISE = "That is not expected: look for other programs that keep the cores busy, and measure again."

Question = dict[str, Any]  # as in questions.toml; once it is read, "at" is a list, of one place or of all of a curve


def read_questions(stage: Path, sizes: Mapping[str, Any], model: str | None = None) -> list[Question]:
    """Return the questions about a stage and a model, with these sizes of its benchmark filled in.

    model: None for the bundled one.
    """
    model = model or "bundled"
    text = (stage / "questions.toml").read_text(encoding="utf-8")
    filled = re.sub(r"{(.+?)}", lambda path: str(look_up(sizes, path[1])), text)
    questions = []
    for found in tomllib.loads(filled)["question"]:
        if found.get("only", model) != model:
            continue
        found["known"] = f"{found.get('known', '')} {found.get(model, '')}"
        texts = {key: " ".join(value.split()) for key, value in found.items() if isinstance(value, str)}
        at = listed(look_up(sizes, found["at"]) if "at" in texts else found["at"])
        at = at[1:] if texts["measured"].endswith(" / first") else at
        questions.append({"x": "", "counted": False, "less": NOISE, "more": NOISE, **found, **texts, "at": at})
    return questions


def operands_of(question: Question, document: Mapping[str, Any], answer: str) -> tuple[list[float], list[float]]:
    """Return the medians above and below the line of "A / B": their ratios are in the question's unit.

    answer: "arithmetic" or "measured".
    """
    figure = question[answer]
    if not isinstance(figure, str):
        return [figure] * len(question["at"]), [1] * len(question["at"])
    above, _, below = figure.partition(" / ")
    if below == "first":
        first, *others = look_up(document, above)
        return others, [first] * len(others)
    top, bottom = operands(document, figure)
    return top, [value / 100 if below and question["unit"] == "percent" else value for value in bottom]


def result(question: Question, document: Mapping[str, Any], guess: Sequence[float] | None) -> dict[str, Any]:
    """Return the question and its answers as JSON values; each answer is a list.

    "marks": where in the panel the guess stands, as `plots.mark_guesses` takes it. What a ratio is guessed to be is
    drawn over what it is a ratio to.
    """
    each = {name: operands_of(question, document, name) for name in ANSWERS[1:]}
    answers = {name: [one / other for one, other in zip(*both, strict=True)] for name, both in each.items()}
    heights = zip(question["at"], guess or (), each["measured"][1], strict=False)
    marks = [{"panel": question["panel"], "name": question["name"], "x": x, "y": y * unit} for x, y, unit in heights]
    reason = why(question, **answers, drifted=1 if question["counted"] else drift(document))
    return question | answers | {"guess": guess, "why": reason, "marks": marks}


def why(question: Question, arithmetic: Sequence[float], measured: Sequence[float], drifted: float) -> str:
    """Return how they compare where they differ most, and why, in a sentence or two; drifted: see `drift`."""
    if drifted - 1 > STEADY:
        return UNSTEADY
    gap = widest_gap(arithmetic, measured)
    if abs(gap) <= CLOSE:
        return f"Arithmetic and measurement agree within {CLOSE:.0%}."
    place = [*map(relative_gap, arithmetic, measured)].index(gap)
    where = f"At {question['at'][place]} {question['x']} it is" if question["x"] else "It is"
    values = f"{short(measured[place])} against {short(arithmetic[place])}"
    which = f"{where} {'more' if gap > 0 else 'less'} than arithmetic says, {values}."
    if abs(gap) <= 1 - 1 / drifted:
        return f"{which} That says nothing: the machine's own speed changed by more."
    return f"{which} {question['more' if gap > 0 else 'less']}"


def widest_gap(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Return the largest difference between the two, relative to the larger one; above 0 where more was measured."""
    return max(map(relative_gap, expected, measured), key=abs)


def relative_gap(expected: float, measured: float) -> float:
    return (measured - expected) / (max(expected, measured) or 1)


def drift(document: Mapping[str, Any]) -> float:
    """Return slowest over fastest of the reference product while this was measured; 1 on a steady machine."""
    return summary.drift(both for sides in document["reference_ms"] for both in sides.values())


def table(document: Mapping[str, Any]) -> str:
    """Return a line for each number; below, how steady the machine was, and why arithmetic and measurement differ."""
    questions: Sequence[Question] = document["questions"]
    rows: list[tuple[str, Sequence[str]]] = [("", ANSWERS)]
    for question in questions:
        title, answers = f"{question['title']} ({question['unit']})", [question[name] for name in ANSWERS]
        cells = [[short(each[i]) if each else "-" for each in answers] for i in range(len(question["at"]))]
        if question["x"]:
            labels = [f"   {at} {question['x']}" for at in question["at"]]
            rows += [(title, ()), *zip(labels, cells, strict=True)]
        else:
            rows.append((title, cells[0]))
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:{width}}" + "".join(f"{cell:>13}" for cell in cells) for label, cells in rows]
    changed = drift(document) - 1
    said = how_close(questions) if changed <= STEADY else "Close other programs, and measure again."
    reasons = [textwrap.fill(f"{one['title']}: {one['why']}", WIDTH) for one in questions]
    below = [f"The machine's speed changed by {changed:.0%} meanwhile.", said, *reasons]
    return "\n".join([*(line.rstrip() for line in lines), "", *below])


def how_close(questions: Sequence[Question]) -> str:
    """Return how many measurements arithmetic foretells, and how many the guess."""

    def count(name: str) -> int:
        return sum(abs(widest_gap(one[name], one["measured"])) <= CLOSE for one in questions if one[name])

    found = f"Arithmetic is right within {CLOSE:.0%} in {count('arithmetic')} of {len(questions)}"
    return found + f", the guess in {count('guess')}" * any(one["guess"] for one in questions) + "."

"""Guess, arithmetic and measurement of the questions about a stage, in a table and in a plot."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.bench import plots

from .predictions import CLOSE, widest_gap

WIDTH = 100  # characters of a line of text
ANSWERS = ("guess", "arithmetic", "measured")
STEADY = 0.25  # relative change of the machine's speed up to which a measurement says something
GUESS = "#c2459a"  # pink: no stage has it


def table(document: Mapping[str, Any]) -> str:
    """Return a line for each number; below, how steady the machine was, and why arithmetic and measurement differ."""
    rows: list[tuple[str, Sequence[str]]] = [("", ANSWERS)]
    for question in document["questions"]:
        title, columns = f"{question['title']} ({question['unit']})", columns_of(question)
        if question["at"]:
            rows.append((title, ()))
            rows += [(f"   {at} {question['x']}", cells) for at, cells in zip(question["at"], columns, strict=True)]
        else:
            rows.append((title, columns[0]))
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:{width}}" + "".join(f"{cell:>13}" for cell in cells) for label, cells in rows]
    reasons = [textwrap.fill(f"{one['title']}: {one['why']}", WIDTH) for one in document["questions"]]
    return "\n".join([*(line.rstrip() for line in lines), "", steadiness(document["reference_ms"]), *reasons])


def steadiness(times: Sequence[float]) -> str:
    """Return by how much the time of the reference product changed, and what to do if it was too much."""
    drift = max(times) / min(times) - 1
    advice = " Close other programs, and measure again." if drift > STEADY else ""
    return f"The machine's speed changed by {drift:.0%} meanwhile.{advice}"


def columns_of(question: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of each row; "-" where there is no guess."""
    count = len(question["measured"])
    answers = [question[name] or [None] * count for name in ANSWERS]
    return [["-" if value is None else plots.short(value) for value in row] for row in zip(*answers, strict=True)]


def draw(document: Mapping[str, Any], png: Path) -> None:
    """Draw a panel for each question: bars for a number, lines for a curve."""
    questions, stage = document["questions"], document["benchmark"].split()[-1]
    columns = len(questions) if len(questions) < 4 else 2
    rows, width = -(-len(questions) // columns), 44 if columns < 3 else 22
    size = {"rows": rows, "columns": columns, "height": 1.1 + 3.8 * rows}
    message, remark = f"Stage {stage[:2]}: {how_close(questions)}", steadiness(document["reference_ms"])
    with plots.page(png, document, message, remark=remark, **size) as panels:
        for panel, question in zip(panels, questions, strict=True):
            show = draw_curve if question["at"] else draw_number
            show(panel, question, plots.color(stage))
            plots.axes(panel, question["x"], question["unit"], textwrap.fill(question["title"], width))


def how_close(questions: Sequence[Mapping[str, Any]]) -> str:
    """Return how many measurements arithmetic foretells, and how many the guess."""

    def count(name: str) -> int:
        return sum(abs(widest_gap(one[name], one["measured"])) <= CLOSE for one in questions if one[name])

    found = f"arithmetic is right within {CLOSE:.0%} in {count('arithmetic')} of {len(questions)}"
    return found + f", the guess in {count('guess')}" * any(one["guess"] for one in questions)


def draw_number(panel, question: Mapping[str, Any], tint: str) -> None:
    tints = dict(zip(ANSWERS, (GUESS, plots.PREDICTION, tint), strict=True))
    for place, name in enumerate(name for name in ANSWERS if question[name]):
        [value] = question[name]
        face = tint if name == "measured" else "white"
        style = {"edgecolor": tints[name], "linewidth": 1.6, "linestyle": "--" if name == "arithmetic" else "-"}
        panel.bar(name, value, width=0.6, facecolor=face, **style)
        plots.note(panel, place, value, plots.short(value), above=4, align="center")
    panel.tick_params(axis="x", labelsize=10)
    panel.margins(y=0.12)
    if all(question[name] == [0] for name in ANSWERS if question[name]):
        panel.set_ylim(top=1)


def draw_curve(panel, question: Mapping[str, Any], tint: str) -> None:
    lines = {name: question[name] for name in ANSWERS if question[name]}
    styles = {
        "guess": {"color": GUESS, "marker": "D", "markerfacecolor": "white", "linewidth": 1.6},
        "arithmetic": {"color": plots.PREDICTION, "linestyle": (0, (4, 3)), "linewidth": 1.6, "zorder": 4},
        "measured": {"color": tint, "marker": "o"},
    }
    for name, values in lines.items():
        panel.plot(question["at"], values, label=name, **styles[name])
    if question["at"][-1] < 4 * question["at"][0]:
        panel.set_xticks(question["at"])
    else:
        plots.doubling(panel, question["at"])
    shown = [value for values in lines.values() for value in values]
    if question["unit"] == "times" and min(shown) < 1 < max(shown):
        panel.axhline(1, color=plots.REFERENCE, linewidth=1, label="_")

"""What stands beside a benchmark.py as data: benchmark.toml, with its sizes and what texts say of its results.

[seconds]       what all runs of a set of sizes take together: on two CPU cores, "gpu" on an H200
[sizes.full]    lengths and counts to measure; each other set, such as [sizes.quick], changes some of them
[headline]      what sums the benchmark up: harness.py says what each part is
[tables]        rows of the lesson's tables by name, the header first. A cell may have values in it, "{A}", "{A / B}" or
                "{A:.1f}": medians, in three digits unless a format is given. A cell with "*" in a path stands for one
                at each place of that list; a row with "#" for one at each place in `places`.
[[claims]]      `says`: what the lesson or a title says in words. In every repeat each of `figures` lies between `least`
                and `most`, of a curve each value. A figure is a path into the document, such as
                "sides.02_kv_cache.seconds.3", or a ratio of two, "A / B"; B may be a number. `of`: the committed
                results of which it is said, by name; without it that of the bundled model on the machine that the
                lessons measure on.
"""

import re
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from common.stages import ROOT
from common.toml import read_toml

from .plots import short

PARTS = ("seconds", "sizes", "headline", "tables")


def described(file: str) -> dict[str, Any]:
    """Return what `Benchmark` takes for the benchmark in this file, from the TOML file of the same name.

    A learner's copy of a stage has only Python files: there it is the stage's.
    """
    beside = Path(file).with_suffix(".toml")
    path = beside if beside.exists() else ROOT / beside.parent.name / beside.name
    found = read_toml(path)
    return {"file": file, **{part: found[part] for part in PARTS if part in found}}


def holds(claim: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Return whether a document bears a claim out."""
    least, most = claim.get("least", -inf), claim.get("most", inf)
    for repeat in range(len(document["order"])):
        for figure in claim["figures"]:
            pairs = zip(*operands(document, figure, repeat), strict=True)
            if not all(least <= above / below <= most for above, below in pairs):
                return False
    return True


def operands(document: Mapping[str, Any], figure: str, repeat: int | None = None) -> tuple[list, list]:
    """Return the values of A and of B in "A / B", all values of a curve; without B, a 1 for each value of A."""
    above, _, below = figure.partition(" / ")
    top = listed(look_up(document, above, repeat))
    if below[:1].isdigit():
        return top, [float(below)] * len(top)
    return top, listed(look_up(document, below, repeat)) if below else [1] * len(top)


def look_up(found: Any, path: str, repeat: int | None = None) -> Any:
    """Return what stands at a path: of a figure the value of a repeat, or the median unless the path names another."""
    for part in [*path.split("."), ""]:
        if isinstance(found, dict) and "values" in found and part not in found:
            found = found["median"] if repeat is None else found["values"][repeat]
        if part:
            found = found[int(part)] if isinstance(found, list) else found[part]
    return found


def filled(text: str, document: Mapping[str, Any]) -> str:
    """Return the text with the values of a document, or of another mapping, that it names."""

    def value(found: re.Match) -> str:
        figure, _, form = found[1].partition(":")
        [above, *_], [below, *_] = operands(document, figure)
        number = above / below if "/" in figure else above
        if form:
            return f"{number:{form}}"
        return short(number) if isinstance(number, float) else str(number)

    return re.sub(r"{(.+?)}", value, text)


def table_of(rows: Sequence[Sequence[str]], document: Mapping[str, Any], places: Sequence[int] = ()) -> list[list[str]]:
    """Return the cells of a table in [tables]."""
    table = []
    for row in rows:
        for place in places if "#" in "".join(row) else [0]:
            cells = [cell for text in row for cell in spread_out(text.replace("#", str(place)), document)]
            table.append([filled(cell, document) for cell in cells])
    return table


def spread_out(cell: str, document: Mapping[str, Any]) -> list[str]:
    """Return a cell for each place of the list that it names with "*"."""
    found = re.search(r"{([^}]*)\.\*", cell)
    return [cell.replace("*", str(at)) for at in range(len(look_up(document, found[1])))] if found else [cell]


def listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]

"""Pictures in text of what went wrong: rows under each other, page maps, timelines, trees."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.trace import StepRecord

MAX_WIDTH = 112  # characters of a row; a longer row is shown only around its mark


def first_difference(mine: Sequence, wanted: Sequence) -> int | None:
    """Return the first place at which two rows differ, None if they are equal."""
    for place in range(max(len(mine), len(wanted))):
        if mine[place : place + 1] != wanted[place : place + 1]:
            return place
    return None


def rows(lines: Mapping[str, Iterable[Any]], mark: int | None = None, box: int = 0) -> str:
    """Return rows of cells, each with its name before it and all columns equally wide.

    mark: the column to point at. box: how many cells share a box, such as the tokens of a page; 0: no boxes.
    """
    cells = {name: [str(cell) for cell in values] for name, values in lines.items()}
    columns = max(map(len, cells.values()))
    width = max((len(cell) for line in cells.values() for cell in line), default=1)
    left = max(map(len, cells)) + 1
    most = max(1, (MAX_WIDTH - left) // (width + 1))
    first = max(0, min((mark or 0) - most // 2, columns - most))
    first -= first % box if box else 0
    shown = range(first, min(columns, first + most))

    def line(name: str, values: list[str]) -> str:
        text = name.ljust(left)
        for place in shown:
            text += " │" if box and place % box == 0 else ""
            text += f" {values[place] if place < len(values) else '':>{width}}"
        return (text + (" │" if box else "")).rstrip()

    result = [line(name, values) for name, values in cells.items()]
    if mark is not None:
        result.append(line("", ["^" * width if place == mark else "" for place in range(columns)]).replace("│", " "))
    return "\n".join(one.rstrip() for one in result)


def page_map(num_pages: int, owners: Mapping[str, Iterable[int]], free: Iterable[int]) -> str:
    """Return every page with its owners: a dot if it is free, "?" if it is lost, several letters if it has several."""
    free = list(free)
    held = [[name for name, pages in owners.items() for page in pages if page == place] for place in range(num_pages)]
    cells = ["".join([*names, *["."] * free.count(place)]) or "?" for place, names in enumerate(held)]
    wrong = next((place for place, cell in enumerate(cells) if len(cell) > 1 or cell == "?"), None)
    return rows({"page": range(num_pages), "owner": cells}, wrong) + "\n(. is free, ? has no owner and is not free)"


def timeline(steps: Iterable[StepRecord], names: Mapping[str, str], mark: int | None = None) -> str:
    """Return a row for each request, by id and letter, and a column for each step: what ran of it."""
    steps = list(steps)
    ran = [{work.request_id: f"{work.phase[0]}{work.tokens}" for work in step.works} for step in steps]
    lines: dict[str, Iterable[Any]] = {"step": range(1, len(steps) + 1)}
    lines |= {letter: [step.get(request_id, "·") for step in ran] for request_id, letter in names.items()}
    return rows(lines, mark) + "\n(p5: 5 tokens of a prefill, d1: one token of a decode, ·: not in this step)"


def tree(nodes: Mapping[Any, Any], depth: int = 0) -> str:
    """Return a prefix tree, from the children of its root on: tokens, page, users."""
    lines = []
    for node in nodes.values():
        lines.append(f"{'   ' * depth}{list(node.tokens)} page {node.page}, users: {node.references}")
        lines += [tree(node.children, depth + 1)] if node.children else []
    return "\n".join(lines) or "(empty)"


def bars(values: Mapping[str, float], full: float) -> str:
    """Return a bar for each value, 40 characters long for `full`."""
    width = max(map(len, values))
    return "\n".join(
        f"{name:{width}}  {'█' * round(40 * min(1, value / full))} {value:.3g}" for name, value in values.items()
    )

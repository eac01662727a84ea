"""The page of a lesson's diff: each piece of it side by side, beside the sentences of the lesson that explain it.

A piece is a definition, or what stands between two. Its sentences are those that name it, else those that name what it
uses, else the sentences about its file.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from common.learn.stage_diff import Change, compare, sittings

DEFINITION = re.compile(r"^\s*(?:async def|def|class) (\w+)")
SENTENCE = re.compile(r"(?<=[.?!]) +(?=[A-Z`*\[])")
UNSAID = "The walk does not mention this; its comments give the reasons."
Row = tuple[str | None, str | None]  # a line before and after; None where there is none


class Piece(NamedTuple):
    """Rows that stand together. names: the definitions that they are in or have."""

    names: set[str]
    rows: list[Row]

    @property
    def words(self) -> set[str]:
        changed = [line for old, new in self.rows if old != new for line in (old, new) if line]
        return {*re.findall(r"\w+", "\n".join(changed))}


class Sentence(NamedTuple):
    """A sentence of a lesson, the files that it is about, and the names in it."""

    text: str
    files: set[str]
    names: set[str]


def diff_page(before: Path, after: Path) -> str:
    """Return the Markdown of a page with the diff between two stages."""
    lesson = (after / "README.md").read_text(encoding="utf-8")
    changes = {change.name: change for change in compare(before, after)}
    parts = [
        f"# {after.name[:2]}, side by side",
        f"What [lesson {after.name[:2]}](README.md) changes in [stage {before.name[:2]}](../{before.name}/README.md): "
        f"the stage before on the left, this one on the right, and what the lesson says of it beside them. "
        f"`python3 course.py diff {after.name[:2]}` prints the same at a terminal.",
    ]
    for title, names in sittings(after, [*changes]):
        parts += [f"## {title}"] if title else []
        said = sentences(section(lesson, title))
        for change in (changes[name] for name in names):
            kind = {"new": "new", "gone": "gone"}.get(change.kind, f"+{change.added} -{change.removed}")
            link = f"../{before.name}/{change.name}" if change.kind == "gone" else change.name
            parts.append(f"{'###' if title else '##'} {change.name}: {kind}\n\n[The whole file]({link})")
            parts += [block(texts, rows) for texts, rows in explained(change, said)]
    return "\n\n".join(parts) + "\n"


def section(lesson: str, title: str) -> str:
    """Return the text of a sitting, or of the walk where a lesson is one sitting, without its blocks of code."""
    parts = re.split(r"^## ", re.sub(r"^```.*?^```$", "", lesson, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    return next((part.partition("\n")[2] for part in parts if part.startswith(title or "A walk through")), "")


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of a text. In a bullet that begins with a file, all are about that file."""
    found = []
    for part in re.split(r"\n\n+|\n(?=- |\d+\. |#)", text):
        bullet = re.match(r"- \*\*\[[^\]]+\]\((\w+\.py)\)", part)
        for sentence in SENTENCE.split(" ".join(re.sub(r"^(- |\d+\. |#.*)", "", part).split())):
            files = {bullet[1]} if bullet else {*re.findall(r"\]\((\w+\.py)\)", sentence)}
            codes = re.findall(r"`([^`]+)`", sentence)
            if sentence and not sentence.startswith("`python3 course.py"):
                found.append(Sentence(sentence, files, {name for code in codes for name in re.findall(r"\w+", code)}))
    return found


def explained(change: Change, said: list[Sentence]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield the rows of a change, in order, with the sentences that explain them; every sentence about it once."""
    own, found = [one for one in said if change.name in one.files], []
    others = [one for one in said if not one.files]
    for piece in pieces(change.lines):
        named = [one for one in own + others if one.names & piece.names]
        used = [one for one in own if one.names & piece.words]
        found.append((tuple(one.text for one in named or used or own[:1]) or (UNSAID,), piece.rows))
    if found:
        left = [one.text for one in own if not any(one.text in texts for texts, _ in found)]
        found[0] = ((*left, *found[0][0]), found[0][1])
    for texts, group in groupby(found, key=lambda one: one[0]):
        together: list[Row] = []
        for _, rows in group:
            together += [*[(None, "")] * bool(together), *rows]
        yield texts, together


def pieces(lines: list[str]) -> Iterator[Piece]:
    """Yield the pieces of a change, each with at least one line that differs."""
    around = ""
    for is_head, group in groupby(lines, key=lambda line: line.startswith("@@")):
        if is_head:
            around = [*group][-1]
            continue
        names, rows, line = {*re.findall(r"(?:def|class) (\w+)", around)}, [], ""
        for old, new in pair(group):
            above, line = line, new if new is not None else old
            begins = DEFINITION.match(line) or line.lstrip().startswith("@")
            if begins and not above.lstrip().startswith("@") and differs(rows):
                yield Piece(names, rows)
                names, rows = set(), []
            names |= {*DEFINITION.findall(line)}
            rows.append((old, new))
        if differs(rows):
            yield Piece(names, rows)


def differs(rows: list[Row]) -> bool:
    return any(old != new for old, new in rows)


def pair(lines: Iterator[str]) -> Iterator[Row]:
    """Yield lines of a diff, those that were replaced beside their replacement."""
    for same, group in groupby(lines, key=lambda line: line[0] == " "):
        block = [*group]
        if same:
            yield from ((line[1:], line[1:]) for line in block)
            continue
        old, new = ([line[1:] for line in block if line[0] == sign] for sign in "-+")
        for at in range(max(len(old), len(new))):
            yield old[at] if at < len(old) else None, new[at] if at < len(new) else None


def block(texts: tuple[str, ...], rows: list[Row]) -> str:
    """Return the Markdown of sentences beside rows, as raw HTML without a blank line."""
    old, new = ([*coloured([row[side] for row in rows])] for side in (0, 1))
    two, lines = any(was is not None for was, _ in rows), []
    for (was, now), left, right in zip(rows, old, new, strict=True):
        cells = [("gone" if was is not None and was != now else "", left)] * two
        cells += [("new" if now is not None and was != now else "", right)]
        lines.append("<tr>" + "".join(f'<td class="{kind}">{code}</td>' for kind, code in cells) + "</tr>")
    table = f'<table class="sides highlight">{"".join(lines)}</table>'
    return f":::{{container}} piece\n{' '.join(texts)}\n\n```{{raw}} html\n{table}\n```\n:::"


def coloured(lines: list[str | None]) -> Iterator[str]:
    """Yield the HTML of each line, coloured as Python; "" for None."""
    source = "\n".join(line or "" for line in lines)
    shown = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).split("\n")
    yield from shown[: len(lines)]

"""The page of a lesson's diff: each piece of it beside the sentences of the lesson that explain it.

A piece is a definition, or what stands between two. Its sentences are those that name it, else those that name what it
uses, else the first about its file. assets/book.js shows a piece in two columns, before and after.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from common.learn.stage_diff import Change, by_sitting

INTRODUCTION = """# {number}, side by side

What [lesson {number}](README.md) changes in [stage {before}](../{folder}/README.md), and beside it what the lesson says
of it. At a terminal `python3 course.py diff {number}` prints the same. [Contents and search](../README.md)."""
UNSAID = "The walk does not mention this; its comments give the reasons."


class Sentence(NamedTuple):
    """A sentence of a lesson, the names in it, and the file that it or its bullet is about; "" for none."""

    text: str
    names: set[str]
    file: str


def diff_page(before: Path, after: Path) -> str:
    """Return the Markdown of a page with the diff between two stages."""
    lesson = (after / "README.md").read_text(encoding="utf-8")
    parts = [INTRODUCTION.format(number=after.name[:2], before=before.name[:2], folder=before.name)]
    for title, changes in by_sitting(before, after):
        parts += [f"## {title}"] if title else []
        said = sentences(section(lesson, title))
        for change in changes:
            size = change.kind if change.kind != "changed" else f"+{change.added} -{change.removed}"
            link = f"../{before.name}/{change.name}" if change.kind == "gone" else change.name
            parts.append(f"{'###' if title else '##'} {change.name}: {size}\n\n[The whole file]({link})")
            for texts, lines in explained(change, said):
                is_new = change.kind == "new"
                code = "\n".join(line[is_new:] for line in lines)
                fence = f"```{'python' if is_new else 'diff'}\n{code}\n```"
                parts.append(f":::{{container}} piece\n{' '.join(texts)}\n\n{fence}\n:::")
    return "\n\n".join(parts) + "\n"


def section(lesson: str, title: str) -> str:
    """Return the text of a sitting, or of the walk where a lesson is one sitting, without its blocks of code."""
    parts = re.split(r"^## ", re.sub(r"^```.*?^```$", "", lesson, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    return next((part.partition("\n")[2] for part in parts if part.startswith(title or "A walk through")), "")


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of a text. In a paragraph, one without a file or a name goes with the one before it."""
    found = []
    for part in re.split(r"\n\n+|\n(?=- |\d+\. |#)", text):
        bullet, words, own = re.match(r"- \*\*\[[^\]]+\]\((\w+\.py)\)", part), re.sub(r"^(- |\d+\. |#.*)", "", part), []
        for said in re.split(r"(?<=[.?!]) +(?=[A-Z`*\[])", " ".join(words.split())):
            names = {*re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", said)))}
            link = re.search(r"\]\((\w+\.py)\)", said)
            if own and not names and not link:
                own[-1] = own[-1]._replace(text=f"{own[-1].text} {said}")
            elif said and not said.startswith("`python3 course.py"):
                link = bullet or link
                own.append(Sentence(said, names, link[1] if link else ""))
        found += own
    return found


def explained(change: Change, said: list[Sentence]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the lines of a change, in order, with the sentences that explain them; none about its file is left out."""
    parts, own = [*pieces(change.lines)], [one for one in said if one.file == change.name]
    candidates, found = own + [one for one in said if not one.file], []
    for names, lines in parts:
        words = {*re.findall(r"\w+", " ".join(line for line in lines if line[0] in "+-"))}
        named = [one for one in candidates if one.names & names]
        found.append(named or [one for one in own if one.names & words] or own[:1])
    left = [one for one in own if not any(one in texts for texts in found)]
    for texts, group in groupby(zip(found, parts, strict=True), key=lambda both: both[0]):
        shown, left = [one.text for one in candidates if one in left + texts], []
        yield shown or [UNSAID], [line for _, (_, lines) in group for line in lines]


def pieces(lines: list[str]) -> Iterator[tuple[set[str], list[str]]]:
    """Yield the pieces of a change: the definitions that each is in or begins, and its lines; one at least differs."""
    piece: list[str] = []
    for line in [*lines, ""]:
        is_decorated = piece and re.match(r".\s*@", piece[-1])
        begins = re.match(r"@|[+ ]\s*(@|(async def|def|class) )", line) and not is_decorated
        if piece and (not line or begins and any(one[0] in "+-" for one in piece)):
            yield {*re.findall(r"(?:def|class) (\w+)", "\n".join(piece))}, piece
            piece = []
        piece.append(line)

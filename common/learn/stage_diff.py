"""What a stage changed in the one before it, as a lesson: `python3 course.py diff N` prints it.

Files come in the order in which the lesson links them, and by its sittings: sections such as "## 07a: a fixed number".
Left out is what is no news: "NEW in" markers of earlier stages, and what a module's docstring repeats about the whole
stage, as the lesson does. Lines are counted without blank lines and docstrings.
"""

import ast
import difflib
import re
from pathlib import Path
from typing import NamedTuple

from .code import documented, read_files

SHOWN_LAST = ["engine.py", "server.py", "main.py"]  # unless the lesson links them: they build on the files that are new
ASIDE = {"demo.py", "benchmark.py"}  # they show and measure the lesson, and are not part of it
MARKER = re.compile(r"  # NEW in \d\d$|NEW in \d\d: ")


class Change(NamedTuple):
    """One file. kind: "new", "gone" or "changed"; lines: as `diff_stages` shows them; counted are lines of code."""

    name: str
    kind: str
    lines: list[str]
    added: int
    removed: int


def diff_stages(before: Path, after: Path) -> list[str]:
    """Return what changed from one stage to the next, line by line.

    Lines of code begin with "+", "-" or " ", the places they stand in with "@@", headings with none of these.
    """
    lines, summary = [f"{before.name} -> {after.name}"], []
    for title, changes in by_sitting(before, after):
        lines += ["", f"==== {title} ===="] if title else []
        for change in changes:
            if change.kind == "new":
                lines += ["", f"new file: {change.name}, {change.added} lines", *change.lines]
            elif change.kind == "changed":
                lines += ["", f"{change.name}: +{change.added} -{change.removed}", *change.lines]
        summary += ["", f"{title or after.name}:", *summarize(changes)]
    left_out = f"Left out: {' and '.join(sorted(ASIDE))}, which show and measure the lesson."
    return [*lines, *summary, "", "Counted without blank lines and docstrings.", left_out]


def summarize(changes: list[Change]) -> list[str]:
    """Return one line for the changed files of a sitting, one for the new ones and one for those that are gone."""
    lines = []
    for kind in ("changed", "new", "gone"):
        mine = [change for change in changes if change.kind == kind]
        added, removed = sum(change.added for change in mine), sum(change.removed for change in mine)
        named = "; ".join(f"{change.name}, {change.added or change.removed}" for change in mine)
        said = f"+{added} -{removed}" if kind == "changed" else named
        lines += [f"  {kind}: {added + removed} lines ({said})"] if said else []
    return lines


def by_sitting(before: Path, after: Path) -> list[tuple[str, list[Change]]]:
    """Return the sittings of a lesson, each with its title and the files that differ, demo and benchmark left out."""
    old, new = read_sources(before), read_sources(after)
    changes = {name: compare_file(name, old.get(name), new.get(name), after.name[:2]) for name in {**old, **new}}
    names = [name for name, change in changes.items() if change.lines or change.kind != "changed"]
    return [(title, [changes[name] for name in mine]) for title, mine in sittings(after, names)]


def read_sources(stage: Path) -> dict[str, str]:
    """Return the text of each Python file of a stage, by name."""
    return {name: text for name, text in read_files(stage).items() if name not in ASIDE}


def compare_file(name: str, was: str | None, now: str | None, number: str) -> Change:
    """Return what changed in a file; was, now: None where there is none. number: of the stage, such as "07"."""
    if was is None:
        return Change(name, "new", ["+" + line for line in now.splitlines()], len(code_lines(now)), 0)
    if now is None:
        return Change(name, "gone", [], 0, len(code_lines(was)))
    new, new_code = news(now, number)
    old, old_code = news(was, number)
    new = [line if f"NEW in {number}" in line else plain(line, set()) for line in new]
    old = [plain(line, {*new}) for line in old]
    matcher, added, removed = difflib.SequenceMatcher(None, old, new), 0, 0
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes(3):
        hunk: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                hunk += [" " + line for line in new[j1:j2]]
            else:
                hunk += ["-" + line for line in old[i1:i2]] + ["+" + line for line in new[j1:j2]]
                added, removed = added + sum(new_code[j1:j2]), removed + sum(old_code[i1:i2])
        begin = next(i for i, line in enumerate(hunk) if line != " ")
        lines += [f"@@ {place(new, group[0][3])}".rstrip(), *hunk[begin:]]
    return Change(name, "changed", lines, added, removed)


def news(source: str, number: str) -> tuple[list[str], list[bool]]:
    """Return a file's lines, and for each if it is code, without those of its docstring that are not marked as new."""
    lines, code = source.splitlines(), code_lines(source)
    tree = ast.parse(source)
    end = tree.body[0].end_lineno if ast.get_docstring(tree) is not None else 0
    paragraphs = "\n".join(lines[:end]).removesuffix('"""').rstrip().split("\n\n")
    marked = [line for part in paragraphs if f"NEW in {number}" in part for line in part.splitlines()]
    return marked + lines[end:], [False] * len(marked) + [place in code for place in range(end + 1, len(lines) + 1)]


def plain(line: str, new_lines: set[str]) -> str:
    """Return an old line without its "NEW in" marker, in the spelling of the new file if it has the same."""
    bare = MARKER.sub("", line)
    capital = re.sub(r"NEW in \d\d: (.)", lambda found: found[1].upper(), line)
    return bare if bare in new_lines or re.search(r"\S  # NEW", line) else capital


def place(lines: list[str], start: int) -> str:
    """Return the definition that a line stands in, or "" outside of any."""
    indent = next((len(line) - len(line.lstrip()) for line in lines[start:] if line.strip()), 0)
    for line in reversed(lines[:start]):
        if re.match(r"\s*(async def|def|class) ", line) and len(line) - len(line.lstrip()) < indent:
            return line.strip()
    return ""


def code_lines(source: str) -> set[int]:
    """Return the numbers of a file's lines that are neither blank nor part of a docstring; comments count."""
    found = {number for number, line in enumerate(source.splitlines(), 1) if line.strip()}
    for node in documented(ast.parse(source)):
        found -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    return found


def sittings(stage: Path, names: list[str]) -> list[tuple[str, list[str]]]:
    """Return the lesson's sittings, in order: each one's title, and which of these files it is about.

    A lesson without such sections is one sitting, without a title. Files that no sitting links belong to the first.
    """
    readme = stage / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    parts = re.split(r"^## (\d\d[a-z]: .+)$", text, flags=re.MULTILINE)
    titled = [*zip(parts[1::2], (re.split(r"^## ", part, flags=re.MULTILINE)[0] for part in parts[2::2]), strict=True)]
    found: list[tuple[str, list[str]]] = []
    left = sorted(set(names) - {*SHOWN_LAST}) + [name for name in SHOWN_LAST if name in names]
    for title, part in titled or [("", text)]:
        linked = [name for name in dict.fromkeys(re.findall(r"\]\(([a-z_]+\.py)\)", part)) if name in left]
        left = [name for name in left if name not in linked]
        found.append((title, linked))
    found[0][1].extend(left)
    return found

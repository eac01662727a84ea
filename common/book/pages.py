"""The Markdown that the book is made of: the course's own pages, and one for each diff and each folder that they link.

GitHub shows a folder and a file of code by itself; here each that a page links gets a page of its own.
"""

import os
import re
import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from common.stages import ROOT, stage_folders

from .walk import diff_page

PARTS = {  # of the table of contents
    "Lessons": ["[0-9][0-9]_*/README.md"],
    "Beyond the lessons": ["beyond/*.md", "GPU.md"],
    "Workshop": ["workshop/*.md", "workshop/solutions/README.md"],
    "Reference": ["COMMANDS.md", "GLOSSARY.md", "common/README.md", "common/*/**/README.md", "CONTRIBUTING.md"],
}
CODE_BLOCK = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
IMAGE = re.compile(r'(?:src|srcset)="(?!\w+:)([^"]+)"')  # in HTML
NOT_SHOWN = re.compile(r"__pycache__|\.|.*\.safetensors$")  # in the page of a folder
RECORDING = re.compile(  # a picture that links a recording, or a picture and a paragraph with the link
    r"^(?:\[!\[([^\]]+)\]\([^)]+\)\]|!\[([^\]]+)\]\([^)]+watch\.png\)\n\n\[[^\]]+\])\(([^)]*watch\.html)\).*$",
    re.MULTILINE,
)
ORPHAN = "---\norphan: true\n---\n\n"  # in front of a page that is not in the table of contents
PLAYER = """<figure class="recording"><iframe src="{at}" title="{said}" loading="lazy"></iframe>
<figcaption>{said}. <a href="{at}">In a window of its own</a></figcaption></figure>"""


class Pages:
    """Pages in a folder that the generator reads, at the paths of their sources; in another what it only copies.

    code: after `write`, the other files that they link.
    """

    def __init__(self, folder: Path, copied: Path):
        self.folder, self.copied = folder, copied
        self.todo = [ROOT / "README.md", *(path for part in PARTS for path in pages_of(part))]
        self.code: set[Path] = set()

    def write(self) -> None:
        """Write the pages of the table of contents, the diffs, the pages that these link, and so on."""
        done, listed = set(), {*self.todo}
        for before, after in pairwise(stage_folders()):
            self._put(after / "diff.md", diff_page(before, after))
        while self.todo:
            if (path := self.todo.pop()) not in done:
                done.add(path)
                self._put(page_of(path), ORPHAN * (path not in listed) + self._text(path))

    def _put(self, page: Path, text: str) -> None:
        blocks = CODE_BLOCK.split(text)
        blocks[::2] = [self._lead(page.parent, block) for block in blocks[::2]]
        moved(page, self.folder).write_text("".join(blocks), encoding="utf-8")

    def _lead(self, folder: Path, text: str) -> str:
        """Return the text of a page in a folder, with links to the pages of the book and with its recordings."""

        def play(found: re.Match) -> str:
            shutil.copy(folder / found[3], moved(folder / found[3], self.copied))
            return PLAYER.format(said=(found[1] or found[2]).removesuffix(": a recording"), at=found[3])

        def lead(found: re.Match) -> str:
            goal = Path(os.path.abspath(folder / found[1]))
            if goal.suffix == ".png":
                shutil.copy(goal, moved(goal, self.folder))
            elif goal.exists():
                goal = goal / "README.md" if (goal / "README.md").exists() else goal
                if is_code := goal.is_file() and goal.suffix != ".md":
                    self.code.add(goal)
                else:
                    self.todo.append(goal)
                    goal = page_of(goal)
                return f"]({'code:' * is_code}{Path(os.path.relpath(goal, folder)).as_posix()}"
            return found[0]

        for name in IMAGE.findall(text):
            shutil.copy(folder / name, moved(folder / name, self.copied))
        return LINK.sub(lead, RECORDING.sub(play, text))

    def _text(self, path: Path) -> str:
        """Return the Markdown of a page, or of a folder's, with links as the file has them."""
        if path.suffix == ".md":
            return with_contents(path, path.read_text(encoding="utf-8"))
        shown = (f"- [{one.name}]({one.name})" for one in sorted(path.iterdir()) if not NOT_SHOWN.match(one.name))
        return f"# {path.relative_to(ROOT).as_posix()}\n\n" + "\n".join(shown)


def pages_of(part: str) -> list[Path]:
    return [path for pattern in PARTS[part] for path in sorted(ROOT.glob(pattern))]


def page_of(path: Path) -> Path:
    """Return where the Markdown for a page or a folder is, as a path in the course."""
    if path == ROOT / "README.md":
        return ROOT / "index.md"
    return path / "contents.md" if path.is_dir() else path


def moved(path: Path, folder: Path) -> Path:
    """Return where a file of the course is to be in another folder, after making the folders around it."""
    goal = folder / path.relative_to(ROOT)
    goal.parent.mkdir(parents=True, exist_ok=True)
    return goal


def with_contents(path: Path, text: str) -> str:
    """Return a text with what comes below it in the table of contents; a lesson's command for the diff links it."""
    if path == ROOT / "README.md":
        return text + "".join(contents(part, map(page_of, pages_of(part))) for part in PARTS)
    if path.parent not in stage_folders()[1:]:
        return text
    command = f"`python3 course.py diff {path.parent.name[:2]}`"
    return text.replace(command, f"[{command}](diff.md)", 1) + contents("", [path.with_name("diff.md")])


def contents(caption: str, pages: Iterable[Path]) -> str:
    names = "\n".join(f"/{page.relative_to(ROOT).with_suffix('').as_posix()}" for page in pages)
    return f"\n```{{toctree}}\n:hidden:\n{f':caption: {caption}' if caption else ''}\n\n{names}\n```\n"

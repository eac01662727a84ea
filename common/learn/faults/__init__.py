"""The zoo of bugs: for each fault, how it looked, where it happened, and the smallest change that plants it here.

Each is a file 17-name.patch: a head in TOML, which says what a learner is told, and a unified diff of one file. bug.py
hands the faults out; `python -m common.learn.faults` plants them one after the other and shows which test catches each.
"""

import difflib
from pathlib import Path
from typing import NamedTuple

from common.toml import tomllib

from ..patches import patched, read_hunks

FOLDER = Path(__file__).resolve().parent
HEAD = FOLDER / "reproduce.txt"  # the beginning of every my/bug_17/reproduce.py


class Fault(NamedTuple):
    """One fault. number: as `bug` takes it, from the file's name; never given to another fault.

    stage: such as "05", the one that a learner gets. symptom: what a user would have seen.
    difficulty: 1 (one look at the right function) to 3 (needs an experiment).
    source: "owner/repository#number" on GitHub, or a commit of this repository.
    caught_by: arguments of pytest: the test that fails while the fault is there.
    reproduce: lines of Python that fail while the fault is there; see HEAD for the names they use.
    file: where it is planted, in the stage or in common/. hunks: texts that are there exactly once, and the new ones.
    """

    number: int
    stage: str
    symptom: str
    difficulty: int
    hints: list[str]
    story: str
    source: str
    caught_by: str
    reproduce: str
    file: str
    hunks: list[tuple[str, str]]

    @property
    def link(self) -> str:
        """Return the address of the source, or the source itself if it is this repository's history."""
        repository, hash_sign, number = self.source.partition("#")
        return f"https://github.com/{repository}/issues/{number}" if hash_sign else self.source

    def planted(self, text: str) -> str:
        """Return the text of `file` with the fault in it. Raise ValueError unless each old text is there once."""
        return patched(text, self.hunks, f"bug {self.number}: {self.file}")

    def plant(self, root: Path) -> None:
        """Plant the fault in a copy of the course."""
        path = root / self.file
        path.write_text(self.planted(path.read_text(encoding="utf-8")), encoding="utf-8")

    def diff(self, root: Path) -> str:
        """Return what the fault changes, as a unified diff of the reference at `root`."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines(keepends=True)
        after = self.planted("".join(before)).splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, f"right/{self.file}", f"wrong/{self.file}"))


def read_fault(path: Path) -> Fault:
    """Return the fault in a file."""
    head, mark, patch = path.read_text(encoding="utf-8").partition("\n--- a/")
    file, _, lines = patch.partition("\n")
    fields = tomllib.loads(head)
    fields |= {name: " ".join(fields[name].split()) for name in ("symptom", "story")}
    return Fault(number=int(path.name.partition("-")[0]), file=file, hunks=read_hunks(lines), **fields)


FAULTS = sorted(map(read_fault, FOLDER.glob("*.patch")), key=lambda one: (one.stage, one.number))

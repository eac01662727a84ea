"""One fault: what a user would have seen, where it happened, and how to plant it."""

import difflib
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """Data about one fault.

    number: as `bug` takes it; never given to another fault. stage: such as "05", the one that a learner gets.
    symptom: what a user would have seen. difficulty: 1 (one look at the right function) to 3 (needs an experiment).
    source: "owner/repository#number" on GitHub, or a commit of this repository.
    file: where it is planted, in the stage or in common/, by replacing `old`, which is there exactly once, by `new`.
    caught_by: arguments of pytest: the test that fails while the fault is there.
    reproduce: lines of Python that fail while the fault is there; see HEAD in reproduce.py for the names they use.
    """

    number: int
    stage: str
    symptom: str
    difficulty: int
    hints: tuple[str, str]
    story: str
    source: str
    file: str
    old: str
    new: str
    caught_by: str
    reproduce: str

    @property
    def link(self) -> str:
        """Return the address of the source, or the source itself if it is this repository's history."""
        repository, hash_sign, number = self.source.partition("#")
        return f"https://github.com/{repository}/issues/{number}" if hash_sign else self.source

    def planted(self, text: str) -> str:
        """Return the text of `file` with the fault in it. Raise ValueError unless `old` is there exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"bug {self.number}: {self.file} has the text to replace {count} times, and not once")
        return text.replace(self.old, self.new)

    def plant(self, root: Path) -> None:
        """Plant the fault in a copy of the course."""
        path = root / self.file
        path.write_text(self.planted(path.read_text(encoding="utf-8")), encoding="utf-8")

    def diff(self, root: Path) -> str:
        """Return what the fault changes, as a unified diff of the reference at `root`."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines(keepends=True)
        after = self.planted("".join(before)).splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, f"right/{self.file}", f"wrong/{self.file}"))

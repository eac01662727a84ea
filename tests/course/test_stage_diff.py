"""The diff as a lesson: its order, its sittings, and what it leaves out."""

from pathlib import Path

import pytest

from common.learn.stage_diff import Change, compare, sittings

FIRST = '''"""NEW in 01: the scheduler.

It decides.
"""

LIMIT = 1


class Scheduler:
    """NEW in 01: decides who runs."""

    def schedule(self):
        """NEW in 01: All of them."""
        # NEW in 01: the oldest first
        return sorted(self.waiting)  # NEW in 01: by arrival
'''
SECOND = '''"""The scheduler.

It decides.

NEW in 02: it preempts.
"""

LIMIT = 1


class Scheduler:
    """Decides who runs."""

    def schedule(self):
        """All of them."""
        # The oldest first
        return sorted(self.waiting)  # by arrival
'''


@pytest.fixture
def stages(tmp_path) -> tuple[Path, Path]:
    before, after = tmp_path / "01_a", tmp_path / "02_b"
    before.mkdir()
    after.mkdir()
    return before, after


def change_of(stages, was: str, now: str) -> list[Change]:
    for stage, code in zip(stages, (was, now), strict=True):
        (stage / "scheduler.py").write_text(code)
    return compare(*stages)


def test_markers_of_earlier_stages_are_no_change(stages):
    assert change_of(stages, FIRST, SECOND.replace("\n\nNEW in 02: it preempts.", "")) == []


def test_of_a_files_docstring_only_what_is_marked_as_new_is_shown(stages):
    [change] = change_of(stages, FIRST, SECOND)
    assert [line for line in change.lines if line[0] in "+-"] == ["+NEW in 02: it preempts."]
    assert (change.added, change.removed) == (0, 0), "docstrings do not count"
    assert change_of(stages, FIRST.replace("It decides.", "It has decided."), FIRST.replace("NEW in 01: t", "T")) == []


def test_a_change_is_shown_in_its_place_and_counted_as_code(stages):
    now = FIRST.replace("        return", "        if self.full:\n\n            self.preempt()\n        return")
    [change] = change_of(stages, FIRST, now)
    assert (change.kind, change.added, change.removed) == ("changed", 2, 0), "the blank line does not count"
    assert change.lines[0] == "@@ class Scheduler:", "where the first line shown stands"
    added = [line for line in change.lines if line[0] == "+"]
    assert added == ["+        if self.full:", "+", "+            self.preempt()"]


README = """# 02

[main.py](main.py) starts it; see also [common](../common/engine.py).

## 02a: the first part, with [table.py](table.py)

[scheduler.py](scheduler.py) and [table.py](table.py)

## 02b: the second part

- **[router.py](router.py)** and once more [scheduler.py](scheduler.py)

## Run it

[late.py](late.py)
"""


def test_files_come_in_the_order_of_the_lesson_by_its_sittings(stages):
    before, after = stages
    names = ["engine.py", "late.py", "main.py", "router.py", "scheduler.py", "table.py"]
    order = ["late.py", "router.py", "scheduler.py", "table.py", "engine.py", "main.py"]
    assert sittings(after, names) == [("", order)], "without a lesson: files that build on others come last"
    (after / "README.md").write_text(README)
    first, second = sittings(after, names)
    assert first == (
        "02a: the first part, with [table.py](table.py)",
        ["scheduler.py", "table.py", "late.py", "engine.py", "main.py"],
    )
    assert second == ("02b: the second part", ["router.py"])
    (after / "README.md").write_text("[router.py](router.py), [engine.py](engine.py), [router.py](router.py)")
    order = ["router.py", "engine.py", "late.py", "scheduler.py", "table.py", "main.py"]
    assert sittings(after, names) == [("", order)]

"""The diff as a lesson: its order, its sittings, and what it leaves out."""

import pytest

from common.learn.stage_diff import compare_file, sittings

FIRST = '''"""NEW in 01: the scheduler.

It decides.
"""


class Scheduler:
    """NEW in 01: decides who runs."""

    def schedule(self):
        # NEW in 01: the oldest first
        return sorted(self.waiting)  # NEW in 01: by arrival
'''
SECOND = '''"""The scheduler.

It decides.

NEW in 02: it preempts.
"""


class Scheduler:
    """Decides who runs."""

    def schedule(self):
        # The oldest first
        return sorted(self.waiting)  # by arrival
'''


@pytest.mark.parametrize(
    ("now", "shown", "added"),
    [
        (SECOND.replace("\n\nNEW in 02: it preempts.", ""), [], 0),
        (FIRST.replace("It decides.", "It has decided."), [], 0),
        (SECOND, ["+NEW in 02: it preempts."], 0),
        (
            FIRST.replace("        return", "        if self.full:\n\n            self.preempt()\n        return"),
            ["@@ class Scheduler:", "+        if self.full:", "+", "+            self.preempt()"],
            2,
        ),
    ],
    ids=["earlier markers", "another docstring", "a marked docstring", "code, of which blank lines do not count"],
)
def test_what_is_shown_of_a_file_and_counted_as_code(now, shown, added):
    """Code is shown with its class. Of the file's docstring only marked news is shown, and it counts as no line."""
    change = compare_file("scheduler.py", FIRST, now, "02")
    assert [line for line in change.lines if line[0] in "+-" or line == "@@ class Scheduler:"] == shown
    assert shown or not change.lines
    assert (change.kind, change.added, change.removed) == ("changed", added, 0)


README = """[main.py](main.py) starts it; see also [common](../common/engine.py).

## 02a: the first part, with [table.py](table.py)

[scheduler.py](scheduler.py) and [table.py](table.py)

## 02b: the second part

- **[router.py](router.py)** and once more [scheduler.py](scheduler.py)

## Run it

[late.py](late.py)
"""


def test_files_come_in_the_order_of_the_lesson_by_its_sittings(tmp_path):
    names = ["engine.py", "late.py", "main.py", "router.py", "scheduler.py", "table.py"]
    order = ["late.py", "router.py", "scheduler.py", "table.py", "engine.py", "main.py"]
    assert sittings(tmp_path, names) == [("", order)], "without a lesson: files that build on others come last"
    lesson = tmp_path / "README.md"
    lesson.write_text(README)
    first = ["scheduler.py", "table.py", "late.py", "engine.py", "main.py"]
    titles = ["02a: the first part, with [table.py](table.py)", "02b: the second part"]
    assert sittings(tmp_path, names) == [(titles[0], first), (titles[1], ["router.py"])]
    lesson.write_text("[router.py](router.py), [engine.py](engine.py), [router.py](router.py)")
    order = ["router.py", "engine.py", "late.py", "scheduler.py", "table.py", "main.py"]
    assert sittings(tmp_path, names) == [("", order)]

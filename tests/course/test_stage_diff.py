"""The diff as a lesson: its order, its sittings, and what it leaves out."""

from common.learn.stage_diff import Change, compare_file, sittings

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


def change_to(now: str) -> Change:
    return compare_file("scheduler.py", FIRST, now, "02")


def test_markers_of_earlier_stages_and_a_docstring_in_other_words_are_no_change():
    assert change_to(SECOND.replace("\n\nNEW in 02: it preempts.", "")).lines == []
    assert change_to(FIRST.replace("It decides.", "It has decided.")).lines == []


def test_of_a_files_docstring_only_what_is_marked_as_new_is_shown():
    change = change_to(SECOND)
    assert [line for line in change.lines if line[0] in "+-"] == ["+NEW in 02: it preempts."]
    assert (change.added, change.removed) == (0, 0), "docstrings do not count"


def test_a_change_is_shown_in_its_place_and_counted_as_code():
    change = change_to(
        FIRST.replace("        return", "        if self.full:\n\n            self.preempt()\n        return")
    )
    assert (change.kind, change.added, change.removed) == ("changed", 2, 0), "the blank line does not count"
    assert change.lines[0] == "@@ class Scheduler:", "where the first line shown stands"
    added = [line for line in change.lines if line[0] == "+"]
    assert added == ["+        if self.full:", "+", "+            self.preempt()"]


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

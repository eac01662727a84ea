"""The milestones of each stage: what a learner's folder can do after each piece, in the order of writing.

A milestone is a test of the stage, in tests/stages/test_05_milestones.py: the suite runs it on the reference, and
`check 05` on the learner's folder, in the order of the file up to the first that fails.

    @milestone("PageTable.capacity, PageTable.slot_mapping")
    def test_where_a_token_lies(stage: StageUnderTest) -> None:
        '''Token number p lies in entry ...

        Hint: ...
        Second hint: ...
        '''

Its docstring says what is expected, as `check` says it, and has two hints. The names are the tasks that it needs,
besides those of the milestones before it. Heads are read without importing the file, so what is not written yet can be
told in no time, and on a machine without torch.

The checks of the lessons' exercises, in exercises.py, are the same with `@exercise("05-3", ...)`: stage and number of
the exercise stand in place of tasks. They expect a finished stage, changed as the exercise says.
"""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from common.stages import ROOT

EXERCISES = Path(__file__).resolve().with_name("exercises.py")
TESTS = ROOT / "tests" / "stages"


class Milestone(NamedTuple):
    """The head of one milestone. seconds: after which its code is taken to run forever."""

    number: int
    file: Path
    name: str
    tasks: tuple[str, ...]
    expected: str
    hint: str
    second_hint: str
    seconds: int = 20

    @property
    def title(self) -> str:
        return self.name.removeprefix("test_").replace("_", " ").capitalize()


class Failed(AssertionError):
    """A milestone is not reached. what: in a sentence; picture: lines that show it."""

    def __init__(self, what: str, picture: str = ""):
        super().__init__(f"{what}\n{picture}".rstrip())
        self.what, self.picture = what, picture


def milestone(about: str, seconds: int = 20) -> Callable:
    """Declare the head of a milestone, or of an exercise's check; `read_heads` reads it from the source."""
    return lambda function: function


exercise = milestone


def read_milestones(number: str) -> list[Milestone]:
    """Return the heads of a stage's milestones, in order; none for a stage without any. number: such as "05"."""
    return read_heads(TESTS / f"test_{number}_milestones.py")


def read_exercises(number: str) -> list[Milestone]:
    """Return the heads of the checks of a lesson's exercises, in order, each with the exercise's number and no task."""
    heads = [(*one.tasks[0].split("-"), one) for one in read_heads(EXERCISES)]
    return [one._replace(number=int(place), tasks=()) for stage, place, one in heads if stage == number]


@cache
def read_heads(path: Path) -> list[Milestone]:
    """Return the heads in a file, in order, each with the names in its first argument as tasks."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            [head] = node.decorator_list
            rest = {keyword.arg: ast.literal_eval(keyword.value) for keyword in head.keywords}
            tasks, said = ast.literal_eval(head.args[0]).split(", "), " ".join(ast.get_docstring(node).split())
            said, _, second_hint = said.partition(" Second hint: ")
            expected, _, hint = said.partition(" Hint: ")
            found.append(Milestone(len(found) + 1, path, node.name, tuple(tasks), expected, hint, second_hint, **rest))
    return found

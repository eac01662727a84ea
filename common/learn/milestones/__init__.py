"""The milestones of each stage: what a learner's folder can do after each piece, in the order of writing.

A file for each stage, or for each of its sittings, has a function for each milestone, which raises an exception if the
milestone is not reached:

    @milestone("PageTable.capacity, PageTable.slot_mapping", expected="...", hint="...", second_hint="...")
    def where_a_token_lies(stage: StageUnderTest) -> None:

The names are the tasks that it needs, besides those of the milestones before it. Heads are read without importing the
file, so what is not written yet can be told in no time, and on a machine without torch.

The checks of a lesson's exercises, in exercises_05.py, are the same with `@exercise(3, ...)`: the exercise's number
stands in place of tasks. They expect a finished stage, changed as the exercise says.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent


class Milestone(NamedTuple):
    """The head of one milestone. seconds: after which its code is taken to run for ever."""

    number: int
    module: str
    name: str
    tasks: tuple[str, ...]
    expected: str
    hint: str
    second_hint: str
    seconds: int = 20

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()


class Failed(Exception):
    """A milestone is not reached. what: in a sentence; picture: lines that show it."""

    def __init__(self, what: str, picture: str = ""):
        super().__init__(what)
        self.what, self.picture = what, picture


def milestone(tasks: str, *, expected: str, hint: str, second_hint: str, seconds: int = 20) -> Callable:
    """Declare the head of a milestone. `read_milestones` reads it from the source."""
    return lambda function: function


def exercise(number: int, *, expected: str, hint: str, second_hint: str, seconds: int = 20) -> Callable:
    """Declare the head of an exercise's check. `read_exercises` reads it from the source."""
    return lambda function: function


@cache
def read_milestones(number: str) -> list[Milestone]:
    """Return the heads of a stage's milestones, in order; none for a stage without any. number: such as "05"."""
    heads = enumerate(read_heads(f"stage_{number}*.py"), 1)
    return [Milestone(place, *where, tuple(tasks.split(", ")), **rest) for place, (*where, tasks, rest) in heads]


def read_exercises(number: str) -> list[Milestone]:
    """Return the heads of the checks of a lesson's exercises, in order, each with the exercise's number and no task."""
    heads = read_heads(f"exercises_{number}.py")
    return [Milestone(place, *where, (), **rest) for *where, place, rest in heads]


def read_heads(pattern: str) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yield module, function, first argument and the other arguments of each head in these files."""
    for path in sorted(FOLDER.glob(pattern)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                [head] = node.decorator_list
                rest = {keyword.arg: ast.literal_eval(keyword.value) for keyword in head.keywords}
                yield f"{__name__}.{path.stem}", node.name, ast.literal_eval(head.args[0]), rest

"""The milestones of each stage: what a learner's folder can do after each piece, in the order of writing.

A file for each stage, or for each of its sittings, has a function for each milestone, which raises an exception if the
milestone is not reached:

    @milestone("PageTable.capacity, PageTable.slot_mapping", expected="...", hint="...", second_hint="...")
    def where_a_token_lies(stage: StageUnderTest) -> None:

The names are the tasks that it needs, besides those of the milestones before it. Heads are read without importing the
file, so what is not written yet can be told in no time, and on a machine without torch.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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


def read_milestones(number: str) -> list[Milestone]:
    """Return the heads of a stage's milestones, in order; none for a stage without any. number: such as "05"."""
    found: list[Milestone] = []
    for path in sorted(FOLDER.glob(f"stage_{number}*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                [head] = node.decorator_list
                tasks = tuple(ast.literal_eval(head.args[0]).split(", "))
                rest = {keyword.arg: ast.literal_eval(keyword.value) for keyword in head.keywords}
                found.append(Milestone(len(found) + 1, f"{__name__}.{path.stem}", node.name, tasks, **rest))
    return found

"""A stage without the bodies that its lesson is about, made from the reference code of it and of the one before.

A task is a function whose code the stage before does not have. Given, and so no task, are main.py, demo.py and
benchmark.py, constructors that only set attributes, properties that only name something, declarations without a body,
and what changes.toml lists. What stays is the reference line for line, so that the bodies put back give the reference
byte for byte.
"""

import ast
import sys
from pathlib import Path
from typing import NamedTuple

from common.stages import stage_folders
from common.toml import read_toml

from .code import Definition, definitions, read_files, replaced
from .stage_diff import read_sources, sittings

CHANGES = Path(__file__).with_name("changes.toml")
GIVEN_FILES = {"main.py"}  # `read_sources` leaves out demo.py and benchmark.py
LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Task(NamedTuple):
    """One function to write. name: such as "PageTable.slot_mapping"; sitting: its title in the lesson, or ""."""

    number: int
    name: str
    file: str
    changed: bool  # the stage before has a function of this name in this file
    sitting: str

    @property
    def title(self) -> str:
        return f"task {self.number}: {self.name}"

    @property
    def unwritten(self) -> str:
        """Return the line that a learner replaces with code."""
        return f'raise NotImplementedError("{self.title}")'

    def of(self, stage: Path) -> Definition:
        """Return the function as the reference of a stage has it."""
        return definitions((stage / self.file).read_text(encoding="utf-8"))[self.name]


def stage_before(stage: Path) -> Path:
    """Return the stage before this one. Exit if it is the first."""
    first, *others = stages = stage_folders(stage.parent)
    if stage == first:
        sys.exit(
            f"{first.name} is given: there is no stage before it to build on. Start with {others[0].name}.\n"
            f"For the exercises of its lesson: python3 course.py start {first.name[:2]} --complete"
        )
    return stages[stages.index(stage) - 1]


def find_tasks(stage: Path) -> list[Task]:
    """Return the tasks of a stage: files in the order in which its lesson links them, functions as they stand there."""
    old, new, given = read_sources(stage_before(stage)), read_sources(stage), listed(stage, "given")
    known = {one.code for source in old.values() for one in definitions(source).values()}  # in any class, in any file
    tasks: list[Task] = []
    for sitting, files in sittings(stage, [name for name in new if name not in GIVEN_FILES | given]):
        for file in files:
            was = definitions(old.get(file, ""))
            for name, found in definitions(new[file]).items():
                if not (found.code in known or is_given(found) or given & {name, name.split(".")[0]}):
                    tasks.append(Task(len(tasks) + 1, name, file, name in was, sitting))
    return tasks


def listed(stage: Path, kind: str) -> set[str]:
    """Return the names that changes.toml lists for a stage. kind: "changed" or "given"."""
    return set(read_toml(CHANGES).get(stage.name[:2], {}).get(kind, []))


def is_given(found: Definition) -> bool:
    """Return whether it is no function, or too plain for a task: it has no body, or only names things."""
    body = found.statements
    if found.is_class or not body or body[0].lineno == found.node.lineno:  # such as `def draft(self): ...`
        return True
    if found.node.name == "__init__":  # A constructor with a loop computes something.
        return not any(isinstance(node, LOOPS) for node in ast.walk(found.node))
    value = body[0].value if isinstance(body[0], ast.Return) else None
    while isinstance(value, ast.Attribute):
        value = value.value
    is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in found.node.decorator_list)
    return is_property and isinstance(value, (ast.Name, ast.Constant))


def reasons(found: Definition, number: str) -> list[str]:
    """Return the comments of a function's body that begin with "NEW in 05: ", as lines of their own."""
    kept: list[str] = []
    inside = False
    for line in found.file[found.body]:
        code, _, said = line.partition(f"# NEW in {number}: ")
        inside = line.lstrip().startswith("#") and (inside or bool(said))
        if inside:
            kept.append(line.lstrip())
        elif said:  # The comment follows code that the learner writes.
            kept.append(f"# NEW in {number}: {said}")
    return kept


def blank_stage(stage: Path) -> dict[str, str]:
    """Return every file of a stage by name, with its tasks left to write."""
    files, bodies = read_files(stage), {}
    for task in find_tasks(stage):
        found = task.of(stage)
        indent = " " * (found.node.col_offset + 4)
        body = [indent + line for line in [*reasons(found, stage.name[:2]), f"{task.unwritten}\n"]]
        bodies.setdefault(task.file, {})[task.name] = body
    return files | {file: replaced(files[file], new, bodies=True) for file, new in bodies.items()}

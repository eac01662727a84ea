"""A stage with the bodies taken out that its lesson is about, made from the reference code of it and the one before.

A task is a function whose code the stage before does not have. Given, and so no task, are main.py, demo.py and
benchmark.py, constructors that only set attributes, properties that only name something, declarations without a body,
and what changes.toml lists. What stays is the reference line for line, so that the bodies put back give the reference
byte for byte.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

from common.toml import tomllib

from .stage_diff import definitions, named, read_sources, sittings

Function = ast.FunctionDef | ast.AsyncFunctionDef
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


def find_tasks(before: Path, after: Path) -> list[Task]:
    """Return the tasks of a stage: files in the order in which its lesson links them, functions as they stand there."""
    old, new, given = read_sources(before), read_sources(after), listed(after, "given")
    known = {code for source in old.values() for code in definitions(source).values()}  # in any class, in any file
    tasks: list[Task] = []
    for sitting, files in sittings(after, [name for name in new if name not in GIVEN_FILES | given]):
        for file in files:
            was, now = definitions(old.get(file, "")), definitions(new[file])
            for name, function in functions(new[file]).items():
                if now[name] not in known and not is_given(function) and not given & {name, name.split(".")[0]}:
                    tasks.append(Task(len(tasks) + 1, name, file, name in was, sitting))
    return tasks


def listed(stage: Path, kind: str) -> set[str]:
    """Return the names that changes.toml lists for a stage. kind: "changed" or "given"."""
    return set(tomllib.loads(CHANGES.read_text(encoding="utf-8")).get(stage.name[:2], {}).get(kind, []))


@cache  # a list of tasks asks for each a few times
def functions(source: str) -> dict[str, Function]:
    """Return the functions and methods of a file by qualified name; functions inside of functions belong to these."""
    return {name: node for name, node in named(ast.parse(source).body) if not isinstance(node, ast.ClassDef)}


def is_given(function: Function) -> bool:
    """Return whether a function is too plain for a task: it has no body, or only names things."""
    body = statements(function)
    if not body or body[0].lineno == function.lineno:  # a declaration, such as `def draft(self): ...`
        return True
    if function.name == "__init__":  # one that loops computes
        return not any(isinstance(node, LOOPS) for node in ast.walk(function))
    value = body[0].value if isinstance(body[0], ast.Return) else None
    while isinstance(value, ast.Attribute):
        value = value.value
    is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in function.decorator_list)
    return is_property and isinstance(value, (ast.Name, ast.Constant))


def statements(function: Function) -> list[ast.stmt]:
    """Return the body of a function without its docstring."""
    return function.body[ast.get_docstring(function) is not None :]


def span(node: ast.stmt) -> slice:
    """Return where a statement stands in the file's lines; a definition begins with its first decorator."""
    first = min(one.lineno for one in [node, *getattr(node, "decorator_list", [])])
    return slice(first - 1, node.end_lineno)


def body_span(function: Function, lines: list[str]) -> slice:
    """Return the lines of a function's body, the comments before its first statement among them."""
    start = span(statements(function)[0]).start
    while not lines[start - 1].strip() or lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return slice(start, function.end_lineno)


def reasons(function: Function, lines: list[str], number: str) -> list[str]:
    """Return the comments of a function's body that begin with "NEW in 05: ", as lines of their own."""
    kept: list[str] = []
    inside = False
    for line in lines[body_span(function, lines)]:
        code, _, said = line.partition(f"# NEW in {number}: ")
        inside = line.lstrip().startswith("#") and (inside or bool(said))
        if inside:
            kept.append(line)
        elif said:  # behind code, which is to be written
            kept.append(f"{code[: len(code) - len(code.lstrip())]}# NEW in {number}: {said}")
    return kept


def lines_of(source: str, name: str) -> list[str]:
    """Return the lines of a function, with their ends."""
    return source.splitlines(keepends=True)[span(functions(source)[name])]


def replaced(source: str, new: dict[str, list[str]], bodies: bool = False) -> str:
    """Return a file with other lines for the functions of these names. bodies: only their bodies are other ones."""
    lines, found = source.splitlines(keepends=True), functions(source)
    for name in sorted(new, key=lambda name: -found[name].lineno):  # from the end: line numbers before it hold
        lines[body_span(found[name], lines) if bodies else span(found[name])] = new[name]
    return "".join(lines)


def blank(source: str, tasks: list[Task], number: str) -> str:
    """Return a file in which these tasks are left to write. number: of the stage, such as "05"."""
    lines, found, bodies = source.splitlines(keepends=True), functions(source), {}
    for task in tasks:
        indent = " " * (found[task.name].col_offset + 4)
        kept = [f"{indent}{line.lstrip()}" for line in reasons(found[task.name], lines, number)]
        bodies[task.name] = [*kept, f'{indent}raise NotImplementedError("{task.title}")\n']
    return replaced(source, bodies, bodies=True)


def blank_stage(before: Path, after: Path) -> dict[str, str]:
    """Return every file of a stage by name, with its tasks left to write."""
    tasks = find_tasks(before, after)
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(after.glob("*.py"))}
    number = after.name[:2]
    return {file: blank(text, [task for task in tasks if task.file == file], number) for file, text in sources.items()}

"""TASKS.md: what a learner writes in a stage, in the order of the lesson's walk, in the words of the reference."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from common.errors import counted

from .blank import Task, find_tasks, reasons, stage_before
from .code import Definition, definitions
from .milestones import read_milestones
from .stage_diff import read_sources

UNWRAPPED = ("#", ">", "```", "- ")
BUILTIN = {name for kind in (str, list, dict, set) for name in dir(kind)}  # methods that say nothing of the course
UNBROKEN = {"break_long_words": False, "break_on_hyphens": False}


def task_list(stage: Path) -> str:
    """Return the text of TASKS.md."""
    before, tasks = stage_before(stage), find_tasks(stage)
    lesson = (stage / "README.md").read_text(encoding="utf-8")
    title = next(iter(re.findall(r"^# (.+)$", lesson, re.MULTILINE)), stage.name)
    number, total = stage.name[:2], sum(len(code_lines(task.of(stage))) for task in tasks)
    parts = [
        f"# Build stage {title}",
        f"{len(tasks)} functions for you to write, about {total} lines in the reference. Each one now is "
        "`raise NotImplementedError`, with its number. All other code is given: imports, signatures, docstrings, "
        "constructors that only set attributes, and what is listed below as given.",
        f"Read the [lesson](../../{stage.name}/README.md) first. `python3 course.py check {number}` goes through the "
        "milestones below, one after the other, and says what works, what does not, and why. "
        f"`solve {number} {tasks[0].name}` shows the reference of one task as a diff and fills it in; `solve "
        f"{number} --all` fills in the rest. With all of it written, `python3 course.py demo my/{stage.name}` runs.",
        milestone_list(number, tasks),
    ]
    sitting = file = owner = ""
    for task in tasks:
        if task.sitting != sitting:
            sitting, file = task.sitting, ""
            parts.append(f"# {sitting}")
        if task.file != file:
            file, owner = task.file, ""
            parts += file_heading(before, stage, file, lesson, tasks)
        if task.name.rpartition(".")[0] != owner:
            owner = task.name.rpartition(".")[0]
            parts += class_heading(stage, file, owner)
        parts += entry(before, stage, task)
    return "\n\n".join(part if part.startswith(UNWRAPPED) else fill(part) for part in parts if part) + "\n"


def milestone_list(number: str, tasks: list[Task]) -> str:
    """Return the milestones of a stage, each with the tasks that it is the first to need, and what it expects."""
    numbers = {task.name: task.number for task in tasks}
    lines = []
    for milestone in read_milestones(number):
        needed = sorted(numbers.pop(name) for name in milestone.tasks if name in numbers)
        named = f"task{'s' * (len(needed) > 1)} {', '.join(map(str, needed))}" if needed else "the same tasks"
        lines.append(fill(f"- **{milestone.number}. {milestone.title}** ({named}): {milestone.expected}", after="  "))
    return "\n".join(lines)


def fill(text: str, indent: str = "", after: str = "") -> str:
    """Wrap a paragraph for a terminal. after: the additional indent of all lines after the first."""
    return textwrap.fill(text, 118, initial_indent=indent, subsequent_indent=indent + after, **UNBROKEN)


def file_heading(before: Path, stage: Path, file: str, lesson: str, tasks: list[Task]) -> list[str]:
    """Return the heading of a file, what the lesson says about it, and which of its news is given."""
    new = not (before / file).exists()
    parts = [f"## {file}{' (new)' if new else ''}"]
    bullet = re.search(rf"^- (\*\*\[{re.escape(file)}\].*?)(?=^- |^$|\Z)", lesson, re.MULTILINE | re.DOTALL)
    if bullet:
        text = re.sub(r"\]\((?!\w+:|#)", f"](../../{stage.name}/", " ".join(bullet[1].split()))
        parts.append(fill(text, "> "))
    given = given_names(read_sources(before).get(file, ""), read_sources(stage)[file], {task.name for task in tasks})
    return [*parts, f"New or changed, and given: {', '.join(f'`{name}`' for name in given)}."] if given else parts


def given_names(was: str, now: str, tasks: set[str]) -> list[str]:
    """Return what is new or changed in a file and no task: a class without tasks as one name; no new constructors."""
    old, new, owners = definitions(was), definitions(now), {name.rpartition(".")[0] for name in tasks}
    found = []
    for name, one in new.items():
        owner, is_new = name.rpartition(".")[0], name not in old
        begun = name in owners or name.endswith(".__init__")  # New classes with tasks and constructors are not listed.
        in_given_class = bool(owner) and owner not in owners and owner not in old
        if (
            (is_new or old[name].code != one.code)
            and name not in tasks
            and not in_given_class
            and not (begun and is_new)
        ):
            found.append(name)
    return found


def class_heading(stage: Path, file: str, name: str) -> list[str]:
    """Return the name of a class that has a docstring, and what that says."""
    found = definitions((stage / file).read_text(encoding="utf-8")).get(name)
    return [f"**class `{name}`**: {docstring(stage, found)}"] if found and found.doc else []


def docstring(stage: Path, found: Definition) -> str:
    """Return what a docstring says first, and what it says about this stage and invariants."""
    first, *others = found.doc.split("\n\n")
    news = [part for part in others if part.startswith("Invariant") or f"NEW in {stage.name[:2]}" in part]
    return " ".join(map(clean, [first, *news]))


def entry(before: Path, stage: Path, task: Task) -> list[str]:
    """Return the paragraphs about one task."""
    found = task.of(stage)
    size = f"{counted(len(code_lines(found)), 'line')} in the reference"
    if task.changed:
        line = task.of(before).node.lineno
        size += f", changed from [stage {before.name[:2]}'s](../../{before.name}/{task.file}#L{line}) (line {line})"
    told, used = words_of(stage, task)
    checks = [
        f"Checked by milestone {one.number}." for one in read_milestones(stage.name[:2]) if task.name in one.tasks
    ]
    said = " ".join(filter(None, [told, f"{size}.", used, *checks[:1]]))
    comments = " ".join(line.strip("# \n") for line in reasons(found, stage.name[:2]))
    why = " ".join(map(clean, re.split(r" (?=NEW in \d\d: )", comments)))
    return [
        f"### {task.number}. `{task.name}`",
        f"```python\n{signature(found)}\n```",
        said,
        f"*Why:* {why}" * bool(why),
    ]


def words_of(stage: Path, task: Task) -> tuple[str, str]:
    """Return what the docstring of a task's function says, and a sentence with what it calls; "" for none."""
    found = task.of(stage)
    used = ", ".join(f"`{name}`" for name in calls(stage, found))
    return docstring(stage, found), f"It calls {used}." if used else ""


def code_lines(found: Definition) -> list[str]:
    """Return the lines of code of a function's body, without comments and what follows code on its line."""
    body = (line.split("  # ")[0].rstrip() for line in found.file[found.body])
    return [line for line in body if line and not line.lstrip().startswith("#")]


def calls(stage: Path, function: Definition) -> list[str]:
    """Return what of the course a function calls or passes on, in order: of common and this stage, and methods."""
    source = "".join(function.file)
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    imports = [node for node in imports if node.level or node.module.startswith("common")]
    ours = {one.name for node in imports for one in node.names} | {*definitions(source)}
    files = [*(stage.parent / "common").glob("*.py"), *(stage.parent / "common").glob("*/__init__.py")]
    shared = methods(file.read_text(encoding="utf-8") for file in files) - BUILTIN
    known = shared | methods(read_sources(stage).values())
    nodes = [*ast.walk(ast.Module(function.statements, []))]
    passed = [node for node in nodes if isinstance(node, ast.Name) and node.id in ours and node.id.islower()]
    found = []
    for node in [*passed, *(node.func for node in nodes if isinstance(node, ast.Call))]:
        name = ast.unparse(node)
        if not re.fullmatch(r"(super\(\))?[\w.]+", name):
            continue
        owner, _, method = name.rpartition(".")
        if name.partition(".")[0] in ours or owner == "self" or (owner and method in known):
            found.append((node.lineno, node.col_offset, name))
    return [*dict.fromkeys(name for _, _, name in sorted(found))]


def methods(texts: Iterable[str]) -> set[str]:
    """Return the last names of all methods in some files."""
    found = (item for text in texts for item in definitions(text).items())
    return {name.rpartition(".")[2] for name, one in found if "." in name and not one.is_class}


def signature(found: Definition) -> str:
    """Return a function from its first decorator to the colon."""
    first = found.node.body[0].lineno - 1 if found.doc else found.body.start
    return textwrap.dedent("".join(found.file[found.span.start : first])).rstrip("\n")


def clean(text: str) -> str:
    """Return a text in one line, without its "NEW in 05: "; a sentence that this began gets a capital letter."""
    text = " ".join(inspect.cleandoc(text).split())
    text = re.sub(r"((?:^|[.?!] ))NEW in \d\d: (\w)(?!\w*:)", lambda found: found[1] + found[2].upper(), text)
    text = re.sub(r"NEW in \d\d: ", "", text)
    return text if not text or text[-1] in ".?!:" else text + "."

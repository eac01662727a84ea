"""TASKS.md: what a learner writes in a stage, in the order of the lesson's walk, in the words of the reference."""

import ast
import difflib
import inspect
import re
import textwrap
from pathlib import Path

from .blank import Function, Task, body_span, functions, reasons, span, statements
from .milestones import read_milestones
from .stage_diff import definitions, named, read_sources

UNWRAPPED = ("#", ">", "```", "- ")
BUILTIN = {name for kind in (str, list, dict, set) for name in dir(kind)}  # methods that say nothing of the course
UNBROKEN = {"break_long_words": False, "break_on_hyphens": False}


def task_list(before: Path, stage: Path, tasks: list[Task]) -> str:
    """Return the text of TASKS.md."""
    lesson = (stage / "README.md").read_text(encoding="utf-8")
    title = next(iter(re.findall(r"^# (.+)$", lesson, re.MULTILINE)), stage.name)
    number, total = stage.name[:2], sum(len(code_of(stage, task)) for task in tasks)
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
    """Wrap a paragraph for a terminal. after: what the lines behind the first are indented by, beside `indent`."""
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
    """Return what is new or changed in a file and no task: a class without tasks as one, no new constructors."""
    old, new, owners = definitions(was), definitions(now), {name.rpartition(".")[0] for name in tasks}
    found = []
    for name, code in new.items():
        owner = name.rpartition(".")[0]
        begun = name in owners or name.endswith(".__init__")  # with tasks around it, nothing to say of a new one
        in_given_class = bool(owner) and owner not in owners and owner not in old
        if old.get(name) != code and name not in tasks and not in_given_class and not (begun and name not in old):
            found.append(name)
    return found


def class_heading(stage: Path, file: str, name: str) -> list[str]:
    """Return what the docstring of a class says first, and what it says about this stage: invariants stand there."""
    found = dict(named(ast.parse((stage / file).read_text(encoding="utf-8")).body))
    if name not in found or not (text := ast.get_docstring(found[name])):
        return []
    first, *others = text.split("\n\n")
    news = [part for part in others if part.startswith("Invariant") or f"NEW in {stage.name[:2]}" in part]
    return [" ".join([f"**class `{name}`**: {clean(first)}", *map(clean, news)])]


def entry(before: Path, stage: Path, task: Task) -> list[str]:
    """Return the paragraphs about one task."""
    function, lines = find(stage, task)
    length = len(code_of(stage, task))
    size = f"{length} line{'s' * (length != 1)} in the reference"
    if task.changed:
        place, added, removed = find(before, task)[0].lineno, *changed_lines(before, stage, task)
        link = f"[stage {before.name[:2]}'s](../../{before.name}/{task.file}#L{place})"
        size += f", +{added} -{removed} to {link} (line {place})"
    parts = [f"### {task.number}. `{task.name}`", f"```python\n{signature(function, lines)}\n```"]
    docstring, used = words_of(stage, task)
    said = [docstring, f"{size}.", used]
    checks = [one.number for one in read_milestones(stage.name[:2]) if task.name in one.tasks]
    said += [f"Checked by milestone {checks[0]}."] if checks else []
    parts.append(" ".join(filter(None, said)))
    why = " ".join(map(clean, comments(reasons(function, lines, stage.name[:2]))))
    return [*parts, f"*Why:* {why}"] if why else parts


def words_of(stage: Path, task: Task) -> tuple[str, str]:
    """Return what the docstring of a task's function says first, and a sentence with what it calls; "" for none."""
    function, lines = find(stage, task)
    used = ", ".join(f"`{name}`" for name in calls(stage, function, "\n".join(lines)))
    return clean((ast.get_docstring(function) or "").split("\n\n")[0]), f"It calls {used}." if used else ""


def find(stage: Path, task: Task) -> tuple[Function, list[str]]:
    """Return a task's function as a stage has it, and the lines of its file."""
    source = (stage / task.file).read_text(encoding="utf-8")
    return functions(source)[task.name], source.splitlines()


def code_of(stage: Path, task: Task) -> list[str]:
    """Return the lines of code of a task's body, without comments and what follows code on its line."""
    function, lines = find(stage, task)
    body = (line.split("  # ")[0] for line in lines[body_span(function, lines)])
    return [line for line in body if line.strip() and not line.lstrip().startswith("#")]


def changed_lines(before: Path, stage: Path, task: Task) -> tuple[int, int]:
    """Return how many lines a task adds to the body in the stage before, and how many it removes."""
    lines = [*difflib.ndiff(code_of(before, task), code_of(stage, task))]
    return sum(line.startswith("+ ") for line in lines), sum(line.startswith("- ") for line in lines)


def calls(stage: Path, function: Function, source: str) -> list[str]:
    """Return what of the course a function calls: functions and classes of common and this stage, methods, in order."""
    body = ast.parse(source).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    imports = [node for node in imports if node.level or node.module.startswith("common")]
    ours = {one.name for node in imports for one in node.names} | {name for name, _ in named(body)}
    files = [stage.parent / f"{node.module.replace('.', '/')}.py" for node in imports if not node.level]
    theirs = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    own, all_of_them = (
        {name.rpartition(".")[2] for text in texts for name in functions(text)}
        for texts in (read_sources(stage).values(), [*read_sources(stage).values(), *theirs])
    )
    found = []
    for node in ast.walk(ast.Module(statements(function), [])):
        if isinstance(node, ast.Call) and re.fullmatch(r"[\w.]+", name := ast.unparse(node.func)):
            first, _, rest = name.partition(".")
            method, of_self = rest.rpartition(".")[2], first == "self"
            if first in ours or (of_self and (method in own or method == rest)) or method in all_of_them - BUILTIN:
                found.append((node.lineno, node.col_offset, name))
    return [*dict.fromkeys(name for _, _, name in sorted(found))]


def signature(function: Function, lines: list[str]) -> str:
    """Return a function from its first decorator to the colon."""
    first = function.body[0].lineno - 1 if ast.get_docstring(function) else body_span(function, lines).start
    return textwrap.dedent("\n".join(lines[span(function).start : first]))


def comments(lines: list[str]) -> list[str]:
    """Return what comments say, each of which begins with "NEW in 05: " and may take several lines."""
    return re.split(r" (?=NEW in \d\d: )", " ".join(line.strip().lstrip("# ") for line in lines))


def clean(text: str) -> str:
    """Return a text in one line, without its "NEW in 05: "; a sentence that this began gets a capital letter."""
    text = " ".join(inspect.cleandoc(text).split())
    text = re.sub(r"((?:^|[.?!] ))NEW in \d\d: (\w)(?!\w*:)", lambda found: found[1] + found[2].upper(), text)
    text = re.sub(r"NEW in \d\d: ", "", text)
    return text if not text or text[-1] in ".?!:" else text + "."

"""`python3 course.py solve 05 PageAllocator.extend`: show the reference of one task as a diff, and fill it in."""

import difflib
import sys
from pathlib import Path

from common.bench.documents import write_atomically
from common.errors import counted
from common.terminal import parser_of

from .blank import Task, find_tasks
from .code import Definition, definitions, replaced
from .start import ROOT, own_folder, reference_of


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Fill in one task, or all that are left. The first argument is the stage's folder, as course.py passes it."""
    options = parser_of("course.py solve").parse_args(arguments)
    stage = reference_of(root, options.stage)
    tasks = find_tasks(stage)
    folder = own_folder(root, options.stage, stage)
    if bool(options.task) == options.all:
        sys.exit(f"`solve` needs one task, such as {tasks[0].name}, or --all.")
    chosen = [task for task in tasks if is_left(folder, task)] if options.all else [pick(tasks, options.task)]
    if not chosen:
        print("Nothing is left to write.")
        return 0
    sources = {}
    for task in chosen:
        mine, theirs = written(folder, task).lines, task.of(stage).lines
        if mine == theirs:
            print(f"{task.name} is the reference already.")
            return 0
        label = f"{task.file}: {task.name}"
        diff = difflib.unified_diff(mine, theirs, f"yours, {label}", f"reference, {label}", n=100)
        lines = [line.rstrip("\n") for line in diff if not line.startswith("@@")]
        print(task.title if options.all else "\n".join(lines))
        source = sources.get(task.file) or (folder / task.file).read_text(encoding="utf-8")
        sources[task.file] = replaced(source, {task.name: theirs})
    if not (options.yes or agreed()):
        return 1
    for name, text in sources.items():
        write_atomically(folder / name, text)  # on a full disk the learner's file stays as it is
    print(f"Filled in {counted(len(chosen), 'task')}.")
    return 0


def pick(tasks: list[Task], wanted: str) -> Task:
    """Return the task of this name or number. Exit with the nearest names if there is none."""
    for task in tasks:
        if wanted in (task.name, str(task.number)):
            return task
    names = [task.name for task in tasks]
    near = [name for name in names if wanted in name][:5] or difflib.get_close_matches(wanted, names)
    sys.exit(f"There is no task {wanted!r}. Nearest: {', '.join(near) or 'none; TASKS.md lists all'}.")


def is_left(folder: Path, task: Task) -> bool:
    """Return whether a task's function still raises the error that `start` put there."""
    return written(folder, task).lines[-1].strip() == task.unwritten


def written(folder: Path, task: Task) -> Definition:
    """Return a task's function as the learner has it. Exit if its file is not there, does not parse, or lacks it."""
    path = folder / task.file
    if not path.exists():
        sys.exit(f"{folder.name} has no {task.file}: take it from a folder that `start` makes with --force.")
    try:
        return definitions(path.read_text(encoding="utf-8"))[task.name]
    except SyntaxError as error:
        sys.exit(f"{path.name}, line {error.lineno}: {error.msg}. Mend it first.")
    except KeyError:
        sys.exit(f"{path.name} has no {task.name}: write its `def` line, and a body such as `...`, where it belongs.")


def agreed() -> bool:
    """Ask at a terminal whether to fill in. Exit without one."""
    if not sys.stdin.isatty():
        sys.exit("Nothing is filled in: without a terminal, say --yes.")
    try:
        return input("Fill in? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False

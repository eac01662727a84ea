"""`python3 course.py solve 05 PageAllocator.extend`: show the reference of one task as a diff, and fill it in."""

import argparse
import ast
import difflib
import sys
from pathlib import Path

from .blank import Function, Task, find_tasks, functions, lines_of, replaced, statements
from .start import ROOT, own_folder, reference_of, stage_before


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Fill in one task, or all that are left. The first argument is the stage's folder, as course.py passes it."""
    parser = argparse.ArgumentParser(prog="course.py solve", description="Fill in tasks from the reference.")
    parser.add_argument("stage")
    parser.add_argument("task", nargs="?", help="such as PageAllocator.extend, or its number in TASKS.md")
    parser.add_argument("--all", action="store_true", help="every task that is still left to write")
    parser.add_argument("--yes", action="store_true", help="without asking")
    options = parser.parse_args(arguments)
    stage = reference_of(root, options.stage)
    before = stage_before(root, stage)
    folder = own_folder(root, options.stage, stage)
    tasks = find_tasks(before, stage)
    if bool(options.task) == options.all:
        sys.exit(f"`solve` needs one task, such as {tasks[0].name}, or --all.")
    chosen = [task for task in tasks if is_left(folder, task)] if options.all else [pick(tasks, options.task)]
    if not chosen:
        print("Nothing is left to write.")
        return 0
    sources = {task.file: (folder / task.file).read_text(encoding="utf-8") for task in chosen}
    for task in chosen:
        sources[task.file], lines = fill_in(folder / task.file, sources[task.file], stage / task.file, task)
        if not lines:
            print(f"{task.name} is the reference already.")
            return 0
        print(task.title if options.all else "\n".join(lines))
    if not (options.yes or agreed()):
        return 1
    for name, text in sources.items():
        unfinished = folder / f"{name}.tmp"  # on a full disk the learner's file stays as it is
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(folder / name)
    print(f"Filled in {len(chosen)} task{'s' * (len(chosen) != 1)}.")
    return 0


def pick(tasks: list[Task], wanted: str) -> Task:
    """Return the task of this name or number. Exit with the nearest names if there is none."""
    for task in tasks:
        if wanted in (task.name, str(task.number)):
            return task
    names = [task.name for task in tasks]
    ends = difflib.get_close_matches(wanted.rpartition(".")[2], {name.rpartition(".")[2] for name in names})
    near = [name for end in ends for name in names if name.rpartition(".")[2] == end]
    near = [*dict.fromkeys([*difflib.get_close_matches(wanted, names), *near])]
    sys.exit(f"There is no task {wanted!r}. Nearest: {', '.join(near[:5]) or 'none; TASKS.md lists all'}.")


def is_left(folder: Path, task: Task) -> bool:
    """Return whether a task's function still raises the error that `start` put there."""
    function = find(folder / task.file, (folder / task.file).read_text(encoding="utf-8"), task)
    last = statements(function)[-1:]
    return bool(last) and ast.unparse(last[0]) == f"raise NotImplementedError({task.title!r})"


def find(path: Path, source: str, task: Task) -> Function:
    """Return a task's function in the learner's file. Exit if the file does not parse or lacks it."""
    try:
        return functions(source)[task.name]
    except SyntaxError as error:
        sys.exit(f"{path.name}, line {error.lineno}: {error.msg}. Mend it first.")
    except KeyError:
        sys.exit(f"{path.name} has no {task.name}: write its `def` line, and a body such as `...`, where it belongs.")


def fill_in(path: Path, source: str, reference: Path, task: Task) -> tuple[str, list[str]]:
    """Return the learner's file with the reference's function in it, and the difference as lines."""
    find(path, source, task)
    mine, theirs = lines_of(source, task.name), lines_of(reference.read_text(encoding="utf-8"), task.name)
    label = f"{task.file}: {task.name}"
    diff = difflib.unified_diff(mine, theirs, f"yours, {label}", f"reference, {label}", n=100)
    return replaced(source, {task.name: theirs}), [line.rstrip("\n") for line in diff if not line.startswith("@@")]


def agreed() -> bool:
    """Ask at a terminal whether to fill in. Exit without one."""
    if not sys.stdin.isatty():
        sys.exit("Nothing is filled in: without a terminal, say --yes.")
    try:
        return input("Fill in? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False

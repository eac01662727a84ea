"""`python3 course.py start 05`: make my/05_paged_attention, the stage with its tasks left to write, and TASKS.md."""

import ast
import shutil
import sys
from pathlib import Path

from common.errors import InvalidInput
from common.stages import ROOT, stage_folder, stage_folders
from common.terminal import parser_of

from .blank import blank_stage, find_tasks, stage_before
from .code import definitions, read_files, replaced
from .stage_diff import read_sources
from .task_list import task_list


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Make the learner's folder. The first argument is the stage's folder, as course.py passes it."""
    options = parser_of("course.py start").parse_args(arguments)
    stage = reference_of(root, options.stage)
    folder = root / "my" / stage.name
    expect_free(folder, options.force)
    if options.complete:
        write_folder(folder, read_files(stage))
        print(f"Made my/{stage.name}, complete. The exercises are at the end of {stage.name}/README.md.")
        return 0
    files, tasks = blank_stage(stage), find_tasks(stage)
    if options.earlier:
        before = stage_before(stage)
        files, taken, left = take_over(files, read_sources(before), read_own(options.earlier, before, root))
        print(f"From {options.earlier}: {', '.join(taken) or 'nothing'}.")
        if left:
            print(f"Not taken over, since they use what only your files define: {', '.join(left)}.")
    write_folder(folder, files | {"TASKS.md": task_list(stage)})
    short = folder.relative_to(root).as_posix()
    print(f"Made {short} with {len(tasks)} tasks. Read {short}/TASKS.md and begin with {tasks[0].name}.")
    print(f"`python3 course.py check {stage.name[:2]}` says how far you are.")
    return 0


def reference_of(root: Path, name: str) -> Path:
    """Return the stage whose folder, or the learner's copy of it, this is. Exit if it is none."""
    for stage in stage_folders(root):
        if stage.name == Path(name).name.partition(".")[0]:
            return stage
    sys.exit(f"{name} has the name of no stage, so it is not clear which one it is.")


def own_folder(root: Path, name: str, stage: Path, options: str = "") -> Path:
    """Return the learner's folder: the one of this name, or my/STAGE for the reference's. Exit if it is not there."""
    given = (root / name).resolve()
    folder = given if given != stage.resolve() else root / "my" / stage.name
    if not folder.is_dir():
        sys.exit(f"There is no my/{stage.name}: make it with `python3 course.py start {stage.name[:2]}{options}`.")
    return folder


def write_folder(folder: Path, files: dict[str, str]) -> None:
    """Make the folder with these files, or on a full disk nothing. One of its name is kept, with a number."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, text in files.items():
        (partial / name).write_text(text, encoding="utf-8")
    set_aside(folder)
    partial.rename(folder)


def expect_free(folder: Path, force: bool) -> None:
    """Exit if a folder of my/ exists, unless it may be set aside."""
    if folder.exists() and not force:
        sys.exit(f"my/{folder.name} is there already. `--force` begins again and keeps it beside the new one.")


def set_aside(folder: Path) -> None:
    """Rename a folder, if it exists, to its name with the first free number."""
    if folder.exists():
        numbered = (folder.with_name(f"{folder.name}.{number}") for number in range(1, 1000))
        folder.rename(next(old for old in numbered if not old.exists()))


# ---- What the learner has written in the stage before ----


def read_own(name: str, before: Path, root: Path) -> dict[str, str]:
    """Return the files of a learner's stage, given as "my/04".

    Exit if there is none, if its number is another than that of the stage before, or if a file does not parse.
    """
    try:
        folder = stage_folder(name, root)
    except InvalidInput:
        sys.exit(f"There is no stage {name}.")
    if folder.name[:2].isdecimal() and folder.name[:2] != before.name[:2]:
        sys.exit(f"--from takes over your stage {before.name[:2]}, the one before, and {name} is another.")
    sources = read_sources(folder)
    try:
        for file in sources:
            definitions(sources[file])
    except SyntaxError as error:
        sys.exit(f"{folder / file}, line {error.lineno}: {error.msg}. Mend it and start again.")
    return sources


def take_over(
    files: dict[str, str], reference: dict[str, str], own: dict[str, str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Put the learner's functions into the new stage where it leaves the earlier reference as it was.

    files: the new stage; reference and own: the stage before. Return the files, and the names of what was taken over
    and of what uses names that only the learner's file defines, and so stays the reference.
    """
    result, taken, left = dict(files), [], []
    for file in files.keys() & reference.keys() & own.keys():
        was, now, mine = (definitions(text) for text in (reference[file], files[file], own[file]))
        extra, new = names_defined(own[file]) - names_defined(files[file]), {}
        for name in was.keys() & now.keys() & mine.keys():
            one, used = mine[name], names_used(mine[name].node)
            if one.is_class or was[name].code != now[name].code or one.code == now[name].code:
                continue  # a task of this stage, or the reference
            if "NotImplementedError" in used:
                continue  # never written
            if (used - names_used(now[name].node)) & extra:  # The names that the stage's own function uses will exist.
                left.append(name)
            else:
                new[name] = one.lines
        result[file] = replaced(files[file], new)
        taken += new
    return result, sorted(taken), sorted(left)


def names_defined(source: str) -> set[str]:
    """Return the names that a file imports, defines, or assigns, as variables or attributes."""
    imported = {node.asname or node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.alias)}
    defined = {name.rpartition(".")[2] for name in definitions(source)}
    return imported | defined | names(ast.parse(source), (ast.Name, ast.Attribute), ast.Store)


def names_used(function: ast.AST) -> set[str]:
    """Return the names and attributes that a function reads and does not itself assign."""
    return names(function, (ast.Name, ast.Attribute), ast.expr_context) - names(function, ast.Name, ast.Store)


def names(tree: ast.AST, kinds: type | tuple[type, ...], context: type) -> set[str]:
    """Return the names of variables and attributes in this context, such as `ast.Store`."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds) and isinstance(node.ctx, context)]
    return {node.id if isinstance(node, ast.Name) else node.attr for node in nodes}

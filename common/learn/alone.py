"""Each task by itself: the learner's folder with the reference in place of every other task.

So a milestone that needs several tasks says of one whether it is right, while the others are unwritten or wrong.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .blank import Task
from .code import read_files, replaced
from .milestones import Milestone
from .milestones.runner import Outcome, Runner
from .solve import written
from .start import ROOT, reference_of, write_folder


def missed_by(
    task: Task, runner: Runner, folder: Path, tasks: Sequence[Task], milestones: Sequence[Milestone]
) -> tuple[Milestone, Outcome] | None:
    """Return the first milestone that fails because of this task, with its outcome, or None."""
    with TemporaryDirectory() as temporary:
        alone, others = Path(temporary).resolve() / folder.name, [one for one in tasks if one != task]
        write_folder(alone, with_reference(folder, reference_of(ROOT, folder.name), others))
        for milestone in milestones:
            if task.name in milestone.tasks and (outcome := runner.run(alone, milestone)).what:
                return milestone, outcome
    return None


def with_reference(folder: Path, stage: Path, tasks: Sequence[Task]) -> dict[str, str]:
    """Return a learner's files in which these tasks are the reference's, and all other lines keep their numbers.

    A task's lines become one that compiles the function from the reference, whose file and lines a traceback names.
    """
    files = read_files(folder)
    for task in tasks:
        mine, theirs = written(folder, task), task.of(stage)
        indent, owner = theirs.node.col_offset, task.name.rpartition(".")[0]
        code = "".join(theirs.lines).replace("super()", f"super({owner}, self)")  # exec has no cell with the class.
        code = "\n" * (theirs.span.start - bool(indent)) + "if True:\n" * bool(indent) + code
        line = f"{' ' * indent}exec(compile({code!r}, {str(stage / task.file)!r}, 'exec'))\n"
        lines = [line, *["\n"] * (len(mine.lines) - 1)]
        files[task.file] = replaced(files[task.file], {task.name: lines})
    return files

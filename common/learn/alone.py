"""Each task by itself: the learner's folder with the reference in place of every other task.

So a milestone that needs several tasks says of one whether it is right, while the others are unwritten or wrong.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .blank import Task, functions, lines_of, replaced, span
from .milestones import Milestone
from .milestones.runner import Outcome, Runner
from .solve import find
from .start import ROOT, reference_of


def missed_by(
    task: Task, runner: Runner, folder: Path, tasks: Sequence[Task], milestones: Sequence[Milestone]
) -> tuple[Milestone, Outcome] | None:
    """Return the first milestone that a task of the folder is needed for and does not reach; None if it reaches all."""
    with TemporaryDirectory() as temporary:
        alone = Path(temporary).resolve() / folder.name
        alone.mkdir()
        for path in folder.glob("*.py"):
            others = [one for one in tasks if one != task and one.file == path.name]
            (alone / path.name).write_text(with_reference(path, reference_of(ROOT, folder.name), others), "utf-8")
        for milestone in milestones:
            if task.name in milestone.tasks and (outcome := runner.run(alone, milestone)).what:
                return milestone, outcome
    return None


def with_reference(path: Path, stage: Path, tasks: Sequence[Task]) -> str:
    """Return a learner's file in which these tasks are the reference's, and all other lines keep their numbers.

    A task's lines become one that compiles the function from the reference, whose file and lines a traceback names.
    """
    source, new = path.read_text(encoding="utf-8"), {}
    reference = (stage / path.name).read_text(encoding="utf-8") if tasks else ""
    for task in tasks:
        function, code = functions(reference)[task.name], "".join(lines_of(reference, task.name))
        if function.col_offset:  # in a class, whose name `super` looks up in a cell that there is none of
            owner = task.name.rpartition(".")[0]
            code = "if True:\n" + code.replace("super()", f"super({owner}, self)")
        code = "\n" * (span(function).start - bool(function.col_offset)) + code
        mine = span(find(path, source, task))
        one = f"{' ' * function.col_offset}exec(compile({code!r}, {str(stage / path.name)!r}, 'exec'))\n"
        new[task.name] = [one, *["\n"] * (mine.stop - mine.start - 1)]
    return replaced(source, new)

"""Each task by itself: the learner's folder with the reference in place of every other task.

So a milestone that needs several tasks says of one whether it is right, while the others are unwritten or wrong.
"""

from collections.abc import Sequence
from pathlib import Path

from .blank import Task, functions, span
from .milestones import Milestone
from .milestones.runner import Outcome, Runner
from .solve import find
from .start import ROOT, reference_of


class Alone:
    """Runs milestones on one task of a learner's folder at a time. temporary: where the other folders are made."""

    def __init__(
        self, runner: Runner, folder: Path, tasks: Sequence[Task], milestones: Sequence[Milestone], temporary: Path
    ):
        self.runner, self.folder, self.tasks, self.milestones = runner, folder, tasks, milestones
        self.stage, self.temporary = reference_of(ROOT, folder.name), temporary.resolve()

    def missed_by(self, task: Task) -> tuple[Milestone, Outcome] | None:
        """Return the first milestone that the task is needed for and does not reach; None if it reaches all."""
        alone = self.temporary / str(task.number) / self.folder.name
        alone.mkdir(parents=True)
        for path in self.folder.glob("*.py"):
            others = [one for one in self.tasks if one != task and one.file == path.name]
            (alone / path.name).write_text(with_reference(path, self.stage, others), encoding="utf-8")
        for milestone in self.milestones:
            if task.name in milestone.tasks and (outcome := self.runner.run(alone, milestone)).what:
                return milestone, outcome
        return None


def with_reference(path: Path, stage: Path, tasks: Sequence[Task]) -> str:
    """Return a learner's file in which these tasks are the reference's, and all other lines keep their numbers.

    A task's lines become one that compiles the function from the reference, whose file and lines a traceback names.
    """
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    reference = (stage / path.name).read_text(encoding="utf-8") if tasks else ""
    for task in tasks:
        function, where = functions(reference)[task.name], span(functions(reference)[task.name])
        code = "".join(reference.splitlines(keepends=True)[where])
        if function.col_offset:  # in a class, whose name `super` looks up in a cell that there is none of
            owner = task.name.rpartition(".")[0]
            code = "if True:\n" + code.replace("super()", f"super({owner}, self)")
        code = "\n" * (where.start - bool(function.col_offset)) + code
        mine = span(find(path, source, task))
        one = f"{' ' * function.col_offset}exec(compile({code!r}, {str(stage / path.name)!r}, 'exec'))\n"
        lines[mine] = [one, *["\n"] * (mine.stop - mine.start - 1)]
    return "".join(lines)

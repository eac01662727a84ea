"""Stages with a piece missing, or with the solution of an exercise."""

import shutil
from pathlib import Path

from common.learn.blank import Task, stage_before
from common.learn.code import read_files, replaced
from common.learn.patches import patched, read_hunks
from common.stages import ROOT

PATIENCE = 3  # times the seconds of each milestone, since the machine may be busy
SOLUTIONS = ROOT / "workshop" / "solutions"


def copy_entry_point(folder: Path) -> Path:
    """Copy course.py to a folder, with what it needs to set itself up and nothing else; return the folder."""
    shutil.copytree(ROOT / "common" / "setup", folder / "common" / "setup")
    shutil.copy(ROOT / "course.py", folder)
    (folder / "common" / "checkpoints").mkdir()
    for name in "stages.py errors.py terminal.py toml.py packages.py process.py checkpoints/packages.toml".split():
        shutil.copy(ROOT / "common" / name, folder / "common" / name)
    return folder


def patient(milestone):
    return milestone._replace(seconds=PATIENCE * milestone.seconds)


def solved(stage: Path, number: int) -> dict[str, str]:
    """Return the files of a stage with the solution of an exercise."""
    files = read_files(stage)
    for path in SOLUTIONS.glob(f"{stage.name[:2]}-{number}.patch"):
        for diff in path.read_text(encoding="utf-8").split("\n--- a/")[1:]:
            name = Path(diff.partition("\n")[0]).name
            files[name] = patched(files[name], read_hunks(diff), path.name)
    return files


def without(stage: Path, task: Task, body: str = "return None") -> dict[str, str]:
    """Return the reference's files with a line in place of the body of one task."""
    return with_body(stage, task, [" " * 4 * (1 + task.name.count(".")) + body + "\n"])


def as_before(stage: Path, task: Task) -> dict[str, str]:
    """Return the reference's files with one changed task as it was in the stage before."""
    was = task.of(stage_before(stage))
    return with_body(stage, task, was.file[was.body])


def with_body(stage: Path, task: Task, body: list[str]) -> dict[str, str]:
    """Return the reference's files with these lines as the body of one task."""
    files = read_files(stage)
    return files | {task.file: replaced(files[task.file], {task.name: body}, bodies=True)}


def edit(path: Path, was: str, now: str) -> None:
    """Write something else in place of a text that a file has once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(was) == 1
    path.write_text(text.replace(was, now), encoding="utf-8")

"""The lessons' exercises: the stage alone fails the check of each, and the solution passes it."""

import re
import subprocess
from pathlib import Path

import pytest

from common.learn import check
from common.learn.milestones import read_exercises
from common.learn.milestones.runner import Outcome
from common.learn.start import write_folder
from common.stages import ROOT, load_engine, stage_folders
from tests.helpers.engine_options import GREEDY
from tests.helpers.incomplete_stages import SOLUTIONS, patient, solved

STAGES = stage_folders()
EXERCISES = [  # Each has time enough on a busy machine.
    (stage, patient(exercise)) for stage in STAGES for exercise in read_exercises(stage.name[:2])
]

each_exercise = pytest.mark.parametrize(
    ("stage", "exercise"), EXERCISES, ids=lambda part: part.name[:2] if isinstance(part, Path) else str(part.number)
)


@pytest.fixture(scope="module")
def tokens(loaded, prompts) -> list[list[int]]:
    """The greedy tokens of stage 02 for some prompts."""
    return [request.token_ids for request in load_engine("02")(loaded).generate(prompts[:4], GREEDY)]


@pytest.mark.parametrize("patch", sorted(SOLUTIONS.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_solution_is_a_patch_that_git_applies_too(patch):
    """As workshop/solutions/README.md says; the course's own way does not look at the numbers of lines."""
    subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_lesson_names_the_check_of_each_exercise_that_has_one(stage):
    text, number = (stage / "README.md").read_text(encoding="utf-8"), stage.name[:2]
    named = re.findall(rf"`python3 course.py check {number} --exercise (\d)`", " ".join(text.split()))
    assert sorted({*map(int, named)}) == [exercise.number for exercise in read_exercises(number)]


@each_exercise
def test_the_stage_alone_fails_and_the_solution_passes_and_changes_no_token(
    stage, exercise, tmp_path, runner, loaded, prompts, tokens
):
    outcome = runner.run(stage, exercise)
    assert outcome.what and not re.match(r"\w+:|not written|the (check|process)|it ran", outcome.what), outcome
    folder = tmp_path / f"{stage.name}.exercise_{exercise.number}"  # a package is loaded once: each has its name
    write_folder(folder, solved(stage, exercise.number))
    assert runner.run(folder, exercise) == Outcome()
    engine = load_engine(folder)(loaded)
    assert [request.token_ids for request in engine.generate(prompts[:4], GREEDY)] == tokens
    engine.check()


def test_check_names_the_folder_the_failure_and_a_hint(root, capsys, loaded_once):
    stage, exercise = EXERCISES[0]
    arguments = [stage.name, "--exercise", str(exercise.number)]
    with pytest.raises(SystemExit, match="make it with `python3 course.py start 01 --complete`"):
        check.main(arguments, root)
    write_folder(root / "my" / stage.name, solved(stage, 0))
    assert check.main(arguments, root) == 1
    shown = capsys.readouterr().out
    assert f"failing  {exercise.number}  {exercise.title}" in shown and "A      r8  r9" in shown

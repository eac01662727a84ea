"""`grade`: the packages run as their services run them, and each planted mistake fails its own check."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.learn import grade
from common.learn.faults import FAULTS
from common.learn.milestones import read_milestones
from common.stages import stage_folders
from tests.helpers.incomplete_stages import edit

KEY = {"seed": 1, "patience": 3} | dict.fromkeys(("milestones", "hidden"), {"points": 5, "visibility": "visible"})
BARE = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COURSE_NO_VENV": "1"}
CLASSROOM = {"CLASSROOM": "c", "ASSIGNMENT": "a", "SUBMISSION_TAG": "submit/1", "COMMIT_URL": "u", "RELEASE_URL": "r"}
PAGES, SCHEDULER = "page_table.py", "scheduler.py"
WRITTEN = [  # what a file of stage 05 has, a mistake in its place, and the check that it fails first
    (PAGES, "-(-tokens // self.page_size)", "tokens // self.page_size", "Every page has one owner"),
    (PAGES, "self.free += reversed(table.pages)", "self.free += table.pages[1:]", "Every page has one owner"),
    (PAGES, "del table.pages[:]", "table.pages = []", "Every page has one owner"),
    (SCHEDULER, "appendleft(sequence.request)", "append(sequence.request)", "The youngest gives way"),
]


def titled(fault) -> str:
    return fault.caught_by.rpartition("::test_")[2].replace("_", " ").capitalize()


MISTAKES = [(one.stage, one.plant, titled(one)) for one in FAULTS if "_milestones.py" in one.caught_by]
MISTAKES += [
    ("05", lambda root, file=file, was=was, now=now: edit(root / "05_paged_attention" / file, was, now), title)
    for file, was, now, title in WRITTEN
]


def submitted(number: str, root: Path) -> Path:
    stage = next(one for one in stage_folders() if one.name.startswith(number))
    return shutil.copytree(stage, root / stage.name, ignore=shutil.ignore_patterns("results"))


def run(command: list[str], folder: Path, **variables: str) -> None:
    done = subprocess.run(command, cwd=folder, env=BARE | {"HOME": str(folder)} | variables, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("service", grade.SERVICES)
def test_the_reference_has_all_points_where_the_service_runs_it(tmp_path, service):
    package, submission = tmp_path / "source", tmp_path / "submission"
    assert grade.main(["02", "--for", service, "--out", str(package)]) == 0
    assert not [*package.rglob("0*_*/engine.py")], "no answers"
    submitted("02", submission / "my")
    count = len(read_milestones("02")) + 2
    if service == "gradescope":
        assert (tmp_path / "source.zip").exists()
        shutil.copy(package / "run_autograder", tmp_path)
        run(["bash", "run_autograder"], tmp_path)
        tests = json.loads((tmp_path / "results" / "results.json").read_text())["tests"]
        assert [(one["score"], one["max_score"], one["output"]) for one in tests] == [(10, 10, "")] * count
        assert {one["visibility"] for one in tests} == {"visible", "after_due_date"}
    else:
        run([sys.executable, str(package / "autograder.py")], submission, **CLASSROOM)
        result = json.loads((submission / "result.json").read_text())
        assert (result["score"], result["max-score"], len(result["tests"])) == (10 * count, 10 * count, count)
        assert result["schema"] == "classroom50/result/v1" and result["commit"] == result["review"] == "u"


@pytest.mark.parametrize(("number", "plant", "title"), MISTAKES)
def test_a_mistake_fails_its_own_check(loaded_once, tmp_path, number, plant, title):
    folder = submitted(number, tmp_path)
    plant(tmp_path)
    failed = [one for one in grade.grade(folder.name, tmp_path, KEY) if one.score < one.points]
    assert failed[0].title == title and "Happened: " in failed[0].output


def test_a_submission_without_code_and_code_that_asks_the_network(loaded_once, tmp_path):
    folder = submitted("02", tmp_path / "submission")
    assert {one.score for one in grade.grade(folder.name, tmp_path / "nothing", KEY)} == {0}
    engine = folder / "engine.py"
    engine.write_text(f"import socket\nsocket.create_connection(('192.0.2.1', 80))\n{engine.read_text()}")
    assert "no network while a stage is graded" in grade.grade(folder.name, tmp_path, KEY)[-1].output

"""`grade`: the packages run as their services run them, and a mistake fails its own check."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.learn import grade
from common.learn.milestones import read_milestones
from common.stages import stage_folder
from tests.helpers.incomplete_stages import edit

KEY = {"seed": 1, "patience": 3} | dict.fromkeys(("milestones", "hidden"), {"points": 5, "visibility": "visible"})
BARE = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COURSE_NO_VENV": "1"}
CLASSROOM = {"CLASSROOM": "c", "ASSIGNMENT": "a", "SUBMISSION_TAG": "submit/1", "COMMIT_URL": "u", "RELEASE_URL": "r"}


def submitted(root: Path) -> Path:
    stage = stage_folder("02")
    return shutil.copytree(stage, root / stage.name, ignore=shutil.ignore_patterns("results"))


def run(command: list[str], folder: Path, **variables: str) -> None:
    done = subprocess.run(command, cwd=folder, env=BARE | {"HOME": str(folder)} | variables, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("service", ["gradescope", "classroom50"])
def test_the_reference_has_all_points_where_the_service_runs_it(tmp_path, service):
    package, submission = tmp_path / "source", tmp_path / "submission"
    assert grade.main(["02", "--for", service, "--out", str(package)]) == 0
    assert not [*package.rglob("0*_*/engine.py")], "no answers"
    submitted(submission / "my")
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


def test_a_mistake_fails_its_own_check_and_code_that_asks_the_network_all(loaded_once, tmp_path):
    folder = submitted(tmp_path / "submission")
    assert {one.score for one in grade.grade(folder.name, tmp_path / "nothing", KEY)} == {0}
    edit(folder / "kv_cache.py", "self.k.nbytes + self.v.nbytes", "self.k.nbytes")
    failed, *others = grade.grade(folder.name, tmp_path, KEY)
    assert failed.title == "What a cache costs" and "Happened: " in failed.output
    assert failed.score == 0 and others[0].score == 5
    engine = folder / "engine.py"
    engine.write_text(f"import socket\nsocket.create_connection(('192.0.2.1', 80))\n{engine.read_text()}")
    assert "no network while a stage is graded" in grade.grade(folder.name, tmp_path, KEY)[-1].output

"""`grade`: the packages run as their services run them, and a mistake fails its own check."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from common.learn import grade
from common.learn.milestones import read_milestones
from common.stages import stage_folder
from tests.helpers.incomplete_stages import edit

KEY = {"seed": 1, "patience": 3} | dict.fromkeys(("milestones", "hidden"), {"points": 5, "visibility": "visible"})
BARE = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COURSE_NO_VENV": "1"}
COUNT = len(read_milestones("02")) + 2  # and two hidden checks
CLASSROOM = {"CLASSROOM": "c", "ASSIGNMENT": "a", "SUBMISSION_TAG": "submit/1", "COMMIT_URL": "u", "RELEASE_URL": "r"}


def submitted(root: Path) -> Path:
    stage = stage_folder("02")
    return shutil.copytree(stage, root / stage.name, ignore=shutil.ignore_patterns("results"))


def run(command: list[str], folder: Path, **variables: str) -> None:
    done = subprocess.run(command, cwd=folder, env=BARE | {"HOME": str(folder)} | variables, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_gradescope_gives_the_reference_all_points(tmp_path):
    package = tmp_path / "source"
    assert grade.main(["02", "--for", "gradescope", "--out", str(package)]) == 0
    assert not [*package.rglob("0*_*/engine.py")], "no answers"
    assert (tmp_path / "source.zip").exists()
    submitted(tmp_path / "submission" / "my")
    shutil.copy(package / "run_autograder", tmp_path)
    run(["bash", "run_autograder"], tmp_path)
    tests = json.loads((tmp_path / "results" / "results.json").read_text())["tests"]
    assert [(one["score"], one["max_score"], one["output"]) for one in tests] == [(10, 10, "")] * COUNT
    assert {one["visibility"] for one in tests} == {"visible", "after_due_date"}


def test_classroom_50_gives_nothing_for_nothing(tmp_path):
    package, submission = tmp_path / "package", tmp_path / "submission"
    submission.mkdir()
    assert grade.main(["02", "--for", "classroom50", "--out", str(package)]) == 0
    run([sys.executable, str(package / "autograder.py")], submission, **CLASSROOM)
    result = json.loads((submission / "result.json").read_text())
    assert (result["score"], result["max-score"], len(result["tests"])) == (0, 10 * COUNT, COUNT)
    assert "hand in all files" in result["tests"][0]["output"] and not result["tests"][0]["passed"]
    assert result["schema"] == "classroom50/result/v1" and result["commit"] == result["review"] == "u"


def test_a_mistake_fails_its_own_check_and_code_that_asks_the_network_all(loaded_once, tmp_path, monkeypatch):
    folder = submitted(tmp_path / "submission")
    edit(folder / "kv_cache.py", "self.k.nbytes + self.v.nbytes", "self.k.nbytes")
    failed, *others = grade.grade(folder.name, tmp_path, KEY)
    assert failed.title == "What a cache costs" and "Happened: " in failed.output
    assert failed.score == 0 and others[0].score == 5
    for name, value in CLASSROOM.items():
        monkeypatch.setenv(name, value)
    tests = grade.for_classroom50([failed, *others])["tests"]
    assert [(one["passed"], one["score"]) for one in tests[:2]] == [(False, 0), (True, 5)]
    engine = folder / "engine.py"
    engine.write_text(f"import socket\nsocket.create_connection(('192.0.2.1', 80))\n{engine.read_text()}")
    assert "no network while a stage is graded" in grade.grade(folder.name, tmp_path, KEY)[-1].output

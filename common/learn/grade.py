"""`python3 course.py grade --for gradescope 05`: write what a service needs to grade learners' stages 05.

The folder has the course without its stages, the instructor's key, and the program that the service starts. That
program copies a submission, runs the milestones on it and the checks of hidden.py, each with its time limit and without
a network, and writes the points. Learners' code shares a process with a check, so a program that sets out to deceive
the grader can: look at what passes.
"""

import json
import os
import secrets
import shutil
import sys
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from common.stages import ROOT, stage_folder
from common.terminal import parser_of, run_to_end
from common.toml import read_toml

from .bug import copy
from .milestones import EXERCISES, read_heads, read_milestones
from .milestones.runner import Outcome, Runner

HIDDEN = EXERCISES.with_name("hidden.py")
AUTOGRADERS = Path(__file__).resolve().with_name("autograders")  # a folder for each service, and key.toml


class Graded(NamedTuple):
    """One check of a submission. output: what was expected and what happened, "" if it is passed."""

    title: str
    output: str
    points: int
    visibility: str

    @property
    def score(self) -> int:
        return 0 if self.output else self.points


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    options = parser_of("course.py grade").parse_args(arguments)
    if options.run:
        key = read_toml(root / "key.toml")
        write = {"gradescope": for_gradescope, "classroom50": for_classroom50}[options.service]
        graded = grade(options.stage, options.run, key)
        options.out.write_text(json.dumps(write(graded), indent=2), encoding="utf-8")
        return 0
    stage = stage_folder(options.stage, root)
    if not read_milestones(stage.name[:2]):
        sys.exit(f"{stage.name} has no milestones: grade one from 02 on.")
    folder = options.out or Path(f"grade_{stage.name[:2]}_{options.service}")
    if folder.exists():
        sys.exit(f"{folder} is there already: choose another folder with --out, or remove it.")
    key = (
        (options.key or AUTOGRADERS / "key.toml").read_text(encoding="utf-8").replace("SEED", str(secrets.randbits(32)))
    )
    write_package(folder, stage.name, options.service, key, root)
    print(f"Made {folder}. Points, the seed and what a student sees are in {folder}/course/key.toml: keep a copy.")
    if options.service == "gradescope":
        archive = shutil.make_archive(str(folder), "zip", folder)
        print(f"Upload {archive}. Learners submit the files of their my/{stage.name}.")
    else:
        print(f"Copy its contents to CLASSROOM/autograders/ASSIGNMENT. Learners commit my/{stage.name}.")
    return 0


def write_package(folder: Path, stage: str, service: str, key: str, root: Path) -> None:
    """Write the course without the stages, which would be the answers, and the service's scripts."""
    course = folder / "course"
    for name in ("common", "tests"):
        copy(root / name, course / name)
    for name in ("course.py", "pyproject.toml", "requirements.txt"):
        shutil.copy2(root / name, course)
    (course / "key.toml").write_text(key, encoding="utf-8")
    for path in (AUTOGRADERS / service).iterdir():
        (folder / path.name).write_text(path.read_text(encoding="utf-8").replace("STAGE", stage), encoding="utf-8")
        (folder / path.name).chmod(0o755)


def grade(stage: str, submission: Path, key: dict[str, Any]) -> list[Graded]:
    """Return the outcome of every check on a copy of the submission. stage: the name of its folder."""
    engines = sorted(submission.resolve().rglob("engine.py"), key=lambda path: path.parent.name != stage)
    with TemporaryDirectory() as temporary, Runner(str(key["seed"])) as runner:
        folder, graded = Path(temporary).resolve() / stage, []
        folder.mkdir()
        for path in engines[0].parent.glob("*.py") if engines else ():
            shutil.copyfile(path, folder / path.name)
        for kind, checks in {"milestones": read_milestones(stage[:2]), "hidden": read_heads(HIDDEN)}.items():
            for one in checks:
                happened = Outcome("the submission has no engine.py: hand in all files of your stage")
                if engines:
                    happened = runner.run(folder, one._replace(seconds=one.seconds * key["patience"]))
                said = "\n".join(
                    filter(None, [f"Expected: {one.expected}\nHappened: {happened.what}", happened.picture])
                )
                graded.append(Graded(one.title, said if happened.what else "", **key[kind]))
    return graded


def for_gradescope(graded: list[Graded]) -> dict[str, Any]:
    """Return results.json, as Gradescope's specifications have it."""
    tests = [
        {"name": one.title, "score": one.score, "max_score": one.points}
        | {"output": one.output, "visibility": one.visibility}
        for one in graded
    ]
    return {"tests": tests, "stdout_visibility": "hidden"}


def for_classroom50(graded: list[Graded]) -> dict[str, Any]:
    """Return result.json, by the contract classroom50/result/v1; the runner adds the owner."""
    given, now = os.environ, datetime.now(timezone.utc)
    tests = [
        {"test-name": one.title, "passed": not one.output, "score": one.score, "max-score": one.points}
        | ({"output": one.output} if one.visibility == "visible" else {})
        for one in graded
    ]
    return {
        "schema": "classroom50/result/v1",
        "classroom": given["CLASSROOM"],
        "assignment": given["ASSIGNMENT"],
        "submission": given["SUBMISSION_TAG"],
        "commit": given["COMMIT_URL"],
        "release": given["RELEASE_URL"],
        "review": given.get("REVIEW_URL") or given["COMMIT_URL"],
        "datetime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(one.score for one in graded),
        "max-score": sum(one.points for one in graded),
        "tests": tests,
    }


if __name__ == "__main__":
    run_to_end(main)

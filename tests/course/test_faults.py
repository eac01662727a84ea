"""The zoo of bugs: every fault can be planted, and what a learner gets. `python -m common.learn.faults` tries all."""

import ast
import re
import sys
from pathlib import Path

import pytest

import course
from common.learn import bug
from common.learn.code import read_files
from common.learn.faults import FAULTS
from common.learn.first_failure import Ended
from common.learn.milestones import read_milestones
from common.learn.milestones.runner import Runner
from common.learn.start import write_folder
from common.setup.environment import python_of
from common.stages import stage_folder
from tests.helpers.incomplete_stages import patient


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.number))
def test_it_changes_the_code_and_has_all_that_a_learner_needs(fault):
    text = (course.ROOT / fault.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(fault.planted(text))) != ast.dump(ast.parse(text))
    assert fault.file.split("_")[0] == fault.stage or fault.file.startswith("common/"), "the learner gets no other file"
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|this repository, commit [0-9a-f]{7}", fault.source)
    assert len(fault.hints) == 2 and fault.difficulty in (1, 2, 3)
    compile(fault.reproduce, "reproduce.py", "exec")
    file, _, name = fault.caught_by.split()[0].partition("::")
    assert re.search(rf"^(def {name}\(|{name} = )", (course.ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


# ---- What a learner sees ----


def test_the_list_names_symptoms_and_no_places(capsys, root):
    assert bug.main([], root) == 0
    output = " ".join(capsys.readouterr().out.split())
    for fault in FAULTS:
        assert f"{fault.number} {fault.stage} {'*' * fault.difficulty} {' '.join(fault.symptom.split())}" in output
        assert fault.file not in output
    with pytest.raises(SystemExit, match="make it with `python3 course.py bug 22"):
        bug.main(["22", "--mended"], root)


def test_a_name_gets_one_fault_of_the_stage_and_others_get_others(capsys, root):
    given = set()
    for name in ("ada", "ben", "cem", "dana"):
        said = {bug.main(["--student", name, "--stage", "05", "--hint"], root) or capsys.readouterr().out for _ in "ab"}
        given |= said
        assert len(said) == 1
    assert len(given) > 1 and given <= {f"{one.hints[0]}\n" for one in FAULTS if one.stage == "05"}


@pytest.mark.parametrize(("number", "no_venv"), [(4, ""), (22, "1")], ids=["common", "stage, without .venv"])
def test_a_folder_has_the_fault_and_does_not_say_where(capsys, root, monkeypatch, number, no_venv):
    monkeypatch.setenv("COURSE_NO_VENV", no_venv)
    [fault] = [one for one in FAULTS if one.number == number]
    folder, python = (
        root / "my" / f"bug_{number:02}",
        sys.executable if no_venv else python_of(Path(".venv")).as_posix(),
    )
    bug.main([str(number)], root)
    output = capsys.readouterr().out
    for text in (output, (folder / "reproduce.py").read_text(encoding="utf-8")):
        assert f" {python} my/bug_{number:02}/reproduce.py" in text
    assert Path(fault.file).name not in output
    reference = (course.ROOT / fault.file).read_text(encoding="utf-8")
    assert (folder / fault.file).read_text(encoding="utf-8") == fault.planted(reference)
    assert {path.name for path in folder.iterdir()} == {"common", bug.stage_name(fault, root), "reproduce.py"}
    with pytest.raises(SystemExit, match="is there already"):
        bug.main([str(number)], root)
    for arguments, said in (["--hint"], fault.hints[0]), (["--hint", "2"], fault.hints[1]), (["--reveal"], fault.link):
        bug.main([str(number), *arguments], root)
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "fault", [one for one in FAULTS if "_milestones.py" in one.caught_by], ids=lambda one: one.stage
)
def test_the_milestone_that_a_fault_names_fails(tmp_path, loaded_once, fault):
    name = fault.caught_by.rpartition("::")[2]
    [milestone] = [one for one in read_milestones(fault.stage) if one.name == name]
    folder = stage_folder(fault.stage)
    write_folder(tmp_path / folder.name, read_files(folder))
    fault.plant(tmp_path)
    with Runner() as runner:
        assert runner.run(tmp_path / folder.name, patient(milestone)).what


def test_a_fault_is_caught_until_it_is_mended(capsys, root, monkeypatch):
    """What mends it must break nothing else: the contract is asked, too; here for one of its promises, which the engine
    breaks. The fault lies in common/, and the engine in the stage: both are the learner's."""
    monkeypatch.setattr(bug, "CONTRACT", ["tests/test_contract.py", "-k", "reports_what_changed"])
    bug.main(["4"], root)
    [fault] = [one for one in FAULTS if one.number == 4]
    folder = root / "my" / "bug_04"

    def assert_says(said: str, status: int) -> None:
        capsys.readouterr()
        assert bug.main(["4", "--mended"], root) == status
        assert re.search(said, capsys.readouterr().out.strip())

    assert_says(r"still wrong\. The test: assert \[1\.0, ", 1)
    (folder / fault.file).write_bytes((course.ROOT / fault.file).read_bytes())
    with (folder / bug.stage_name(fault, root) / "engine.py").open("a", encoding="utf-8") as engine:
        engine.write("\nEngine.add = None\n")
    assert_says("'NoneType' object is not callable$", 1)
    monkeypatch.setattr(bug, "run_tests", lambda *_: Ended(0, "", []))
    assert_says(r"^Mended\.", 0)

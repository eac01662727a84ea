"""The zoo of bugs: every fault can be planted, and what a learner gets. `python -m common.learn.faults` tries all."""

import ast
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

import course
from common.learn import bug
from common.learn.faults import FAULTS
from common.learn.first_failure import CONTRACT, Ended
from common.setup.environment import python_of


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.number))
def test_it_changes_the_code_and_has_all_that_a_learner_needs(fault):
    text = (course.ROOT / fault.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(fault.planted(text))) != ast.dump(ast.parse(text))
    assert fault.file.split("_")[0] == fault.stage or fault.file.startswith("common/"), "the learner gets no other file"
    assert len(fault.hints) == 2
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
    given = []
    for name in ("ada", "ada", "ben", "cem", "dana"):
        bug.main(["--student", name, "--stage", "05", "--hint"], root)
        given.append(capsys.readouterr().out)
    assert given[0] == given[1] and len({*given}) > 1
    assert {*given} <= {f"{one.hints[0]}\n" for one in FAULTS if one.stage == "05"}


def test_a_folder_has_the_fault_and_does_not_say_where(capsys, root, monkeypatch):
    monkeypatch.setenv("COURSE_NO_VENV", "")
    [fault] = [one for one in FAULTS if one.number == 22]
    folder = root / "my" / "bug_22"
    bug.main(["22"], root)
    output = capsys.readouterr().out
    for text in (output, (folder / "reproduce.py").read_text(encoding="utf-8")):
        assert f" {python_of(Path('.venv')).as_posix()} my/bug_22/reproduce.py" in text
    assert Path(fault.file).name not in output
    reference = (course.ROOT / fault.file).read_text(encoding="utf-8")
    assert (folder / fault.file).read_text(encoding="utf-8") == fault.planted(reference)
    assert {path.name for path in folder.iterdir()} == {"common", bug.stage_name(fault, root), "reproduce.py"}
    with pytest.raises(SystemExit, match="is there already"):
        bug.main(["22"], root)
    for option, said in (("--hint=1", fault.hints[0]), ("--hint=2", fault.hints[1]), ("--reveal", fault.link)):
        bug.main(["22", option], root)
        assert said in capsys.readouterr().out


def test_a_fault_is_caught_until_it_is_mended(capsys, root, monkeypatch):
    """What mends it must break nothing else: the contract is asked, too."""
    bug.main(["4"], root)
    [fault] = [one for one in FAULTS if one.number == 4]

    def assert_says(said: str, status: int) -> None:
        capsys.readouterr()
        assert bug.main(["4", "--mended"], root) == status
        assert said in capsys.readouterr().out

    assert_says("still wrong. The test: assert [1.0, ", 1)
    passed, hung = Ended(0, "", []), Ended(1, "", ["it hangs"])
    monkeypatch.setattr(bug, "run_tests", run := Mock(side_effect=[passed, hung, passed, passed]))
    assert_says("still wrong. The test: it hangs", 1)
    contract = [*CONTRACT, "--engine", bug.stage_name(fault, root)]
    assert [call.args[1] for call in run.call_args_list] == [fault.caught_by.split(), contract]
    assert_says("Mended.", 0)

"""The zoo of bugs: every fault can be planted, and what a learner gets. `python -m common.learn.faults` tries all."""

import ast
import re
import sys
from pathlib import Path

import pytest

import course
from common.learn import bug
from common.learn.faults import FAULTS
from common.learn.faults import __main__ as every
from common.setup.environment import python_of

TABLE = (course.ROOT / "common/learn/faults/caught.md").read_text(encoding="utf-8")
by_number = {fault.number: fault for fault in FAULTS}
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.number))


def test_a_number_that_no_bug_has_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["faults", "1", "99"])
    with pytest.raises(SystemExit) as refused:
        every.main()
    assert refused.value.code == 2 and "there is no bug 99: they are numbered 1 to 60" in capsys.readouterr().err


# ---- The entries ----


@each_fault
def test_it_changes_the_code_and_has_all_that_a_learner_needs(fault):
    text = (course.ROOT / fault.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(fault.planted(text))) != ast.dump(ast.parse(text))
    assert fault.file.split("_")[0] == fault.stage or fault.file.startswith("common/"), "the learner gets no other file"
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|this repository, commit [0-9a-f]{7}", fault.source)
    assert len(fault.hints) == 2 and fault.difficulty in (1, 2, 3)
    compile(fault.reproduce, "reproduce.py", "exec")
    file, _, name = fault.caught_by.split()[0].partition("::")
    assert re.search(rf"^(def {name}\(|{name} = )", (course.ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    [(stage, symptom)] = re.findall(rf"^\| {fault.number} \| (\d\d) \| (.+?) \| `.+` \| \d+ \|$", TABLE, re.MULTILINE)
    assert (stage, symptom) == (fault.stage, fault.symptom), "run `python -m common.learn.faults NUMBER --write`"


# ---- What a learner sees ----


def test_the_list_names_symptoms_and_no_places(capsys, root):
    assert bug.main([], root) == 0
    output = " ".join(capsys.readouterr().out.split())
    for fault in FAULTS:
        assert f"{fault.number} {fault.stage} {'*' * fault.difficulty} {' '.join(fault.symptom.split())}" in output
        assert fault.file not in output


@pytest.mark.parametrize(("number", "no_venv"), [(4, ""), (22, "1")], ids=["common", "stage, without .venv"])
def test_a_folder_has_the_fault_and_does_not_say_where(capsys, root, monkeypatch, number, no_venv):
    monkeypatch.setenv("COURSE_NO_VENV", no_venv)
    fault = by_number[number]
    bug.main([str(number)], root)
    output = capsys.readouterr().out
    folder = root / "my" / f"bug_{number:02}"
    for text in (output, (folder / "reproduce.py").read_text(encoding="utf-8")):
        python = sys.executable if no_venv else python_of(Path(".venv")).as_posix()
        assert f" {python} my/bug_{number:02}/reproduce.py" in text
    assert "reproduce.py fails" in " ".join(output.split())
    assert Path(fault.file).name not in output
    reference = (course.ROOT / fault.file).read_text(encoding="utf-8")
    assert (folder / fault.file).read_text(encoding="utf-8") == fault.planted(reference)
    assert {path.name for path in folder.iterdir()} == {"common", bug.stage_name(fault, root), "reproduce.py"}
    with pytest.raises(SystemExit, match="is there already"):
        bug.main([str(number)], root)


def test_hints_and_the_story(capsys, root):
    fault = by_number[22]
    for arguments, said in ((["--hint"], fault.hints[0]), (["--hint", "2"], fault.hints[1])):
        bug.main(["22", *arguments], root)
        assert capsys.readouterr().out.strip() == said
    bug.main(["22", "--reveal"], root)
    output = capsys.readouterr().out
    assert "https://github.com/inference-sim/inference-sim/issues/502" in output
    assert "\n-        return -(-tokens // self.page_size)\n+        return tokens // self.page_size + 1\n" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["99"], "There is no bug 99"), (["22", "--mended"], "make it with `python3 course.py bug 22`")],
)
def test_what_is_not_there_is_said(root, arguments, says):
    with pytest.raises(SystemExit, match=says):
        bug.main(arguments, root)


# ---- Planted and caught ----


def test_a_fault_is_caught_until_it_is_mended(capsys, root, monkeypatch):
    """What mends it must break nothing else: the contract is asked, too; here for one of its promises, which the engine
    breaks. The fault lies in common/, and the engine in the stage: both are the learner's."""
    passed, ended, run_tests = bug.Outcome(0, "", ""), [], bug.run_tests

    def noted(tree, arguments, python):
        run = not is_mended or "--engine" in arguments  # that its test passes without the fault, the suite shows
        ended.append(run_tests(tree, arguments, python) if run else passed)
        return ended[-1]

    monkeypatch.setattr(bug, "run_tests", noted)
    monkeypatch.setattr(bug, "CONTRACT", ["tests/test_contract.py", "-k", "id_in_use"])
    fault, is_mended = by_number[4], False
    bug.main(["4"], root)
    folder = root / "my" / "bug_04"
    capsys.readouterr()
    assert bug.main(["4", "--mended"], root) == 1
    is_mended = True
    engine = folder / bug.stage_name(fault, root) / "engine.py"
    engine.write_text(f"{engine.read_text(encoding='utf-8')}\nEngine.add = None\n", encoding="utf-8")
    assert bug.main(["4", "--mended"], root) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "still wrong. The test: assert [1.0, " in first and second.endswith("'NoneType' object is not callable")
    assert [one.status for one in ended] == [1, 0, 1] and "id_in_use" in ended[-1].failed
    monkeypatch.setattr(bug, "run_tests", lambda *_, **__: passed)
    assert bug.main(["4", "--mended"], root) == 0
    assert capsys.readouterr().out.startswith("Mended.")

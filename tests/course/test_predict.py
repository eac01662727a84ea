"""`course.py predict`: questions are asked or answered by options, then measured, and shown in a table and a plot."""

import builtins
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.bench.compare.sources import results_files
from common.learn import predict, predict_report
from common.learn.predictions import Found, Question
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import ROOT, stage_folders
from tests.helpers.measured_here import measure_here, shrink_products

NUMBERS = [folder.name[:2] for folder in stage_folders()]

each_stage = pytest.mark.parametrize("number", NUMBERS)


# ---- From guesses to results ----


@pytest.mark.parametrize("number", [pytest.param(each, marks=[pytest.mark.ray] * (each == "08")) for each in NUMBERS])
def test_a_class_without_a_terminal_gets_table_plot_and_file(number, tmp_path, capsys, monkeypatch):
    """All questions but the first are answered, by options; the benchmark runs, on tiny sizes."""
    shrink_products(monkeypatch)
    if number != "06":  # one goes the whole way
        monkeypatch.setattr(predict, "run_process", measure_here)
    predictions = predict.predictions_of(number)._replace(size_set="tiny")
    sizes, (_, *others) = predictions.sizes, predictions.questions
    options = [f"--{one.name}={','.join(['1.5'] * one.count(sizes))}" for one in others]
    monkeypatch.setattr(sys, "stdin", io.StringIO("must not be read\n"))
    assert predict.main([number, "--sizes", "tiny", "--out", str(tmp_path), *options]) == 0
    printed = capsys.readouterr()
    [path] = tmp_path.glob(f"*-predict-{number}.json")
    document = json.loads(path.read_text())
    assert [one["guess"] for one in document["questions"]] == [None, *([1.5] * one.count(sizes) for one in others)]
    for question, result in zip(predictions.questions, document["questions"], strict=True):
        assert len(result["arithmetic"]) == len(result["measured"]) == question.count(sizes)
        assert result["title"] in printed.out and min(result["measured"]) >= 0
        if (number, question.name) in {("01", "tokens"), ("02", "memory"), ("08", "handoff")}:
            assert result["measured"] == result["arithmetic"], "what is counted is exact"
    png = path.with_suffix(".png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 1600
    assert all(side in printed.err for side in predictions.benchmark.sides), "progress"
    assert results_files(tmp_path) == [], "`compare` leaves them alone"


def test_a_side_that_fails_is_a_sentence(tmp_path, monkeypatch):
    problem = ({}, "05_paged_attention could not be measured: its process ended with 1")
    monkeypatch.setattr(predict, "run_process", lambda *_: problem)
    with pytest.raises(SystemExit, match="could not be measured: its process ended with 1.$"):
        predict.main(["05", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def results(drift: float = 0.1) -> list[dict]:
    config = read_config(find_checkpoint(None, with_weights=True))
    found = Found({"at": [2, 8]}, {}, config, torch.float32)
    number = Question("fit", "Requests", "How many?", "", "requests", lambda _: 12_000.0, lambda _: 11_900.0)
    values = lambda _: [1.0, 2.0], lambda _: [0.5, 3.0]
    curve = Question("cost", "Cost", "?", "", "times", *values, lambda sizes: sizes["at"], "tokens")
    return [number.result(found, [3.0], drift), curve.result(found, None, drift)]


def test_the_table_has_a_row_for_each_number():
    rows, _, reasons = predict_report.table({"questions": results(), "reference_ms": [4.0, 6.0]}).partition("\n\n")
    assert reasons.startswith(
        "The machine's speed changed by 50% meanwhile. Close other programs, and measure again.\n"
    )
    assert predict_report.steadiness([4.0, 4.4]) == "The machine's speed changed by 10% meanwhile."
    assert reasons.splitlines()[1] == "Requests: Arithmetic and measurement agree within 10%."
    assert "Cost: At 2 tokens it is less than arithmetic says, 0.5 against 1. That is not expected" in reasons
    assert results(drift=0.5)[1]["why"].endswith("That says nothing: the machine's own speed changed by more.")
    assert [row.split() for row in rows.splitlines()] == [
        ["guess", "arithmetic", "measured"],
        ["Requests", "(requests)", "3", "12,000", "11,900"],
        ["Cost", "(times)"],
        ["2", "tokens", "-", "1", "0.5"],
        ["8", "tokens", "-", "2", "3"],
    ]
    assert predict_report.how_close(results()) == "arithmetic is right within 10% in 1 of 2, the guess in 0"


# ---- Asking ----


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that types lines at the terminal; what is left at the end was never asked for."""
    typed: list[str] = []

    def type_line(prompt: str = "") -> str:
        print(prompt)
        if not typed:
            raise EOFError
        return typed.pop(0)

    monkeypatch.setattr(builtins, "input", type_line)
    return typed


def ask_stage_05(given: dict | None = None) -> dict:
    return predict.ask_all(predict.predictions_of("05"), given or {})


def test_a_bad_answer_is_told_what_is_wrong_and_asked_again(terminal, capsys):
    terminal += ["many", "-3", "12", "4, 5", "4, 15, 40", ""]
    assert ask_stage_05() == {"fit": [12.0], "waste": [4.0, 15.0, 40.0]} and terminal == []
    printed = capsys.readouterr().out
    assert "'many' is not a number from 0 up: write it like 12 or 3.5." in printed and "'-3' is not" in printed
    assert "'4, 5' has 2 values: give 3, separated by commas." in printed
    assert "percent, at 16, 64, 256 tokens in a page: " in printed and "Known: Prompts have 16 to 256 tokens" in printed


def test_what_is_given_is_not_asked_and_the_end_of_input_is_no_guess(terminal):
    terminal += ["7"]
    assert ask_stage_05({"waste": [1.0, 2.0, 3.0]}) == {"waste": [1.0, 2.0, 3.0], "fit": [7.0]}


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e999", "1,2", "1.2.3", "12 %", "-0.1"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="is not a number|has 2 values: give one number"):
        predict.parse(text, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["05", "--fit", "many"], "--fit: 'many' is not a number from 0 up: write it like 12 or 3.5."),
        (["05", "--waste", "3"], "--waste: '3' has 1 value: give 3, separated by commas."),
        (["09"], "There is no stage '09'"),
        (["my/predict_05"], "`predict` measures the course's own stages"),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(arguments, sentence, tmp_path, monkeypatch):
    if arguments[0].startswith("my/"):
        (tmp_path / "engine.py").touch()
        arguments = [str(tmp_path)]
    with pytest.raises(SystemExit) as stop:
        predict.main(arguments)
    assert str(stop.value).startswith(sentence)


@each_stage
def test_help_lists_the_questions_and_shows_how_to_answer_them(number, capsys):
    with pytest.raises(SystemExit) as stop:
        predict.main([number, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and f"python3 course.py predict {number} --" in text
    predictions = predict.predictions_of(number)
    for question in predictions.questions:
        assert f"--{question.name} " in text and question.ask.format(**predictions.sizes) in text


def start(*arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen:
    command = [sys.executable, "-m", "common.learn.predict", *arguments]
    pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def interrupt(process: subprocess.Popen) -> str:
    """Send what Ctrl-C sends, and return what was printed; the process ends as it should."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.endswith("Interrupted: nothing is written.\n")
    assert "Traceback" not in errors
    return output


def has_torch(process: str) -> bool:
    """Return whether it runs and has imported torch: it measures, then, or is about to."""
    try:
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_control_c_ends_what_measures_and_writes_nothing(tmp_path):
    process = start("02", "--sizes", "tiny", "--out", str(tmp_path))
    assert "01_naive (1 of 2" in process.stderr.readline()
    children_of = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    children: list[str] = []
    while not any(has_torch(child) for child in children):  # the line is printed before the side's process starts
        assert process.poll() is None
        children = children_of.read_text().split()
    assert interrupt(process) == "" and list(tmp_path.iterdir()) == []
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


@pytest.mark.skipif(os.name == "nt", reason="POSIX terminals")
def test_control_c_at_a_question_ends_quietly():
    terminal, stdin = os.openpty()
    process = start("05", stdin=stdin)
    assert process.stdout.readline().startswith("05_paged_attention: 3 questions, then about")
    os.write(terminal, b"many\n")
    while "is not a number" not in process.stdout.readline():
        assert process.poll() is None
    interrupt(process)
    os.close(terminal)
    os.close(stdin)

"""`course.py predict`: questions are asked or answered by options, then measured, and shown in a table and a plot."""

import builtins
import io
import json
import sys
from importlib import import_module
from unittest.mock import Mock

import pytest

from common.bench import plots, suite
from common.bench.compare.sources import results_files
from common.learn import predict
from common.learn.questions import read_questions, result
from common.stages import stage_folders
from tests.helpers.measured_here import measure_here, shrink_measurements

STAGES = stage_folders()
STAGE_02, STAGE_05 = STAGES[1], STAGES[4]


def benchmark_of(stage):
    return import_module(f"{stage.name}.benchmark").BENCHMARK


def questions_of(stage, size_set: str = "predict", model: str | None = None):
    return read_questions(stage, benchmark_of(stage).sizes_of(size_set), model)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name[:2])
def test_each_question_finds_its_figures_and_a_right_guess_lies_on_what_is_drawn(stage, tmp_path, monkeypatch):
    """In the committed result, whose document has the form of one that `predict` measures."""
    document = json.loads((stage / "results/cpu-amd-epyc-2-cores.json").read_text(encoding="utf-8"))
    sizes = document["sizes"]
    sizes["compared_answer"] = sizes.get("answers", [0])[-1]  # the longest, as among predict's sizes
    questions = read_questions(stage, sizes)
    right = [result(one, document, None)["measured"] for one in questions]
    document["questions"] = [result(*both) for both in zip(questions, [document] * len(right), right, strict=True)]
    drawn, mark_guesses = {}, plots.mark_guesses

    def spy(figure, document):
        for panel in figure.axes:
            points = [pair for line in panel.get_lines() for pair in line.get_xydata().tolist()]
            drawn[panel.get_title("left")] = points + [[i, bar.get_height()] for i, bar in enumerate(panel.patches)]
        mark_guesses(figure, document)

    monkeypatch.setattr(plots, "mark_guesses", spy)
    monkeypatch.setattr(plots, "DPI", plots.DPI / 4)  # All pixels would double the time of the test.
    benchmark_of(stage).draw(document, tmp_path / "plot.png")
    for found in document["questions"]:
        assert len(found["arithmetic"]) == len(found["measured"]) == len(found["at"]) == len(found["marks"]) > 0
        for mark in found["marks"]:
            assert any([mark["x"], mark["y"]] == pytest.approx(point, rel=1e-4) for point in drawn[mark["panel"]])
    assert 0 < benchmark_of(stage).seconds["predict"] <= 60


def test_a_class_without_a_terminal_gets_table_plot_and_file(tmp_path, capsys, monkeypatch):
    """All questions but the first are answered, by options."""
    shrink_measurements(monkeypatch)
    monkeypatch.setattr(suite, "run_process", measure_here)
    monkeypatch.setattr(sys, "stdin", io.StringIO("must not be read\n"))
    monkeypatch.setitem(predict.SIZES, None, "tiny")
    questions = questions_of(STAGE_02, "tiny")
    guesses = [None, *([1.5] * len(one["at"]) for one in questions[1:])]
    options = [f"--{one['name']}={','.join('1.5' for _ in one['at'])}" for one in questions[1:]]
    assert predict.main(["02", "--out", str(tmp_path), *options]) == 0
    printed = capsys.readouterr()
    [path] = tmp_path.glob("*-predict-02.json")
    document = json.loads(path.read_text())
    assert [one["guess"] for one in document["questions"]] == guesses
    assert [len(one["marks"]) for one in document["questions"]] == [len(guess or []) for guess in guesses]
    assert all(question["title"] in printed.out for question in questions)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and str(path) in printed.out
    assert all(side in printed.err for side in benchmark_of(STAGE_02).sides), "progress"
    assert results_files(tmp_path) == [], "`compare` leaves them alone"


def test_a_real_model_is_measured_with_its_own_sizes_and_a_side_that_fails_is_a_sentence(tmp_path, monkeypatch, capsys):
    assert all(questions_of(stage, "large", "smollm2") for stage in STAGES[:-1])
    shrink_measurements(monkeypatch)
    run_process = Mock(return_value=({}, "its process ended with 1"))
    monkeypatch.setattr(suite, "run_process", run_process)
    assert predict.main(["02", "--model", "smollm2", "--out", str(tmp_path)]) == 1
    assert "02_kv_cache failed: its process ended with 1\n" in capsys.readouterr().err
    _, settings, size_set, _ = run_process.call_args_list[0].args
    assert (settings.model, settings.dtype, size_set) == ("smollm2", "float32", "large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("measured", "slowest", "counted", "says"),
    [
        ([10, 2], 1.1, False, "It is more than arithmetic says, 2 against 1. High."),
        ([9.1, 1], 1.1, False, "agree within"),
        ([10, 1.2], 1.25, False, "the machine's own speed changed by more."),
        ([10, 1], 2.5, False, "The machine was not steady, so this figure says nothing."),
        ([10, 2], 2.5, True, "2 against 1. High."),
    ],
)
def test_why_a_figure_is_not_what_arithmetic_says(measured, slowest, counted, says):
    """On an unsteady machine neither agreement nor difference counts, except for figures that need no clock."""
    texts = {"name": "", "panel": "", "unit": "times", "x": "", "less": "Low.", "more": "High."}
    question = texts | {"at": [2, 8], "counted": counted, "measured": "measured", "arithmetic": "arithmetic"}
    figures = {"arithmetic": [10, 1], "measured": measured, "reference_ms": [{"side": [1.0, slowest]}]}
    assert says in result(question, figures, None)["why"]


# ---- Asking ----


def test_a_bad_answer_is_told_what_is_wrong_and_asked_again(monkeypatch, capsys):
    """A guess that is given is not asked for, and the end of the input is no guess."""
    typed = Mock(side_effect=["many", "-3", "12", "4, 5", "4, 15, 40", EOFError])
    monkeypatch.setattr(builtins, "input", typed)
    questions = questions_of(STAGE_05)
    assert predict.ask_all(questions, {}) == {"fit": [12.0], "waste": [4.0, 15.0, 40.0], "throughput": None}
    printed, asked = capsys.readouterr().out, [call.args[0] for call in typed.call_args_list]
    assert "'many' is not a number from 0 up: write it like 12 or 3.5." in printed and "'-3' is not" in printed
    assert "'4, 5' has 2 values: give 3, separated by commas." in printed
    assert "   percent, at 16, 64, 256 tokens in a page: " in asked and "Known: Each length of a prompt" in printed
    typed.side_effect = ["", "2"]
    given = {"waste": [1.0] * 3}
    assert predict.ask_all(questions, given) == given | {"fit": None, "throughput": [2.0]}

"""`course.py predict`: questions are asked or answered by options, then measured, and shown in a table and a plot."""

import builtins
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from common.acceleration.accelerate import make_engine
from common.bench import plots, suite
from common.bench.compare.sources import results_files
from common.bench.load import running_server
from common.bench.settings import Settings
from common.errors import InvalidInput
from common.learn import predict
from common.learn.questions import Question, read_questions, result, table
from common.loader import load_model
from common.stages import load_stage_module, stage_folder, stage_folders
from tests.helpers.measured_here import measure_here, shrink_measurements
from tests.helpers.serving_stage_03 import engine_module, serving

NUMBERS = [folder.name[:2] for folder in stage_folders()]


def benchmark_of(number: str):
    return import_module(f"{stage_folder(number).name}.benchmark").BENCHMARK


def questions_of(number: str, size_set: str = "predict") -> list[Question]:
    return read_questions(stage_folder(number), benchmark_of(number).sizes_of(size_set))


# ---- From guesses to results ----


@contextmanager
def serve_here_but_one(stage: str, settings: Settings, *options: str) -> Iterator[str]:
    """Stand in for `running_server`, which starts stage 02's server, in stage 03's benchmark."""
    if stage == "03_streaming":
        with serving(engine_module.Engine(settings.load())) as service:
            yield service.url
    else:
        with running_server(stage, settings, *options) as url:
            yield url


def local_fleet(model: dict, options: list[dict], *_):
    """Stand in for stage 08's RayFleet: workers that load the model themselves, in this process."""
    fleet, engine = (load_stage_module("08", name) for name in ("fleet", "engine"))
    loaded = load_model(**model)
    return fleet.LocalFleet([partial(make_engine, engine.WorkerEngine, loaded, **each) for each in options])


@pytest.mark.parametrize("number", NUMBERS)
def test_a_class_without_a_terminal_gets_table_plot_and_file(number, tmp_path, capsys, monkeypatch):
    """All questions but the first are answered, by options; and a guess that is right lies on what is drawn."""
    shrink_measurements(monkeypatch)
    monkeypatch.setattr(suite, "run_process", measure_here)
    monkeypatch.setattr("03_streaming.benchmark.running_server", serve_here_but_one)
    monkeypatch.setitem(sys.modules, "08_disaggregated.ray_fleet", SimpleNamespace(RayFleet=local_fleet))
    ticking = SimpleNamespace(perf_counter=count(step=0.1).__next__)  # stage 08's load takes a second, of ten steps
    monkeypatch.setattr("08_disaggregated.benchmark.time", ticking)
    drawn, mark_guesses = {}, plots.mark_guesses

    def spy(figure, document):
        for panel in figure.axes:
            points = [pair for line in panel.get_lines() for pair in line.get_xydata().tolist()]
            drawn[panel.get_title("left")] = points + [[i, bar.get_height()] for i, bar in enumerate(panel.patches)]
        mark_guesses(figure, document)

    monkeypatch.setattr(plots, "mark_guesses", spy)
    monkeypatch.setattr(plots, "DPI", plots.DPI / 4)  # the rest of the pixels take as long as what they show
    monkeypatch.setattr(sys, "stdin", io.StringIO("must not be read\n"))
    _, *others = questions = questions_of(number, "tiny")
    options = [f"--{one['name']}={','.join('1.5' for _ in one['at'])}" for one in others]
    with pytest.raises(SystemExit):
        predict.main([number, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"python3 course.py predict {number} --" in told
    assert all(f"--{one['name']} " in told and one["ask"] in told for one in questions_of(number))
    assert predict.main([number, "--sizes", "tiny", "--out", str(tmp_path), *options]) == 0
    printed = capsys.readouterr()
    [path] = tmp_path.glob(f"*-predict-{number}.json")
    document = json.loads(path.read_text())
    assert [one["guess"] for one in document["questions"]] == [None, *([1.5] * len(one["at"]) for one in others)]
    assert [len(one["marks"]) for one in document["questions"]] == [0, *(len(one["at"]) for one in others)]
    for question, found in zip(questions, document["questions"], strict=True):
        assert len(found["arithmetic"]) == len(found["measured"]) == len(found["at"]) and min(found["measured"]) >= 0
        for mark in result(question, document, found["measured"])["marks"]:
            assert any([mark["x"], mark["y"]] == pytest.approx(point, rel=1e-4) for point in drawn[mark["panel"]])
        assert found["title"] in printed.out
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and str(path) in printed.out
    assert all(side in printed.err for side in benchmark_of(number).sides), "progress"
    assert results_files(tmp_path) == [], "`compare` leaves them alone"
    assert 0 < benchmark_of(number).seconds["predict"] <= 60


def test_a_side_that_fails_is_a_sentence(tmp_path, monkeypatch, capsys):
    shrink_measurements(monkeypatch)
    monkeypatch.setattr(suite, "run_process", lambda *_: ({}, "its process ended with 1"))
    assert predict.main(["02", "--sizes", "tiny", "--out", str(tmp_path)]) == 1
    assert "02_kv_cache failed: its process ended with 1\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_real_model_has_facts_and_sizes_of_its_own(tmp_path, monkeypatch, capsys):
    asked = {
        number: read_questions(stage_folder(number), benchmark_of(number).sizes_of("large"), "smollm2")
        for number in NUMBERS
    }
    assert [number for number in NUMBERS if not asked[number]] == ["08"], "there size is the point"
    facts = [one["known"] for questions in asked.values() for one in questions]
    assert all(facts) and "212 million" in facts[0] and not any("11.6 million" in fact for fact in facts)
    with pytest.raises(SystemExit, match="asks only about the bundled model"):
        predict.main(["08", "--model", "smollm2"])
    shrink_measurements(monkeypatch)
    seen = []
    monkeypatch.setattr(suite, "run_process", lambda *given: seen.append(given) or ({}, "enough"))
    assert predict.main(["02", "--model", "smollm2", "--out", str(tmp_path)]) == 1
    (_, settings, size_set, _), *_ = seen
    assert (settings.model, settings.dtype, size_set) == ("smollm2", "float32", "large")


def answer_with(arithmetic: list, measured: list, guess: list | None = None, slowest=1.1, x="", **more) -> dict:
    """Answer a question with these figures, on a machine whose speed changed."""
    question = {"title": "Cost", "name": "", "panel": "", "unit": "times", "at": [2, 8], "x": x, "counted": False}
    question |= {"measured": "measured", "arithmetic": "arithmetic", "less": "Low.", "more": "High.", **more}
    figures = {"arithmetic": arithmetic, "measured": measured, "reference_ms": [{"side": [1.0, slowest]}]}
    return result(question, figures, guess)


def test_the_table_has_a_row_for_each_number_and_says_why_they_differ():
    questions = [
        answer_with([12_000.0, 1.0], [11_900.0, 1.0], [3.0, 1.0]),
        answer_with([1.0, 2.0], [0.5, 3.0], x="tokens"),
    ]
    rows, _, text = table({"questions": questions, "reference_ms": [{"a": [4.0, 4.8]}]}).partition("\n\n")
    assert [row.split() for row in rows.splitlines()] == [
        ["guess", "arithmetic", "measured"],
        ["Cost", "(times)", "3", "12,000", "11,900"],
        ["Cost", "(times)"],
        ["2", "tokens", "-", "1", "0.5"],
        ["8", "tokens", "-", "2", "3"],
    ]
    assert text.splitlines() == [
        "The machine's speed changed by 20% meanwhile.",
        "Arithmetic is right within 10% in 1 of 2, the guess in 0.",
        "Cost: Arithmetic and measurement agree within 10%.",
        "Cost: At 2 tokens it is less than arithmetic says, 0.5 against 1. Low.",
    ]
    assert answer_with([10, 1], [10, 2])["why"] == "It is more than arithmetic says, 2 against 1. High."
    assert "agree" in answer_with([0, 10], [0, 9])["why"]
    assert answer_with([10, 1], [10, 1.2], slowest=1.25)["why"].endswith("the machine's own speed changed by more.")


def test_a_machine_that_was_not_steady_explains_nothing():
    """Neither an agreement nor a difference; what no clock was read for still counts."""
    agrees, differs = (answer_with([10, 1], [10, new], slowest=2.5) for new in (1, 2))
    assert agrees["why"] == differs["why"] == "The machine was not steady, so this figure says nothing."
    text = table({"questions": [agrees, differs], "reference_ms": [{"a": [4.0, 10.0]}]})
    assert (
        "changed by 150% meanwhile.\nClose other programs, and measure again.\n" in text and "right within" not in text
    )
    assert answer_with([10, 1], [10, 2], slowest=2, counted=True)["why"].endswith("2 against 1. High.")


# ---- Asking ----


def test_a_bad_answer_is_told_what_is_wrong_and_asked_again(monkeypatch, capsys):
    """What is given is not asked, and the end of the input is no guess."""
    typed = iter(["many", "-3", "12", "4, 5", "4, 15, 40"])

    def type_line(prompt: str) -> str:
        print(prompt)
        if (line := next(typed, None)) is None:
            raise EOFError
        return line

    monkeypatch.setattr(builtins, "input", type_line)
    assert predict.ask_all(questions_of("05"), {}) == {"fit": [12.0], "waste": [4.0, 15.0, 40.0]}
    printed = capsys.readouterr().out
    assert "'many' is not a number from 0 up: write it like 12 or 3.5." in printed and "'-3' is not" in printed
    assert "'4, 5' has 2 values: give 3, separated by commas." in printed
    assert "percent, at 16, 64, 256 tokens in a page: " in printed and "Known: Each length of a prompt" in printed
    typed = iter(["", "2"])
    assert predict.ask_all(questions_of("05"), {"waste": [1.0] * 3}) == {"waste": [1.0] * 3, "throughput": [2.0]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *([["05", "--fit", text], f"--fit: {text!r} is not a number"] for text in ("", "nan", "1e999", "12 %", "-0.1")),
        (["05", "--fit", "1,2"], "--fit: '1,2' has 2 values: give one number."),
        (["05", "--waste", "3"], "--waste: '3' has 1 value: give 3, separated by commas."),
        (["09"], "There is no stage '09'"),
        (["05", "--out", __file__], f"{__file__} is no folder that can be written to"),
        (["my/predict_05"], "`predict` measures the course's own stages"),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(arguments, sentence, tmp_path):
    if arguments[0].startswith("my/"):
        (tmp_path / "engine.py").touch()
        arguments = [str(tmp_path)]
    with pytest.raises((SystemExit, InvalidInput), match=f"^{re.escape(sentence)}"):
        predict.main([arguments[0], *("=".join(arguments[i : i + 2]) for i in range(1, len(arguments), 2))])


def test_control_c_at_a_question_ends_quietly(monkeypatch, capsys):
    monkeypatch.setattr(builtins, "input", Mock(side_effect=["many", KeyboardInterrupt]))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys, "argv", ["predict", "05"])
    assert predict.run() == 130
    printed = capsys.readouterr()
    assert "is not a number" in printed.out and printed.err.endswith("Interrupted: nothing is written.\n")

"""`course.py predict`: questions are asked or answered by options, then measured, and shown in a table and a plot."""

import builtins
import io
import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from common.bench import plots, suite
from common.bench.compare.sources import results_files
from common.learn import predict
from common.learn.questions import Question, read_questions, table
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import ROOT, load_stage_module, stage_folder, stage_folders
from tests.helpers.measured_here import measure_here, shrink_products

NUMBERS = [folder.name[:2] for folder in stage_folders()]
CONFIG = read_config(find_checkpoint(None, with_weights=True))
WEIGHTS = 8 * (256 * 8 * 64 + 256 * 256 + 3 * 256 * 688)  # of all layers; embedding and head have 256 x 4,096


def benchmark_of(number: str):
    return import_module(f"{stage_folder(number).name}.benchmark").BENCHMARK


def questions_of(number: str, size_set: str = "predict") -> list[Question]:
    return read_questions(stage_folder(number), benchmark_of(number).sizes_of(size_set))


# ---- From guesses to results ----


@pytest.mark.parametrize("number", [pytest.param(each, marks=[pytest.mark.ray] * (each == "08")) for each in NUMBERS])
def test_a_class_without_a_terminal_gets_table_plot_and_file(number, tmp_path, capsys, monkeypatch):
    """All questions but the first are answered, by options; and a guess that is right lies on what is drawn."""
    shrink_products(monkeypatch)
    if number != "06":  # one goes the whole way
        monkeypatch.setattr(suite, "run_process", measure_here)
    drawn, mark_guesses = {}, plots.mark_guesses

    def spy(figure, document):
        for panel in figure.axes:
            points = [pair for line in panel.get_lines() for pair in line.get_xydata().tolist()]
            drawn[panel.get_title("left")] = points + [[i, bar.get_height()] for i, bar in enumerate(panel.patches)]
        mark_guesses(figure, document)

    monkeypatch.setattr(plots, "mark_guesses", spy)
    monkeypatch.setattr(sys, "stdin", io.StringIO("must not be read\n"))
    _, *others = questions = questions_of(number, "tiny")
    options = [f"--{one.name}={','.join(['1.5'] * one.count)}" for one in others]
    assert predict.main([number, "--sizes", "tiny", "--out", str(tmp_path), *options]) == 0
    printed = capsys.readouterr()
    [path] = tmp_path.glob(f"*-predict-{number}.json")
    document = json.loads(path.read_text())
    assert [one["guess"] for one in document["questions"]] == [None, *([1.5] * one.count for one in others)]
    assert [len(one["marks"]) for one in document["questions"]] == [0, *(one.count for one in others)]
    for question, found in zip(questions, document["questions"], strict=True):
        assert len(found["arithmetic"]) == len(found["measured"]) == question.count and min(found["measured"]) >= 0
        for mark in question.result(document, found["measured"])["marks"]:
            assert any([mark["x"], mark["y"]] == pytest.approx(point, rel=1e-4) for point in drawn[mark["panel"]])
        assert found["title"] in printed.out
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and str(path) in printed.out
    assert all(side in printed.err for side in benchmark_of(number).sides), "progress"
    assert results_files(tmp_path) == [], "`compare` leaves them alone"


def test_a_side_that_fails_is_a_sentence(tmp_path, monkeypatch, capsys):
    shrink_products(monkeypatch)
    monkeypatch.setattr(suite, "run_process", lambda *_: ({}, "its process ended with 1"))
    assert predict.main(["02", "--sizes", "tiny", "--out", str(tmp_path)]) == 1
    assert "02_kv_cache failed: its process ended with 1\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def result(arithmetic: list, measured: list, guess: list | None = None, slowest: float = 1.1, x: str = "") -> dict:
    """Answer a question with these figures, on a machine whose speed changed."""
    question = Question(
        "", "Cost", "", "?", "", "times", [2, 8], "measured", "arithmetic", x, less="Low.", more="High."
    )
    figures = {"arithmetic": arithmetic, "measured": measured, "reference_ms": [{"side": [1.0, slowest]}]}
    return question.result(figures, guess)


def test_the_table_has_a_row_for_each_number_and_says_why_they_differ():
    questions = [result([12_000.0, 1.0], [11_900.0, 1.0], [3.0, 1.0]), result([1.0, 2.0], [0.5, 3.0], x="tokens")]
    rows, _, text = table({"questions": questions, "reference_ms": [{"a": [4.0, 6.0]}]}).partition("\n\n")
    assert [row.split() for row in rows.splitlines()] == [
        ["guess", "arithmetic", "measured"],
        ["Cost", "(times)", "3", "12,000", "11,900"],
        ["Cost", "(times)"],
        ["2", "tokens", "-", "1", "0.5"],
        ["8", "tokens", "-", "2", "3"],
    ]
    assert text.splitlines() == [
        "The machine's speed changed by 50% meanwhile. Close other programs, and measure again.",
        "Arithmetic is right within 10% in 1 of 2, the guess in 0.",
        "Cost: Arithmetic and measurement agree within 10%.",
        "Cost: At 2 tokens it is less than arithmetic says, 0.5 against 1. Low.",
    ]
    assert result([10, 1], [10, 2])["why"] == "It is more than arithmetic says, 2 against 1. High."
    assert "agree" in result([0, 10], [0, 9])["why"]
    assert result([10, 1], [10, 2], slowest=2)["why"].endswith("the machine's own speed changed by more.")


# ---- Arithmetic, by hand ----


def flops(tokens: int) -> float:
    """The formula of lesson 01, with all pairs of a token and one that it sees."""
    return 2 * WEIGHTS * tokens + 4 * 8 * 256 * tokens * (tokens + 1) / 2 + 2 * 256 * 4096


def answer(tokens: int) -> float:
    return sum(flops(32 + i) for i in range(tokens))


def read(past: int) -> int:
    return 4 * (WEIGHTS + 256 * 4096) + 8192 * past


ENGINES = ["stage_06", "draft_model", "lookup", "always_8"]
PASSES = load_stage_module("07", "benchmark").PASSES
SIDES = {  # made up
    "01": {"01_naive": {"ms_per_token": [4.0, 10.0, 30.0, 70.0]}},
    "02": {"01_naive": {"ms_per_token": [12.0, 80.0]}, "02_kv_cache": {"ms_per_token": [3.7, 4.0]}},
    "03": {
        "03_streaming": {
            "alone_first_text_seconds": [0.01], "alone_whole_answer_seconds": [0.98], "e2el_mean_seconds": [0.5],
            "processed_tokens_per_second": [], "peak_flops_per_second": 1.0,
        }
    },
    "04": {
        "04_continuous_batching": {
            "output_tokens_per_second": [200.0], "itl_p50_ms": [4.0], "prefill_ms_per_token": 0.1,
            "rows_per_output_token": [2.0] * 4,
        }
    },
    "05": {
        "04_continuous_batching": {"step_total_ms": [4.0, 10.0], "tokens_per_second": 1.0},
        "05_paged_attention": {
            "step_total_ms": [4.0, 9.0], "tokens_per_second": 1.0, "tokens_per_request": 172.0,
            "gathering_step_total_ms": [1.0],
        },
        "transformers": {"tokens_per_second": 1.0},
    },
    "06": {
        "05_paged_attention": {"ttft_ms": [1.0] * 3, "tokens_per_second": [1.0] * 3},
        "06_prefix_cache": {"ttft_ms": [1.0] * 3, "tokens_per_second": [1.0] * 3, "alternating_ttft_ms": [1.0, 1.0]},
    },
    "07": {
        "07_speculative": {
            "curve_predicted": [1.0, 1.2, 1.3, 1.4, 1.5], "always_8_acceptance": [50.0] * 3,
            "pass_ms": [3 + tokens / 10 for tokens in PASSES], "draft_pass_ms": [0.5] * len(PASSES),
            **{f"{engine}_tokens_per_second": [1.0] for engine in ENGINES},
            **{f"{engine}_copying_tokens_per_second": 1.0 for engine in ENGINES},
        }
    },
    "08": {
        side: {
            "full_piece_ms": 44.0, "itl_p50_ms": [7.0, 8.0], "itl_p99_ms": [1.0] * 2, "tokens_per_second": [1.0] * 2,
            "ttft_long_p50_ms": [1.0],
        }
        for side in ("07_speculative", "08_disaggregated")
    },
}  # fmt: skip
EXPECTED = {
    "01": {
        "step": [flops(tokens) / flops(64) for tokens in (256, 512, 1024)],
        "answer": [answer(tokens) / answer(64) for tokens in (128, 256)],
    },
    "02": {
        "sooner": [(80 * answer(256) / flops(512)) / (4 * sum(map(read, range(32, 288))) / read(512))],
        "step": [read(tokens) / read(64) for tokens in (512, 1024, 2048)],
    },
    "03": {"first": [98], "last": [100], "wait": [4, 8, 16], "throughput": [1, 1, 1]},
    "04": {
        "throughput": [n * 5 / (5 + 2 * (n - 1) * 0.1) for n in (4, 16, 32)],
        "gap": [1.15, 1.75, 2.55],
        "pieces": [100 * 29.5 / 107.1],
    },
    "05": {
        "fit": [4096 / 179.5],
        "waste": [100 * 7.5 / 179.5, 100 * 31.5 / 203.5, 100 * 127.5 / 299.5],
        "throughput": [4096 / 179.5 * 4 / (4 + 5 * (4096 / 179.5 - 1) / 23)],
    },
    "06": {"sooner": [2, 4, 10], "random": [50], "in_turn": [0]},
    "07": {
        "speedup": [1.2, 1.3, 1.4, 1.5],
        "batch": [5 * (3 + b / 10) / (3 + 9 * b / 10 + 8 * 0.5) for b in (1, 4, 16)],
    },
    "08": {"together": [5.5], "apart": [1], "first": [2]},
}


@pytest.mark.parametrize("number", NUMBERS)
def test_arithmetic_is_what_the_lesson_does_by_hand_and_takes_under_a_minute_to_measure(number):
    benchmark, sides = benchmark_of(number), SIDES[number]
    sizes = benchmark.sizes_of("predict")
    document = {"sides": sides, "figures": benchmark.derive(CONFIG, torch.float32, sizes, sides)}
    found = {}
    for question in questions_of(number):
        top, bottom = question.operands(document, question.arithmetic)
        found[question.name] = [one / other for one, other in zip(top, bottom, strict=True)]
        assert "?" in question.ask and question.known.endswith(".") and len(top) == question.count
    assert found == {name: pytest.approx(values) for name, values in EXPECTED[number].items()}
    assert 0 < benchmark.seconds["predict"] <= 60


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
    assert "percent, at 16, 64, 256 tokens in a page: " in printed and "Known: Prompts have 16 to 256 tokens" in printed
    typed = iter(["", "2"])
    assert predict.ask_all(questions_of("05"), {"waste": [1.0] * 3}) == {"waste": [1.0] * 3, "throughput": [2.0]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *([["05", "--fit", text], f"--fit: {text!r} is not a number"] for text in ("", "nan", "1e999", "12 %", "-0.1")),
        (["05", "--fit", "1,2"], "--fit: '1,2' has 2 values: give one number."),
        (["05", "--waste", "3"], "--waste: '3' has 1 value: give 3, separated by commas."),
        (["09"], "There is no stage '09'"),
        (["my/predict_05"], "`predict` measures the course's own stages"),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(arguments, sentence, tmp_path):
    if arguments[0].startswith("my/"):
        (tmp_path / "engine.py").touch()
        arguments = [str(tmp_path)]
    with pytest.raises(SystemExit, match=f"^{re.escape(sentence)}"):
        predict.main([arguments[0], *("=".join(arguments[i : i + 2]) for i in range(1, len(arguments), 2))])


@pytest.mark.parametrize("number", NUMBERS)
def test_help_lists_the_questions_and_shows_how_to_answer_them(number, capsys):
    with pytest.raises(SystemExit) as stop:
        predict.main([number, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and f"python3 course.py predict {number} --" in text
    assert all(f"--{one.name} " in text and one.ask in text for one in questions_of(number))


# ---- Ctrl-C ----


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
    assert "3 processes to measure" in process.stderr.readline()
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

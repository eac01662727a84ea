"""`course.py predict`: questions are asked or answered by options, then measured, and shown in a table and a plot."""

import builtins
import io
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from common.bench.compare.sources import results_files
from common.learn import predict, predict_report
from common.learn.predictions import CLOSE, Found, Question
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import ROOT, stage_folders

NUMBERS = [folder.name[:2] for folder in stage_folders()]
CONFIG = read_config(find_checkpoint(None, with_weights=True))
WEIGHTS = 8 * (256 * 8 * 64 + 256 * 256 + 3 * 256 * 688)  # of all layers; embedding and head have 256 x 4,096

each_stage = pytest.mark.parametrize("number", NUMBERS)


def module_of(number: str):
    return import_module(f"common.learn.predictions.stage_{number}")


# ---- Arithmetic, done again ----


def flops(tokens: int) -> float:
    """The formula of lesson 01, with all pairs of a token and one that it sees."""
    return 2 * WEIGHTS * tokens + 4 * 8 * 256 * tokens * (tokens + 1) / 2 + 2 * 256 * 4096


def answer(tokens: int) -> float:
    return sum(flops(32 + i) for i in range(tokens))


def read(past: int) -> int:
    return 4 * (WEIGHTS + 256 * 4096) + 8192 * past


PASSES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LINEAR = [3 + n / 10 for n in PASSES]  # milliseconds
SIDES = {
    "01": {"01_naive": {}},
    "02": {
        "01_naive": {"ms_per_token": [12.0, 80.0, 150.0, 330.0]},
        "02_kv_cache": {"ms_per_token": [3.7, 4.0, 4.3, 4.7]},
    },
    "03": {"03_streaming": {"alone_first_text_seconds": [0.01], "alone_whole_answer_seconds": [0.98]}},
    "04": {
        "04_continuous_batching": {
            "itl_p50_ms": [4.0, 6.0, 8.0, 12.0],
            "prefill_ms_per_token": 0.1,
            "rows_per_output_token": [2.0, 2.0, 2.0, 2.0],
        }
    },
    "05": {
        "04_continuous_batching": {"step_total_ms": [4.0, 10.0]},
        "05_paged_attention": {"step_total_ms": [4.0, 9.0]},
    },
    "06": {},
    "07": {
        "07_speculative": {
            "curve_acceptance": [0.0, 80.0, 70.0, 60.0, 40.0],
            "curve_predicted": [1.0, 1.2, 1.3, 1.4, 1.5],
            "pass_ms": LINEAR,
            "draft_pass_ms": [0.5] * len(PASSES),
            "always_8_acceptance": [50.0, 50.0, 50.0],
        }
    },
    "08": {"07_speculative": {"full_piece_ms": 44.0, "itl_p50_ms": [8.0]}},
}
EXPECTED = {
    ("01", "tokens"): [sum(range(32, 96))],
    ("01", "step"): [flops(tokens) / flops(64) for tokens in (256, 512, 1024)],
    ("01", "answer"): [answer(256) / answer(64)],
    ("02", "sooner"): [(80 * answer(256) / flops(512)) / (4 * sum(map(read, range(32, 288))) / read(512))],
    ("02", "step"): [read(tokens) / read(64) for tokens in (512, 1024, 2048)],
    ("02", "memory"): [16.777216],
    ("03", "first"): [98],
    ("03", "last"): [100],
    ("03", "wait"): [4, 8, 16],
    ("03", "throughput"): [1, 1, 1],
    ("04", "throughput"): [n * 4 / (4 + 2 * (n - 1) * 0.1) for n in (4, 16, 32)],
    ("04", "gap"): [1.15, 1.75, 2.55],
    ("04", "pieces"): [100 * 10.3 / 107.1, 100 * 16.7 / 107.1, 100 * 29.5 / 107.1],
    ("05", "fit"): [4096 / 180],
    ("05", "waste"): [100 * 7.5 / 179.5, 100 * 31.5 / 203.5, 100 * 127.5 / 299.5],
    ("05", "throughput"): [4096 / 180 * 4 / 9],
    ("06", "sooner"): [2, 4, 10],
    ("06", "random"): [50],
    ("06", "in_turn"): [0],
    ("07", "tokens"): [1.8, 2.44, 3.3616, (1 - 0.8**9) / 0.2],
    ("07", "speedup"): [1.2, 1.3, 1.4, 1.5],
    ("07", "batch"): [5 * (3 + b / 10) / (3 + 9 * b / 10 + 8 * 0.5) for b in (1, 4, 16)],
    ("08", "together"): [5.5],
    ("08", "apart"): [1],
    ("08", "handoff"): [8.257536],
    ("08", "first"): [2],
}


@each_stage
def test_arithmetic_is_what_the_lesson_does_by_hand(number):
    module = module_of(number)
    found = Found(module.BENCHMARK.sizes_of("quick"), SIDES[number], CONFIG, torch.float32)
    for question in module.QUESTIONS:
        value = question.arithmetic(found)
        value = value if isinstance(value, list) else [value]
        assert value == pytest.approx(EXPECTED[number, question.name]), question.name
        assert len(value) == question.count(found.sizes)


def test_what_is_said_to_be_known_is_so():
    """The model's numbers, and those of the committed results that a question gives to reason with."""
    known = {key: question.known for key, question in by_key().items()}
    assert (2 * WEIGHTS, read(0)) == (11_599_872, 27_394_048)
    assert "11.6 million x S + 4,096 x S^2 + 2.1 million" in known["01", "step"] and 4 * 8 * 256 / 2 == 4096
    assert "27.4 MB" in known["02", "step"] and CONFIG.kv_bytes_per_token(torch.float32) == 8192
    sides = committed("02")["sides"]
    naive, cached = (sides[side]["ms_per_token"]["median"][3] for side in ("01_naive", "02_kv_cache"))
    assert f"{naive:.0f} ms without the cache and {cached:.1f} ms with it" in known["02", "sooner"]
    batching = committed("04")["sides"]["04_continuous_batching"]
    share = batching["itl_p50_ms"]["median"][0] / batching["prefill_ms_per_token"]["median"]
    assert share == pytest.approx(45, rel=0.05) and "1/45" in known["04", "throughput"] + known["04", "gap"]
    drafting = {name: figure["median"] for name, figure in committed("07")["sides"]["07_speculative"].items()}
    assert drafting["curve_acceptance"][1] == pytest.approx(80, abs=2) and "80 percent" in known["07", "tokens"]
    found = Found({}, {"07_speculative": drafting}, CONFIG, torch.float32)
    target = module_of("07").pass_times(found, "pass_ms")
    relative = ", ".join(f"{target(n) / target(1):.1f}" for n in (2, 3, 5, 9))
    assert f"takes {relative} on" in known["07", "speedup"]
    piece = committed("08")["sides"]["07_speculative"]["full_piece_ms"]["median"]
    assert f"{piece / 256:.2f} ms each" in known["08", "together"]


def by_key() -> dict[tuple[str, str], Question]:
    return {(number, question.name): question for number in NUMBERS for question in module_of(number).QUESTIONS}


def committed(number: str) -> dict:
    [path] = ROOT.glob(f"{number}_*/results/cpu-amd-epyc-2-cores.json")
    return json.loads(path.read_text())


@each_stage
def test_a_stage_has_a_few_questions_and_under_a_minute_to_measure_them(number):
    module = module_of(number)
    names = [question.name for question in module.QUESTIONS]
    assert 1 <= len(names) <= 4 and len({*names}) == len(names)
    assert 0 < module.BENCHMARK.seconds["quick"] < 60
    for size_set in ("quick", "tiny"):
        assert module.BENCHMARK.sizes[size_set].keys() <= module.BENCHMARK.sizes["full"].keys()
    for question in module.QUESTIONS:
        sizes = module.BENCHMARK.sizes_of("quick")
        assert "?" in question.ask.format(**sizes) and question.known.format(**sizes).endswith(".")


@pytest.mark.parametrize(
    ("arithmetic", "measured", "says"),
    [([10], [10 * (1 - CLOSE)], "agree"), ([0], [0], "agree"), ([10, 1], [10, 2], "More"), ([10, 2], [8, 1.9], "Less")],
)
def test_why_speaks_of_where_they_differ_most(arithmetic, measured, says):
    question = Question("x", "", "", "", "", list, list, why_less="Low.", why_more="High.")
    told = question.why(arithmetic, measured)
    assert says in told and ("High." in told) == (says == "More") and ("Low." in told) == (says == "Less")


# ---- From guesses to results ----


@pytest.mark.parametrize("number", [pytest.param(each, marks=[pytest.mark.ray] * (each == "08")) for each in NUMBERS])
def test_a_class_without_a_terminal_gets_table_plot_and_file(number, tmp_path, capsys, monkeypatch):
    """All questions but the first are answered, by options; the benchmark runs, on tiny sizes."""
    module = module_of(number)
    sizes = module.BENCHMARK.sizes_of("tiny")
    first, *others = module.QUESTIONS
    options = [f"--{one.name}={','.join(['1.5'] * one.count(sizes))}" for one in others]
    monkeypatch.setattr(sys, "stdin", io.StringIO("must not be read\n"))
    assert predict.main([number, "--sizes", "tiny", "--out", str(tmp_path), *options]) == 0
    printed = capsys.readouterr()
    [path] = tmp_path.glob(f"*-predict-{number}.json")
    document = json.loads(path.read_text())
    assert [one["guess"] for one in document["questions"]] == [None, *([1.5] * one.count(sizes) for one in others)]
    for question, result in zip(module.QUESTIONS, document["questions"], strict=True):
        assert len(result["arithmetic"]) == len(result["measured"]) == question.count(sizes)
        assert result["title"] in printed.out and min(result["measured"]) >= 0
        if (number, question.name) in {("01", "tokens"), ("02", "memory"), ("08", "handoff")}:
            assert result["measured"] == result["arithmetic"], "what is counted is exact"
    png = path.with_suffix(".png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 1600
    assert all(side in printed.err for side in module.BENCHMARK.sides), "progress"
    assert results_files(tmp_path) == [], "`compare` leaves them alone"


def test_a_side_that_fails_is_a_sentence(tmp_path, monkeypatch):
    problem = ({}, "05_paged_attention could not be measured: its process ended with 1")
    monkeypatch.setattr(predict, "run_process", lambda *_: problem)
    with pytest.raises(SystemExit, match="could not be measured: its process ended with 1.$"):
        predict.main(["05", "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def results() -> list[dict]:
    found = Found({"at": [2, 8]}, {}, CONFIG, torch.float32)
    number = Question("fit", "Requests", "How many?", "", "requests", lambda _: 12_000.0, lambda _: 11_900.0)
    values = lambda _: [1.0, 2.0], lambda _: [0.5, 3.0]
    curve = Question("cost", "Cost", "?", "", "times", *values, lambda sizes: sizes["at"], "tokens")
    return [number.result(found, [3.0]), curve.result(found, None)]


def test_the_table_has_a_row_for_each_number():
    rows, _, reasons = predict_report.table({"questions": results()}).partition("\n\n")
    assert "Requests: Arithmetic and measurement agree within 10%.\nCost: Less than" in reasons
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
    module = module_of("05")
    return predict.ask_all(module.QUESTIONS, module.BENCHMARK.sizes_of("quick"), given or {}, module.BENCHMARK)


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
    sizes = module_of(number).BENCHMARK.sizes_of("quick")
    for question in module_of(number).QUESTIONS:
        assert f"--{question.name} " in text and question.ask.format(**sizes) in text


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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_control_c_ends_what_measures_and_writes_nothing(tmp_path):
    process = start("02", "--sizes", "tiny", "--out", str(tmp_path))
    assert "01_naive (1 of 2" in process.stderr.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children and interrupt(process) == "" and list(tmp_path.iterdir()) == []
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

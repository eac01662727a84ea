"""The suite: one process a side, the journal, time limits; and the results file, which tells noise from results."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.bench import ceilings, commands, harness, summary
from common.bench.harness import Benchmark, Headline, Run, run_process
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.suite import Suite

ROOT = Path(__file__).resolve().parents[2]
VALUES = {"before": 2.0, "now": 4.0}
HEADLINE = Headline("{length} tokens", "tokens/s", tuple(VALUES), lambda sizes, side: side["value"])
SIDE = """
import json, os, sys, time
sides = sys.argv[sys.argv.index("--measure") + 1].split(",")
def answer(side, value, **others):
    line = {"side": side, "figures": {"value": value, "pid": os.getpid()}} | others
    print("noise", json.dumps(line), sep="\\n", flush=True)
"""
ANSWERS = "for side in sides: answer(side, {'before': 2.0, 'now': 4.0}[side])\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the program that measures, and return its benchmark."""
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setitem(ceilings.LARGE, "cpu", 64)
    monkeypatch.setattr("common.bench.suite.reference_ms", lambda *_: 1.0)

    def write(text: str, name: str = "sides", **options) -> Benchmark:
        (tmp_path / f"{name}.py").write_text(SIDE + text)
        sizes = {"full": {"length": 8}}
        options = {"headline": HEADLINE, "seconds": {"quick": 2}} | options
        return Benchmark(str(tmp_path / f"{name}.py"), "", VALUES, sizes, derive=lambda *_: {}, **options)

    return write


def suite_of(tmp_path: Path, *benchmarks: Benchmark, **options) -> Suite:
    return Suite(benchmarks, Settings(device="cpu"), "quick", tmp_path / "out", **options)


def found(suite: Suite) -> dict:
    return summary.read_summary(suite.path)


# ---- Measuring ----


def test_every_side_and_repeat_is_a_process_of_its_own(write, tmp_path, capfd):
    suite = suite_of(tmp_path, write(ANSWERS), repeats=2)
    assert suite.run() == 0
    [entry] = found(suite)["benchmarks"].values()
    assert entry["order"] == [["before", "now"], ["now", "before"]]
    assert len({pid for side in entry["figures"].values() for pid in side["pid"]["values"]}) == 4
    assert entry["ratio"] == {"median": 2, "min": 2, "max": 2, "values": [2, 2]} and entry["title"] == "8 tokens"
    progress = capfd.readouterr().err.splitlines()
    assert progress[0].startswith("4 processes to measure; about") and len(progress) == 5
    assert "4 of 4" in progress[-1] and progress[-1].endswith("about 0 s left")
    assert not suite.journal.exists(), "nothing is left to resume"


def test_sides_together_share_a_process(write, tmp_path):
    suite = suite_of(tmp_path, write(ANSWERS), repeats=1, together=True)
    assert suite.run() == 0
    [entry] = found(suite)["benchmarks"].values()
    assert len({side["pid"]["median"] for side in entry["figures"].values()}) == 1


def test_a_side_that_fails_says_why_and_only_it_is_measured_again(write, tmp_path, capfd):
    fails = "if 'now' in sides and not os.path.exists('mended'): sys.exit('line 1\\nthe cache is full')\n"
    benchmarks = write(fails + ANSWERS, "failing"), write(ANSWERS, "other")
    suite = suite_of(tmp_path, *benchmarks, repeats=1)
    assert suite.run() == 1
    printed = capfd.readouterr().err
    assert "the cache is full" in printed, "its last lines are shown"
    sentence = "now could not be measured: its process ended with 1"
    assert f"failing failed: {sentence}" in printed
    assert found(suite)["failed"] == {"failing": sentence} and list(found(suite)["benchmarks"]) == ["other"]

    (tmp_path / "mended").touch()
    suite = suite_of(tmp_path, *benchmarks, repeats=1)
    assert suite.run() == 0
    printed = capfd.readouterr().err
    assert "other: complete already" in printed and "1 processes to measure, 1 were measured before" in printed
    assert list(found(suite)["benchmarks"]) == ["failing", "other"] and found(suite)["failed"] == {}


def test_ctrl_c_keeps_what_is_measured(write, tmp_path, capsys):
    benchmark = write(ANSWERS)
    suite = suite_of(tmp_path, benchmark, repeats=1)
    measured, suite.run_process = suite.run_process, lambda run, limit: interrupt(run, limit)

    def interrupt(run, limit):
        if run.sides == ("now",):
            raise KeyboardInterrupt
        return measured(run, limit)

    with pytest.raises(KeyboardInterrupt):
        suite.run()
    suite = suite_of(tmp_path, benchmark, repeats=1)
    assert suite.run() == 0 and "1 were measured before" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"commit": "another"}, {"torch": "1.0"}, {"torch_threads": 64}])
def test_what_was_measured_elsewhere_is_not_resumed(write, tmp_path, change):
    suite = suite_of(tmp_path, write(ANSWERS), repeats=2)
    [first, *_] = suite.runs(suite.benchmarks[0])
    suite.measure(first, "", [])
    assert suite.done(first) and suite_of(tmp_path, *suite.benchmarks, repeats=2).done(first)
    assert not suite_of(tmp_path, *suite.benchmarks, repeats=3).done(first), "it has another order"
    other = suite_of(tmp_path, *suite.benchmarks, repeats=2)
    other.machine |= change
    assert not other.done(first)


def test_again_measures_what_is_complete(write, tmp_path):
    benchmark = write(ANSWERS + "open('measured', 'a').write('x')")
    for again in (False, False, True):
        assert suite_of(tmp_path, benchmark, repeats=1).run(again) == 0
    assert len((tmp_path / "measured").read_text()) == 4


def test_a_side_that_cannot_be_had_is_named(write, tmp_path):
    missing = "for side in sides: print(json.dumps({'side': side, 'missing': 'no GPU'}))"
    suite = suite_of(tmp_path, write(missing), repeats=1)
    assert suite.run() == 0
    assert found(suite)["benchmarks"]["sides"]["doubt"] == "before, now could not be had here"


def test_what_hangs_is_ended_and_what_has_no_time_is_not_begun(write, tmp_path):
    benchmark = write("answer(sides[0], 1.0)\ntime.sleep(60)")
    answers, problem = run_process(Run(benchmark, 0, ("before", "now")), Settings(), "quick", limit=2.0)
    assert problem == "now could not be measured: its process took longer than 2 s and was ended"
    assert answers["before"]["figures"]["value"] == 1.0, "what it had measured stays"
    suite = suite_of(tmp_path, benchmark, repeats=1, seconds=5)
    assert suite.run() == 1 and suite.problems["sides"].startswith("it was not begun: the 5 s")


def test_an_interruption_ends_the_child_and_what_it_started(write, tmp_path):
    grandchild = "import subprocess\nserver = subprocess.Popen(['sleep', '60'])\n"
    pids = "open('pids.tmp', 'w').write(f'{os.getpid()} {server.pid}')\nos.rename('pids.tmp', 'pids')\ntime.sleep(60)"
    benchmark = write(grandchild + pids)
    program = (
        "import signal\nfrom pathlib import Path\nfrom common.bench import harness\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"harness.ROOT = Path({str(tmp_path)!r})\n"
        f"benchmark = harness.Benchmark({benchmark.file!r}, '', {{}}, {{}}, None)\n"
        "harness.run_process(harness.Run(benchmark, 0, ('a',)), harness.Settings(), 'quick')"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pids").exists():
        assert parent.poll() is None, parent.stderr.read()
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in parent.communicate(timeout=60)[1]
    for pid in (tmp_path / "pids").read_text().split():
        assert not is_running(int(pid)), "a process was left behind"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a zombie that no parent has waited for has ended all the same
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


# ---- The results file ----


@pytest.mark.parametrize(
    ("ratio", "drifted", "says"),
    [
        ([1.2, 1.3], 1.05, None),
        ([1.05, 1.06], 1.10, "drifted by 10% between the sides, and the ratio claims 6%"),
        ([0.94, 0.95], 1.10, "drifted by 10% between the sides, and the ratio claims 6%"),
        ([0.9, 1.4], 1.02, "the repeats disagree about which side is better"),
        ([0.5, 0.52], 1.3, None),
    ],
)
def test_a_ratio_below_the_drift_or_of_two_minds_is_no_result(ratio, drifted, says):
    doubt = summary.doubt(harness.spread(ratio), drifted)
    assert doubt == says if says is None else says in doubt


def test_a_drift_between_sides_marks_the_ratio_in_file_and_table(write, tmp_path, monkeypatch):
    suite = suite_of(tmp_path, write(ANSWERS), repeats=1)
    drifting = Mock(side_effect=[1.0, 1.0, 1.0, 2.5, 1.0, 1.0, 1.0, 1.5])  # before and after each process
    monkeypatch.setattr("common.bench.suite.reference_ms", drifting)
    assert suite.run() == 0
    document = found(suite)
    entry = document["benchmarks"]["sides"]
    assert entry["drift"]["max"] == document["drift"] == 2.5 and "drifted by 150%" in entry["doubt"]
    assert "sides ?  2.00 times" in summary.table(document) and "noise, not a result" in summary.table(document)
    assert suite_of(tmp_path, suite.benchmarks[0], repeats=1).run(again=True) == 0
    assert found(suite)["benchmarks"]["sides"]["doubt"] is None and "?" not in summary.table(found(suite))


@pytest.mark.parametrize(("more_is_better", "ratio"), [(True, 2.0), (False, 0.5), (None, 2.0)])
def test_above_one_is_better(write, more_is_better, ratio):
    benchmark = write("", headline=replace(HEADLINE, more_is_better=more_is_better))
    answers = {side: {"figures": {"value": value}, "reference_ms": [1, 1]} for side, value in VALUES.items()}
    assert summary.headline_entry(benchmark, {"length": 8}, [answers])["ratio"]["median"] == ratio


def test_one_side_may_have_all_values_of_a_headline():
    headline = Headline("", "", ("a",), lambda sizes, side: {"old": side["x"], "new": side["y"]})
    assert headline.values({}, {"a": {"x": 1.0, "y": 2.0}, "b": {}}) == {"old": 1.0, "new": 2.0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not JSON", "cannot be read as JSON"),
        ("[]", "cannot be read as JSON"),
        ('{"benchmark": "02_kv_cache"}', "is no results file of this course"),
        ('{"format": "llm-course-results", "schema": 0}', "has version 0, and this course reads version 1"),
        ('{"format": "llm-course-results", "schema": 1, "machine": {}}', "lacks size_set, benchmarks"),
    ],
)
def test_old_and_foreign_files_are_refused_in_a_sentence(tmp_path, text, sentence):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=f"results.json.*{sentence}"):
        summary.read_summary(tmp_path / "results.json")


def test_the_file_says_on_what_it_was_measured(write, tmp_path):
    suite = suite_of(tmp_path, write(ANSWERS), repeats=1)
    suite.run()
    document = json.loads(suite.path.read_text())
    facts = {"cpu", "cpu_cores", "gpu", "python", "torch", "torch_threads", "commit", "date", "dtype", "model"}
    assert facts | {"copy_bytes_per_second", "matmul_flops_per_second"} <= document["machine"].keys()
    assert str(tmp_path) not in suite.path.read_text()


# ---- The command line ----


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "03"], "there is no benchmark '03'; use sides"),
        (["--sizes", "gpu"], "--sizes gpu needs a CUDA device"),
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--plot-only"], "holds no results to draw"),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(write, tmp_path, capsys, monkeypatch, arguments, sentence):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        run_benchmark(write(ANSWERS), ["--out", str(tmp_path), *arguments])
    assert ended.value.code == 1 and sentence in capsys.readouterr().err


def test_a_reader_that_is_gone_is_no_error_in_a_sentence(write, monkeypatch):
    monkeypatch.setattr(commands, "measure", Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        commands.main("bench", "", [write(ANSWERS)], [])


def test_a_limit_is_a_positive_number(write, capsys):
    with pytest.raises(SystemExit):
        run_benchmark(write(ANSWERS), ["--minutes", "0"])
    assert "'0' is not a positive number" in capsys.readouterr().err


@pytest.mark.parametrize("names", ["2", "02", "02_kv_cache"])
def test_a_stage_goes_by_number_or_folder(names):
    from common.bench.__main__ import course_benchmarks

    assert [benchmark.name for benchmark in commands.pick(course_benchmarks(), names)] == ["02_kv_cache"]

"""The suite: one process a side, a file for each, time limits; and the results file, which tells noise from results."""

import json
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from common.bench import harness, suite, summary
from common.bench.documents import read_json
from common.bench.harness import Benchmark, Headline, Run, run_process
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.suite import Suite
from common.stages import ROOT, stage_folder
from tests.helpers.measured_here import shrink_measurements
from tests.helpers.serving_stage_03 import wait_until

VALUES = {"before": 2.0, "now": 4.0}
HEADLINE = Headline("{length} tokens", "tokens/s", {side: [side, "value"] for side in VALUES})
SIDE = """
import json, os, subprocess, sys, time
sides = sys.argv[sys.argv.index("--measure") + 1].split(",")
def answer(side, **others):
    line = {"side": side, "figures": {"value": {"before": 2.0, "now": 4.0}[side], "pid": os.getpid()}} | others
    print("noise", json.dumps(line), sep="\\n", flush=True)
"""
QUICK = Settings(), "quick"
ANSWERS = "for side in sides: answer(side, model={})\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the program that measures, and return its benchmark."""
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    shrink_measurements(monkeypatch)
    monkeypatch.setattr(suite, "reference_ms", lambda *_: 1.0)

    def write(text: str, name: str = "sides", **options) -> Benchmark:
        (tmp_path / f"{name}.py").write_text(SIDE + text)
        options = {"headline": HEADLINE, "seconds": {"quick": 2}} | options
        return Benchmark(str(tmp_path / f"{name}.py"), "", VALUES, {"full": {"length": 8}}, lambda *_: {}, **options)

    return write


def suite_of(tmp_path: Path, *benchmarks: Benchmark, repeats: int = 1, **options) -> Suite:
    return Suite(benchmarks, Settings(device="cpu"), "quick", tmp_path / "out", repeats, **options)


def found(suite: Suite) -> dict:
    return summary.read_summary(suite.path)


# ---- Measuring ----


def test_every_side_and_repeat_is_a_process_of_its_own_and_the_last_line_is_the_document(write, tmp_path, capfd):
    program = f"for side in sides: answer(side, model={asdict(Settings().config())})"
    with pytest.raises(SystemExit) as ended:
        options = ["--sizes", "tiny", "--device", "cpu", "--repeats", "2", "--out", str(tmp_path / "out")]
        run_benchmark(write(program), options)
    printed = capfd.readouterr()
    last = printed.out.splitlines()[-1]
    [document] = map(read_json, (tmp_path / "out").glob("*-tiny-sides.json"))
    assert ended.value.code == 0 and json.loads(last) == document
    assert document["benchmark"] == "sides" and document["size_set"] == "tiny" and document["sizes"] == {"length": 8}
    assert document["order"] == [["before", "now"], ["now", "before"]]
    assert len({pid for side in document["sides"].values() for pid in side["pid"]["values"]}) == 4
    assert document["headline"]["title"] == "8 tokens"
    assert document["headline"]["ratio"] == {"median": 2, "min": 2, "max": 2, "values": [2, 2]}
    facts = {"cpu", "cpu_cores", "gpu", "python", "torch", "torch_threads", "commit", "date", "dtype", "model"}
    assert facts | {"copy_bytes_per_second", "matmul_flops_per_second"} <= document["hardware"].keys()
    assert not {platform.node(), str(tmp_path), str(ROOT)} & set(last.split('"')), "results are published"
    first, *_, progress = printed.err.splitlines()[:5]
    assert first.startswith("4 processes to measure; about")
    assert "4 of 4" in progress and progress.endswith("about 0 s left")
    assert not [*(tmp_path / "out").glob("*.partial")], "nothing is left to resume"


def test_a_side_that_fails_says_why_and_only_it_is_measured_again(write, tmp_path, capfd):
    fails = (
        "for side in sides:\n"
        "    if side == 'now' and not os.path.exists('mended'): sys.exit('line 1\\nthe cache is full')\n"
        "    answer(side, model={})\n    open('measured', 'a').write(f'{side} ')\n"
    )
    benchmarks = write(fails, "failing"), write(ANSWERS, "other")
    suite = suite_of(tmp_path, *benchmarks, together=True)
    assert suite.run() == 1
    printed, sentence = capfd.readouterr().err, "now could not be measured: its process ended with 1"
    assert "the cache is full" in printed and f"failing failed: {sentence}" in printed, "its last lines are shown"
    assert list(found(suite)["benchmarks"]) == ["other"]

    (tmp_path / "mended").touch()
    suite = suite_of(tmp_path, *benchmarks, together=True)
    assert suite.run() == 0 and "other: complete already" in capfd.readouterr().err
    assert (tmp_path / "measured").read_text() == "before now "
    assert list(found(suite)["benchmarks"]) == ["failing", "other"]
    assert suite_of(tmp_path, *benchmarks, together=True).run(again=True) == 0
    assert "2 processes to measure; about" in capfd.readouterr().err, "--again measures what is complete"


@pytest.mark.parametrize("change", [{}, {"commit": "another"}, {"repeats": 2}])
def test_what_ctrl_c_has_left_is_resumed_under_the_same_conditions(write, tmp_path, capsys, monkeypatch, change):
    benchmark = write(ANSWERS)
    before = run_process(Run(benchmark, 0, ("before",)), *QUICK)
    monkeypatch.setattr(suite, "run_process", Mock(side_effect=[before, KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):
        suite_of(tmp_path, benchmark).run()
    monkeypatch.setattr(suite, "run_process", run_process)
    monkeypatch.setattr(suite, "hardware", lambda device, facts=suite.hardware: facts(device) | change)
    assert suite_of(tmp_path, benchmark, repeats=change.get("repeats", 1)).run() == 0
    resumed = "1 process to measure, 1 were measured before" in capsys.readouterr().err
    assert resumed == (not change)


def test_a_side_that_cannot_be_had_is_named(write, tmp_path):
    missing = "for side in sides: print(json.dumps({'side': side, 'missing': 'no GPU', 'model': {}}))"
    suite = suite_of(tmp_path, write(missing))
    assert suite.run() == 0
    assert found(suite)["benchmarks"]["sides"]["doubt"] == "before, now could not be had here"


def test_what_hangs_is_ended_and_what_has_no_time_is_not_begun(write, tmp_path):
    benchmark = write("answer(sides[0])\ntime.sleep(60)")
    answers, problem = run_process(Run(benchmark, 0, ("before", "now")), *QUICK, limit=2.0)
    assert problem == "now could not be measured: its process took longer than 2 s and was ended"
    assert answers["before"]["figures"]["value"] == 2.0, "what it had measured stays"
    suite = suite_of(tmp_path, benchmark, seconds=5)
    assert suite.run() == 1 and suite.problems["sides"].startswith("it was not begun: the 5 s")


def test_an_interruption_ends_the_child_and_what_it_started(write, tmp_path, ctrl_c):
    pids = tmp_path / "pids"
    benchmark = write(
        "server = subprocess.Popen(['sleep', '60'])\nopen('pids.tmp', 'w').write(f'{os.getpid()} {server.pid}')\n"
        "os.rename('pids.tmp', 'pids')\ntime.sleep(60)"
    )

    def interrupt() -> None:
        wait_until(pids.exists)
        ctrl_c()

    def has_ended(pid: str) -> bool:
        try:
            return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE  # A zombie has ended, too.
        except psutil.NoSuchProcess:
            return True

    with ThreadPoolExecutor() as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(interrupt)
        run_process(Run(benchmark, 0, ("a",)), *QUICK)
    wait_until(lambda: all(map(has_ended, pids.read_text().split())), seconds=20)


# ---- The results file ----


@pytest.mark.parametrize(
    ("now", "better", "drift", "ratio", "says"),
    [
        ([4.0, 6.0], "more", 1.05, 2.5, "None"),
        ([1.0, 1.0], "less", 1.0, 2.0, "None"),
        ([1.0, 1.2], "neither", 1.3, 0.55, "None"),
        ([1.9, 1.9], "more", 1.1, 0.95, "drifted by 10% between the sides, and the ratio claims 5%"),
        ([1.8, 2.9], "more", 1.0, 1.175, "the repeats disagree about which side is better"),
    ],
)
def test_a_ratio_above_one_is_better_unless_the_machine_drifted_or_repeats_disagree(now, better, drift, ratio, says):
    def answer(value: float) -> dict:
        return {"figures": {"value": value}, "reference_ms": [1.0, drift]}

    repeats = [{"before": answer(2.0), "now": answer(value)} for value in now]
    entry = summary.headline_entry(replace(HEADLINE, better=better), {"length": 8}, repeats)
    assert entry["ratio"]["median"] == pytest.approx(ratio) and says in str(entry["doubt"])


def test_a_drift_between_sides_marks_the_ratio_in_file_and_table(write, tmp_path, monkeypatch):
    drifting = suite_of(tmp_path, write(ANSWERS))
    monkeypatch.setattr(suite, "reference_ms", Mock(side_effect=[1.0, 1.0, 1.0, 2.5, 1.0, 1.0, 1.0, 1.5]))
    assert drifting.run() == 0
    document = found(drifting)
    entry = document["benchmarks"]["sides"]
    assert entry["drift"]["max"] == document["drift"] == 2.5 and "drifted by 150%" in entry["doubt"]
    assert "sides ?  2.00 times" in summary.table(document) and "noise, not a result" in summary.table(document)
    assert suite_of(tmp_path, drifting.benchmarks[0]).run(again=True) == 0
    assert found(drifting)["benchmarks"]["sides"]["doubt"] is None and "?" not in summary.table(found(drifting))


def test_a_learners_stage_is_measured_beside_the_reference(tmp_path, monkeypatch):
    """Its results stay in its folder."""
    name = "02_kv_cache"
    own, ran = tmp_path / name, {}

    def measure(settings, sizes):
        return {"seconds": [9.0, 2.0 if stage_folder(name) == own else 3.0]}

    benchmark = Benchmark(
        str(own / "benchmark.py"), "", {"01_naive": None, name: measure}, {"full": {}}, derive=None,
        headline=Headline("an answer", "s", {"first": [name, "seconds", 0], "last": [name, "seconds", -1]}),
    )  # fmt: skip
    monkeypatch.setenv("COURSE_STAGE", str(own))
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr("common.bench.run.main", lambda *given, **defaults: ran.update(defaults, given=given))
    with pytest.raises(SystemExit):
        run_benchmark(benchmark)
    [both] = ran["given"][2]
    assert list(both.sides) == ["01_naive", name, "reference"] and ran["home"] == own / "results"
    measured = {side: both.sides[side](None, {}) for side in (name, "reference")}
    assert both.headline.values_of({}, measured) == {"reference": 3.0, name: 2.0}

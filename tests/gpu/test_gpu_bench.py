"""The command for a machine with a GPU, end to end with tiny sizes: every part, resuming, failures, time limits."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from common.bench.gpu.run import Run, mode_name
from common.bench.gpu.runner import Runner, measure_part

from common.bench.gpu import parts, runner, throughput
from common.bench.gpu.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_A_PLOT = {"transformers"}
# The microbenchmarks are a module of their own.
NAMES = [name for name in parts.PARTS if name != "kernels" or importlib.util.find_spec("common.bench.experiments.kernels")]


class InThisProcess(Runner):
    """Parts without the seconds that a fresh process takes to import torch; `failing` are not measured at all."""

    failing: tuple[str, ...] = ()

    def run_process(self, name, partial, limit):
        return 3 if name in self.failing else measure_part(name, partial)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gpu-bench")


@pytest.fixture(scope="module")
def finished(folder) -> Runner:
    """All parts have been measured, with tiny sizes, on one thread: on a busy machine several wait for each other."""
    runs, threads = InThisProcess(folder, "tiny"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert runs.run_all(NAMES) == 0
    finally:
        torch.set_num_threads(threads)
    return runs


def figures(finished: Runner, name: str) -> dict:
    return json.loads(finished.path(name).read_text())["figures"]


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    program = [sys.executable, "-m", "common.bench.gpu", "--out", str(folder), *arguments]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)


# ---- The parts ----


@pytest.mark.parametrize("name", NAMES)
def test_every_part_leaves_a_document_and_a_plot(finished, name):
    document = json.loads(finished.path(name).read_text())
    assert document["complete"] and document["error"] is None and document["seconds"] > 0
    assert document["benchmark"] == "common.bench.gpu" and document["part"] == name
    assert document["sizes"] == finished.part_sizes(name) and document["figures"] and document["headline"]
    assert {"device", "torch", "commit", "date"} <= document["hardware"].keys()
    assert str(ROOT) not in finished.path(name).read_text()
    png = finished.path(name).with_suffix(".png")
    assert png.exists() != (name in WITHOUT_A_PLOT)
    if png.exists():
        assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 10_000
    assert not finished.path(name).with_suffix(".partial.json").exists()


def test_the_summary_has_every_part(finished, folder):
    summary = json.loads((folder / f"{finished.name}.json").read_text())
    assert {name: row["status"] for name, row in summary["parts"].items()} == dict.fromkeys(NAMES, "complete")


def test_the_contract_part_compares_tokens_and_logits(finished):
    measured, sizes = figures(finished, "contract"), finished.part_sizes("contract")
    assert list(measured["float32"]) == sizes["stages"]
    assert all(counts["passed"] == 2 and not counts["failed"] for counts in measured["float32"].values())
    assert measured["accelerated"] == {"06_prefix_cache": True}
    for error in measured["bfloat16"]["tiny"].values():
        assert 0 < error["relative_error"] <= sizes["most"]
        assert error["positions"] == len(sizes["prompts"]) * sizes["decoded"]


def test_throughput_serves_the_workload_of_nano_vllm(finished):
    jobs = throughput.workload(throughput.SIZES)  # which checks the totals
    assert len(jobs) == 256 and jobs[0][0][:3] == [6311, 6890, 663]
    with pytest.raises(ValueError, match="142827"):
        throughput.workload(throughput.SIZES | {"totals": [1, 2]})
    [row] = figures(finished, "throughput")["runs"].values()
    assert row["tokens_per_second"] == pytest.approx(throughput.TINY["totals"][1] / row["seconds"], rel=1e-4)
    assert figures(finished, "throughput")["floor_seconds"] > 0


def test_transformers_serves_the_same_or_says_why_not(finished):
    measured = figures(finished, "transformers")
    assert (measured["tokens_per_second"] is None) == bool(measured.get("error"))


def test_decode_and_single_stand_beside_their_floors(finished):
    decode, single = figures(finished, "decode"), figures(finished, "single")["models"]["tiny"]
    assert decode["batches"] == [1, 4] and decode["floor_ms"][0] < decode["floor_ms"][1]
    ratios = [step / floor for step, floor in zip(decode["step_ms"]["median"], decode["floor_ms"], strict=True)]
    assert decode["over_floor"]["median"] == pytest.approx(ratios, rel=1e-3)
    assert list(single["ms_per_token"]) == ["stage 06, as it comes", "stage 03"]


def test_the_sweep_computes_what_it_does_not_measure(finished):
    measured, sizes = figures(finished, "sweep"), finished.part_sizes("sweep")
    for stage, points in measured["sides"].items():
        assert [point["concurrency"] for point in points] == sizes["clients"][stage]
        assert [point["requests"] for point in points] == sizes["requests"][stage]
    alone = measured["sides"]["03_streaming"][0]["e2el"]["mean"]
    assert measured["predicted"]["e2el"] == pytest.approx([alone, 2 * alone, 4 * alone], rel=1e-3)


def test_time_in_which_kernels_overlap_counts_once():
    assert throughput.covered([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4


def test_switches_are_set_each_way(monkeypatch, finished):
    def make_engine(engine_class, loaded, graphs, overlap, **options):
        if graphs:
            raise ValueError("no graphs here")
        return graphs, overlap, options

    run = Run(finished.path("decode"), json.loads(finished.path("decode").read_text()))
    run.path = finished.folder / "switches.tmp"
    assert run.modes() == [{}], "without a GPU there are none"
    monkeypatch.setattr(run, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr("common.bench.gpu.run.make_engine", make_engine)
    assert [mode_name(mode) for mode in run.modes()] == ["graphs and overlap", "neither", "graphs", "overlap"]
    assert run.engine("06", None, overlap=False, page_size=16, draft="lookup") == (None, False, {"page_size": 16})
    assert run.try_engine("06", None, graphs=True, overlap=True) is None
    assert run.document["figures"]["missing"] == {"06, graphs and overlap": "no graphs here"}


# ---- What is complete, and what fails ----


def test_what_is_complete_is_not_measured_again(finished, folder, capfd):
    runs = InThisProcess(folder, "tiny")
    runs.failing = tuple(parts.PARTS)
    before = finished.path("single").read_bytes()
    assert runs.run_all(["single", "decode"]) == 0
    assert capfd.readouterr().err.count("complete already") == 2
    assert finished.path("single").read_bytes() == before
    assert runs.run_all(["single"], again=True) == 1, "--again measures it"
    assert finished.path("single").read_bytes() == before, "and a failure leaves what was there"


@pytest.mark.parametrize("change", [{"complete": False}, {"sizes": {}}, {"hardware": {"commit": "another"}}])
def test_other_sizes_or_another_commit_are_not_complete(finished, folder, tmp_path, change):
    runs = InThisProcess(tmp_path, "tiny")
    document = json.loads(finished.path("single").read_text())
    runs.path("single").write_text(json.dumps(document))
    assert runs.complete("single")
    runs.path("single").write_text(json.dumps(document | change))
    assert not runs.complete("single")


def test_a_part_that_fails_stops_no_other(tmp_path, monkeypatch, capfd):
    def fails(run):
        run.keep(half=1)
        raise ValueError("the device is on fire")

    monkeypatch.setattr("common.bench.gpu.sweep.measure", fails)
    runs = InThisProcess(tmp_path, "tiny")
    runs.failing = ("decode",)
    assert runs.run_all(["sweep", "decode", "single"]) == 1
    rows = json.loads(capfd.readouterr().out.splitlines()[-1])["parts"]
    assert rows["sweep"]["error"] == "ValueError: the device is on fire"
    assert rows["decode"]["error"] == "its process ended with 3"
    assert rows["single"]["status"] == "complete" and runs.path("single").with_suffix(".png").exists()
    partial = json.loads(runs.path("sweep").with_suffix(".partial.json").read_text())
    assert partial["figures"] == {"half": 1} and not partial["complete"]


def test_a_part_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setitem(parts.PARTS, "single", parts.Part("single", 0.1, "too long"))
    runs = Runner(tmp_path, "tiny")
    assert runs.measure("single").startswith(runner.TOO_LONG)
    assert Runner(tmp_path, "tiny", seconds=1).measure("single").startswith("it was not begun")


# ---- The command line ----


def test_the_command_measures_and_resumes(tmp_path):
    first = command(tmp_path, "--only", "single")
    assert first.returncode == 0, first.stderr
    assert first.stderr.startswith("No CUDA device: everything is run with --sizes tiny")
    assert json.loads(first.stdout.splitlines()[-1])["parts"]["single"]["status"] == "complete"
    [png] = tmp_path.glob("*-single.png")
    png.unlink()
    assert main(["--out", str(tmp_path), "--plot-only"]) == 0 and png.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "sweeep"], "there is no part 'sweeep'; there is kernels, contract"),
        (["--sizes", "full"], "needs a CUDA device"),
        (["--minutes", "0"], "'0' is not a positive number"),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), *arguments])
    assert says in capsys.readouterr().err


def test_all_parts_fit_into_the_time_of_all():
    assert sum(part.seconds for part in parts.PARTS.values()) <= parts.ALL_SECONDS

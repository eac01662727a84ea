"""The benchmarks: the discipline is kept, and whatever is drawn was measured."""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from common.bench import hardware, harness, plots
from common.bench.harness import SideFailed, aggregate, alternate, measure_sides, run_side, spread
from common.bench.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted(ROOT.glob("[0-9][0-9]_*/results/*.json"))
HEAVY_PACKAGES = ["flask", "fastapi", "uvicorn", "httpx", "matplotlib", "rich"]

# ---- Harness ----


def test_the_order_turns_round_with_every_repeat():
    assert alternate(["a", "b", "c"], 3) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]
    with pytest.raises(ValueError, match="--repeats"):
        alternate(["a"], 0)


def test_repeats_become_median_and_spread():
    assert spread([3, 1, 2]) == {"median": 2, "min": 1, "max": 3, "values": [3, 1, 2]}
    lists = {"median": [2, 5], "min": [1, 4], "max": [3, 6], "values": [[1, 6], [2, 5], [3, 4]]}
    assert aggregate([{"x": [1, 6]}, {"x": [2, 5]}, {"x": [3, 4]}]) == {"x": lists}


def write_script(folder: Path, text: str) -> Path:
    script = folder / "benchmark.py"
    script.write_text(f"import json, os, sys, time\nside = sys.argv[2]\n{text}")
    return script


def test_every_side_and_repeat_is_a_process_of_its_own(tmp_path, capfd):
    answer = "print('noise')\nprint(json.dumps({'model': {}, 'figures': {'pid': os.getpid(), 'side': side}}))"
    script = write_script(tmp_path, answer)
    _, repeats = measure_sides(script, alternate(["a", "b"], 2), Settings(), quick=False)
    assert [list(repeat) for repeat in repeats] == [["a", "b"], ["b", "a"]]
    assert all(figures["side"] == side for repeat in repeats for side, figures in repeat.items())
    assert len({figures["pid"] for repeat in repeats for figures in repeat.values()}) == 4
    progress = capfd.readouterr().err.splitlines()
    assert len(progress) == 4 and "4 of 4" in progress[-1] and "about 0 s left" in progress[-1]


def test_a_side_that_fails_shows_its_last_lines_and_one_sentence(tmp_path):
    script = write_script(tmp_path, "sys.exit('line 1\\nValueError: the cache is full')")
    with pytest.raises(SideFailed) as failure:
        run_side(script, "02_kv_cache", Settings(), quick=True)
    last_lines = str(failure.value).splitlines()[-2:]
    sentence = "02_kv_cache could not be measured: its process ended with 1."
    assert last_lines == ["ValueError: the cache is full", sentence]
    with pytest.raises(SideFailed, match="printed no JSON line"):
        run_side(write_script(tmp_path, "print('done')"), "02_kv_cache", Settings(), quick=True)


def test_an_interruption_ends_the_child_and_what_it_started(tmp_path):
    grandchild = "import subprocess\nserver = subprocess.Popen(['sleep', '60'])\n"
    pids = "open('pids.tmp', 'w').write(f'{os.getpid()} {server.pid}')\nos.rename('pids.tmp', 'pids')\ntime.sleep(60)"
    script = write_script(tmp_path, f"os.chdir({str(tmp_path)!r})\n{grandchild}{pids}")
    program = (
        "import signal\nfrom pathlib import Path\nfrom common.bench.harness import run_side, Settings\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"run_side(Path({str(script)!r}), 'a', Settings(), False)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pids").exists():
        assert parent.poll() is None, parent.stderr.read()
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in parent.communicate(timeout=20)[1]
    for pid in (tmp_path / "pids").read_text().split():
        assert not is_running(int(pid)), "a process was left behind"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # a zombie that nobody has waited for has ended all the same
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


# ---- Hardware and plots ----


def test_the_hardware_says_what_a_figure_needs_and_nothing_private(monkeypatch):
    facts = hardware.hardware(torch.device("cpu"))
    assert facts["device"] == "cpu" and facts["gpu"] is None and facts["cpu_cores"] >= 1
    text = json.dumps(facts)
    assert os.uname().nodename not in text.split('"') and str(ROOT) not in text


@pytest.mark.parametrize(
    "facts, name",
    [
        ({"gpu": None, "cpu": "AMD EPYC", "cpu_cores": 2}, "cpu-amd-epyc-2-cores"),
        ({"gpu": None, "cpu": "Apple M3", "cpu_cores": 1}, "cpu-apple-m3-1-core"),
        ({"gpu": "NVIDIA H200", "cpu": "AMD EPYC", "cpu_cores": 16}, "nvidia-h200"),
    ],
)
def test_the_file_name_is_the_hardware(facts, name):
    assert hardware.slug(facts) == name
    asked = Settings(model="/home/someone/Qwen3-0.6B", dtype="bfloat16")
    assert harness.result_name(facts, asked) == f"{name}-qwen3-0-6b-bfloat16"


def test_vendors_additions_leave_the_name_of_a_processor(monkeypatch):
    monkeypatch.setattr(hardware, "raw_cpu_name", lambda: "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz")
    assert hardware.slugify(hardware.cpu_name()) == "intel-xeon-platinum-8480"
    monkeypatch.setattr(hardware, "raw_cpu_name", lambda: "AMD EPYC 7763 64-Core Processor")
    assert hardware.slugify(hardware.cpu_name()) == "amd-epyc-7763"


def test_labels_are_moved_apart_and_no_further():
    assert plots.apart([0, 100], [15, 15]) == [0, 100]
    places = plots.apart([50, 51, 52], [15, 15, 15])
    assert places == pytest.approx([36, 51, 66], abs=0.1)


# ---- The benchmarks themselves ----


def test_a_benchmark_measures_writes_and_draws(tmp_path):
    stage = "02_kv_cache"
    command = [sys.executable, ROOT / stage / "benchmark.py", "--quick", "--device", "cpu", "--results", tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout.splitlines()[-1])
    [path] = tmp_path.glob("*.json")
    assert document == json.loads(path.read_text())
    assert document["benchmark"] == stage and document["quick"] and document["hardware"]["torch"] == torch.__version__
    lengths = document["sizes"]["lengths"]
    for side in document["sides"].values():
        assert len(side["ms_per_token"]["median"]) == len(lengths) and min(side["ms_per_token"]["min"]) > 0
    formula = document["figures"]["predicted_cache_bytes"]["median"]
    assert document["sides"]["02_kv_cache"]["cache_bytes"]["median"] == formula
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".png"}
    assert_is_picture(path.with_suffix(".png"))


def assert_is_picture(png: Path) -> None:
    """1600 pixels wide, and light enough for a README."""
    header = png.read_bytes()[:24]
    assert header.startswith(b"\x89PNG") and int.from_bytes(header[16:20], "big") == 1600
    assert png.stat().st_size < 150_000


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.parent.name}/{path.stem}")
def test_committed_results_hold_what_their_plots_need(path, tmp_path, monkeypatch):
    document = json.loads(path.read_text())
    assert document["benchmark"] == path.parent.parent.name and not document["quick"]
    assert len(document["order"]) >= harness.REPEATS
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    script = str(path.parent.parent / "benchmark.py")
    monkeypatch.setattr(sys, "argv", [script, "--plot-only", "--results", str(tmp_path)])
    runpy.run_path(script, run_name="__main__")
    assert_is_picture(copy.with_suffix(".png"))


def test_offline_benchmarks_import_no_server_and_no_plots():
    """They run on a GPU machine that has only torch, transformers and, for the plots, matplotlib."""
    names = [f"common.bench.{path.stem}" for path in (ROOT / "common/bench").glob("*.py")]
    names += [f"{path.parent.name}.benchmark" for path in ROOT.glob("[0-9][0-9]_*/benchmark.py")]
    program = (
        f"import importlib, sys\nfor name in {names}:\n    importlib.import_module(name)\n"
        f"    heavy = [package for package in {HEAVY_PACKAGES} if package in sys.modules]\n"
        "    assert not heavy, (name, heavy)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["01_naive", "02_kv_cache", "03_streaming"])
def test_a_benchmark_says_its_question_method_and_expectation(name):
    text = importlib.import_module(f"{name}.benchmark").__doc__
    assert text.splitlines()[0].endswith("?") and "Method." in text and "Expectation." in text

"""The benchmarks: the discipline is kept, and whatever is drawn was measured."""

from pathlib import Path

import pytest
import torch

from common.bench import hardware, harness, plots, suite
from common.bench.__main__ import course_benchmarks
from common.bench.documents import read_json
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.model import ModelConfig
from common.stages import ROOT

RESULTS = [*sorted(ROOT.glob("[0-9][0-9]_*/results/*.json")), ROOT / "common/bench/results/cpu-amd-epyc-2-cores.json"]
BENCHMARKS = {benchmark.name: benchmark for benchmark in course_benchmarks()}


def test_repeats_become_median_and_spread():
    lists = {"median": [2, 5], "min": [1, 4], "max": [3, 6], "values": [[1, 6], [2, 5], [3, 4]]}
    assert harness.aggregate([{"x": [1, 6]}, {"x": [2, 5]}, {"x": [3, 4]}]) == {"x": lists}


@pytest.mark.parametrize(
    ("cpu", "facts", "name"),
    [
        ("Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", {}, "cpu-intel-xeon-platinum-8480-2-cores"),
        ("AMD EPYC 7763 64-Core Processor", {"cpu_cores": 1}, "cpu-amd-epyc-7763-1-core"),
        ("AMD EPYC", {"gpu": "NVIDIA H200", "cpu_cores": 16}, "nvidia-h200"),
    ],
)
def test_the_file_name_is_the_hardware_and_what_was_asked_for(monkeypatch, cpu, facts, name):
    monkeypatch.setattr(hardware, "raw_cpu_name", lambda: cpu)
    machine = {"gpu": None, "cpu": hardware.cpu_name(), "cpu_cores": 2} | facts
    asked = Settings(model="/home/someone/Qwen3-0.6B", dtype="bfloat16")
    assert suite.result_name(machine, Settings()) == name
    assert suite.result_name(machine, asked) == f"{name}.qwen3-0.6b-bfloat16"


def test_a_copy_without_history_is_told_its_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "ROOT", tmp_path)
    monkeypatch.setenv("COURSE_COMMIT", "0123456789abcdef0123")
    assert hardware.hardware(torch.device("cpu"))["commit"] == "0123456789"
    monkeypatch.delenv("COURSE_COMMIT")
    assert hardware.hardware(torch.device("cpu"))["commit"] is None


@pytest.mark.parametrize(
    ("settings", "full", "quick"),
    [
        (Settings("draft", device="cpu"), "full", "quick"),
        (Settings("Qwen3-0.6B", device="cpu", load_format="dummy"), "large", "large-quick"),
    ],
)
def test_a_large_model_has_sizes_of_its_own_on_a_cpu(settings, full, quick):
    assert [settings.size_set(name) for name in ("full", "quick", "tiny")] == [full, quick, "tiny"]
    names = {suite.Suite([], settings, name, Path()).path.stem for name in (full, quick, "tiny")}
    assert len(names) == 3, "no set of sizes replaces the results of another"


def test_labels_are_moved_apart_and_no_further():
    assert plots.apart([0, 100], [15, 15]) == [0, 100]
    assert plots.apart([50, 51, 52], [15, 15, 15]) == pytest.approx([36, 51, 66], abs=0.1)


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
def test_a_benchmark_is_a_program_whose_size_sets_change_only_sizes_that_there_are(benchmark):
    """Sizes for a large model may have names that the others lack, for which the usual value holds."""
    program = Path(benchmark.file).read_text(encoding="utf-8")
    assert program.endswith('\n\nif __name__ == "__main__":\n    run_benchmark(BENCHMARK)\n')
    full = benchmark.sizes["full"].keys() | benchmark.sizes["large"].keys() | {"model", "repeats"}
    assert all(sizes.keys() <= full for sizes in benchmark.sizes.values())
    assert set(benchmark.headline.sides) <= set(benchmark.sides)
    for size_set in ("full", "quick", "large", "large-quick"):
        assert benchmark.seconds[size_set] > 0 and benchmark.headline.titled(benchmark.sizes_of(size_set))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.parent.name}/{path.stem}")
def test_committed_results_hold_what_their_plots_need(path, tmp_path, monkeypatch):
    document, benchmark = read_json(path), BENCHMARKS[path.parent.parent.name]
    assert document["benchmark"] == benchmark.name
    assert len(document["order"]) >= harness.REPEATS[document["size_set"]]
    first = {
        side: {name: figure["values"][0] for name, figure in figures.items()}
        for side, figures in document["sides"].items()
    }
    config, dtype = ModelConfig(**document["model"]), getattr(torch, document["settings"]["dtype"])
    for name, value in benchmark.derive(document["sizes"], first, config, dtype).items():
        assert value == pytest.approx(document["figures"][name]["values"][0], rel=1e-3), name
    if path.with_suffix(".png").exists():
        (tmp_path / path.name).write_text(path.read_text())
        monkeypatch.setattr(plots, "save", lambda figure, png: png.touch())  # Pixels would double the time.
        with pytest.raises(SystemExit) as ended:
            run_benchmark(benchmark, ["--plot-only", "--results", str(tmp_path)])
        assert ended.value.code == 0 and (tmp_path / path.name).with_suffix(".png").exists()

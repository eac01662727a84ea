"""The command for a machine with a GPU, end to end with tiny sizes: every part, what it says, and its options."""

import json
from pathlib import Path

import pytest
import torch

from common.bench import suite
from common.bench.documents import read_json
from common.bench.gpu import __main__ as command
from common.bench.gpu import kernels, throughput
from common.bench.gpu.__main__ import ALL_SECONDS, parts, run
from common.bench.gpu.suites import run_pytest
from tests.helpers.measured_here import measure_here, shrink_products

# Of the benchmarks of stages one: test_predict.py measures the sides of each, and test_bench.py draws them.
LEFT_OUT = ("04_continuous_batching", "07_speculative")
ALL = parts()
NAMES = [part.name for part in ALL if part.name not in LEFT_OUT]


@pytest.fixture(scope="module", autouse=True)
def parts_here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "MODULES", [name for name in command.MODULES if not name.startswith(LEFT_OUT)])
        shrink_products(patch)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, parts_here) -> Path:
    """These parts have been measured, with tiny sizes, on one thread: on a busy machine several wait for each other."""
    out, threads = tmp_path_factory.mktemp("gpu-bench"), torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "run_process", measure_here)
        patch.setattr("torch.cuda.is_available", lambda: False)
        patch.setattr(kernels, "run_pytest", lambda arguments: {"passed": len(arguments), "skipped": 0, "failures": []})
        try:
            assert run(["--out", str(out)]) == 0
        finally:
            torch.set_num_threads(threads)
    return out


def document(folder: Path, name: str) -> dict:
    [path] = folder.glob(f"*-tiny-{name}.json")
    return read_json(path)


def sides(folder: Path, name: str) -> dict:
    """By side and figure the value of the only repeat."""
    measured = document(folder, name)["sides"]
    return {side: {key: figure["values"][0] for key, figure in each.items()} for side, each in measured.items()}


# ---- The parts ----


@pytest.mark.parametrize("name", NAMES)
def test_every_part_leaves_a_document_and_a_plot(folder, name):
    found = document(folder, name)
    assert found["benchmark"] == name and found["sides"] and found["figures"] and found["seconds"] > 0
    assert {"device", "torch", "commit", "date"} <= found["hardware"].keys()
    assert str(suite.ROOT) not in json.dumps(found)
    [png] = folder.glob(f"*-tiny-{name}.png")
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 10_000


def test_the_results_file_has_every_part(folder):
    [path] = folder.glob("*-tiny.json")
    summary = read_json(path)
    assert sorted(summary["benchmarks"]) == sorted(NAMES) and not summary.get("failed")
    assert {entry["document"] for entry in summary["benchmarks"].values()} <= {path.name for path in folder.iterdir()}


def test_the_contract_part_compares_tokens_and_logits(folder):
    sizes, measured = document(folder, "contract")["sizes"], sides(folder, "contract")
    assert measured["contract"] == {"passed": [1], "skipped": [0]}
    errors = measured["bfloat16"]["relative_error_bundled"]
    assert len(errors) == len(sizes["stages"]) and all(0 < error <= sizes["most"] for error in errors)


def test_throughput_serves_the_workload_of_nano_vllm(folder):
    jobs = throughput.workload(throughput.SIZES)  # which checks the totals
    assert len(jobs) == 256 and jobs[0].prompt[:3] == [6311, 6890, 663]
    with pytest.raises(ValueError, match="142827"):
        throughput.workload(throughput.SIZES | {"totals": [1, 2]})
    side = sides(folder, "throughput")["neither"]
    assert side["tokens_per_second"] == pytest.approx(throughput.TINY["totals"][1] / side["seconds"], rel=1e-4)
    assert document(folder, "throughput")["figures"]["floor_seconds"]["median"] > 0


def test_what_needs_a_gpu_is_named(folder):
    missing = document(folder, "throughput")["missing"]
    assert missing.keys() - {"transformers"} == {"graphs and overlap", "graphs"}
    assert "graphs were asked for, but" in missing["graphs"]
    assert ("transformers" in sides(folder, "throughput")) != ("transformers" in missing)


def test_decode_stands_beside_its_floor(folder):
    found, measured = document(folder, "decode"), sides(folder, "decode")
    assert measured.keys() == {"neither", "03_streaming", "larger model"}
    floor = found["figures"]["floor_ms"]["median"]
    assert 0 < floor[0] < floor[1]
    ratios = [step / least for step, least in zip(measured["neither"]["step_ms"], floor, strict=True)]
    assert found["figures"]["over_floor"]["median"] == pytest.approx(ratios, rel=1e-3)


def test_kernels_are_tested_and_timed(folder):
    measured = sides(folder, "kernels")
    assert measured["tests"]["passed"] >= 4 + len(kernels.TINY["select"]), "every file with tests for a GPU"
    assert {"add_norm", "block", "decode attention"} <= {row["operation"] for row in measured["times"]["rows"]}


def test_pytest_is_counted_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than these tests
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no GPU')\n"
    (tmp_path / "test_sample.py").write_text(text)
    alone = ["-c", "/dev/null", "--rootdir", str(tmp_path)]
    counts = run_pytest([str(tmp_path), *alone])
    assert counts == {"passed": 1, "skipped": 1, "failures": ["test_b: assert 1 == 2"]}
    with pytest.raises(ValueError, match="found no test"):
        run_pytest([str(tmp_path), *alone, "-k", "nothing"])


# ---- The command line ----


def test_what_is_complete_is_not_measured_again(folder, monkeypatch, capfd):
    monkeypatch.setattr(suite, "run_process", lambda *_: ({}, "it was measured"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = document(folder, "decode")
    assert run(["--out", str(folder)]) == 0 and capfd.readouterr().err.count("complete already") == len(NAMES)
    assert run(["--out", str(folder), "--only", "decode", "--again"]) == 1
    assert "decode failed: it was measured" in capfd.readouterr().err
    assert document(folder, "decode") == before, "a failure leaves what was there"


def test_plots_are_drawn_again(folder, monkeypatch):
    [png] = folder.glob("*-tiny-decode.png")
    png.unlink()
    assert run(["--out", str(folder), "--only", "decode", "--plot-only"]) == 0 and png.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "sweeep"], "there is no benchmark 'sweeep'; use kernels, contract"),
        (["--sizes", "gpu"], "needs a CUDA device"),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(["--out", str(tmp_path), *arguments]) == 1
    assert says in capsys.readouterr().err


def test_with_a_gpu_its_sizes_are_the_default(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "main", lambda *_, **defaults: asked.update(defaults) or 0)
    assert run(["--out", str(tmp_path)]) == 0
    assert asked == {"sizes": "gpu", "together": True, "minutes": ALL_SECONDS / 60}


def test_all_parts_fit_into_the_time_of_all():
    assert sum(part.seconds["gpu"] for part in ALL) <= ALL_SECONDS

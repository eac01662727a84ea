"""The command for a machine with a GPU, end to end with tiny sizes; and the budget of a step."""

import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from common.bench import suite
from common.bench.documents import read_json
from common.bench.gpu import __main__ as command
from common.bench.gpu import tests as gpu_tests
from common.bench.gpu.budget import part_of, parts_of, step_budget
from common.bench.gpu.tests import run_pytest
from common.loader import find_checkpoint
from common.loader.config import read_config
from tests.helpers.measured_here import measure_here, shrink_measurements

ROOT = Path(__file__).parents[2]
PARTS = ("tests", "kernels", "budget")  # of the benchmarks of stages, their own tests measure the sides
H200 = 4.2e12, 790e12


def test_the_command_measures_tells_and_packs(tmp_path, monkeypatch, capfd):
    def said(arguments):
        for select, name in pairwise(arguments):
            assert select != "-k" or f"def {name}" in (ROOT / "tests/test_contract.py").read_text(encoding="utf-8")
        return f"{len(arguments)} passed"

    monkeypatch.setattr(suite, "run_process", measure_here)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpu_tests, "run_pytest", said)
    shrink_measurements(monkeypatch)
    out = tmp_path / "results"
    assert command.run(["--out", str(out), "--only", ",".join(PARTS)]) == 0
    [summary] = out.glob("*-tiny.json")
    assert sorted(read_json(summary)["benchmarks"]) == sorted(PARTS) and not read_json(summary).get("failed")
    documents = {name: read_json(next(out.glob(f"*-tiny-{name}.json"))) for name in PARTS}
    assert not any(str(ROOT) in str(document) for document in documents.values())
    assert documents["budget"]["missing"].keys() == {"graphs and overlap", "launched early", "graphs"}
    assert "graphs were asked for, but" in documents["budget"]["missing"]["graphs"]
    tables = (out / "tables.txt").read_text()
    assert tables.strip() in capfd.readouterr().err
    told = ("marked gpu", "06_prefix_cache", "two layers", "triton [64, 4, 3]", "times the floor", "host", "prompts")
    for each in told:
        assert f"\n{each}" in tables or f"  {each}" in tables or f": {each}" in tables, each
    with zipfile.ZipFile(tmp_path / "results.zip") as archive:
        assert {"results/tables.txt", f"results/{summary.name}"} < set(archive.namelist())


def test_with_a_gpu_its_sizes_are_the_default_and_all_parts_fit(monkeypatch):
    asked = {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "main", lambda *_, **defaults: asked.update(defaults) or 0)
    assert command.run([]) == 0
    assert asked == {"sizes": "gpu", "together": True, "minutes": command.ALL_SECONDS / 60}
    assert sum(part.seconds["gpu"] for part in command.parts()) <= command.ALL_SECONDS


def test_pytest_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than these tests
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no GPU')\n"
    (tmp_path / "test_sample.py").write_text(text)
    alone = [str(tmp_path), "-rf", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    assert run_pytest([*alone, "-k", "not test_b"]).startswith("1 passed, 1 skipped, 1 deselected")
    for options, says in (([], "FAILED .*::test_b - assert 1 == 2; 1 failed, 1 pa"), (["-k", "nothing"], "deselected")):
        with pytest.raises(ValueError, match=says):
            run_pytest([*alone, *options])


# ---- The budget ----


def test_the_lines_are_what_arithmetic_says():
    """Qwen3-0.6B: 28 layers of 8 K/V heads of 128, 151,936 tokens; worked out by hand."""
    config = read_config(find_checkpoint("Qwen3-0.6B", with_weights=False))
    lines = step_budget(config, torch.bfloat16, 256, 1000, *H200)
    assert lines["attention"] == pytest.approx(256 * 1000 * 2 * 28 * 8 * 128 * 2 / 4.2e12)
    assert lines["sampler"] == pytest.approx(256 * 151_936 * 2 / 4.2e12)
    assert lines["logits"] == pytest.approx(2 * 256 * 1024 * 151_936 / 790e12), "256 requests: arithmetic, not bytes"
    alone = step_budget(config, torch.bfloat16, 1, 1000, *H200)
    assert alone["logits"] == pytest.approx((1024 + 1) * 151_936 * 2 / 4.2e12), "one request: the weights' bytes"
    assert alone["small kernels"] == pytest.approx(28 * 4 * 2e-6), "no launch is shorter than the smallest kernel"
    told = step_budget(config, torch.bfloat16, 256, 558, *H200)
    shown = ", ".join(f"{part} {1e3 * told[part]:.2f}" for part in ("products", "small kernels", "logits", "sampler"))
    guide = " ".join((ROOT / "GPU.md").read_text(encoding="utf-8").split())
    assert f"attention {1e3 * told['attention']:.2f} ms, {shown}. Python may take {1e3 * told['host']:.0f} ms" in guide


def test_kernels_are_known_by_their_names_and_the_longest_product_is_that_of_the_logits():
    names = ["decode_kernel", "add_norm_kernel", "draw_kernel", "nvjet_tst_128x64", "ampere_bf16_s16816gemm_bf16_128"]
    assert [part_of(name) for name in names] == ["attention", "small kernels", "sampler", "products", "products"]
    assert part_of("void cublasLt::splitKreduce_kernel<32, 16>") == "products", "the sum of one that is cut in pieces"
    assert part_of("Memcpy DtoD (Device -> Device)") == "other"
    moments = [0, 3, 8, 17, 18, 21, 26, 35, 36]  # two steps, one kernel after another
    kernels = list(
        zip(2 * ["gemm", "decode_kernel", "gemm", "gemm"], *zip(*pairwise(moments), strict=True), strict=True)
    )
    assert parts_of(kernels, 2) == {"busy": 18.0, "products": 4.0, "attention": 5.0, "logits": 9.0}
    assert parts_of([("a", 0, 2), ("b", 1, 3), ("c", 5, 6), ("d", 5.5, 5.7)], 1)["busy"] == 4, "overlap counts once"

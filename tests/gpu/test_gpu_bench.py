"""The command for a machine with a GPU, end to end with tiny sizes; and the budget of a step."""

import shutil
from collections import Counter
from itertools import pairwise
from unittest.mock import Mock

import pytest
import torch

from common.bench import suite
from common.bench.cost_model import head_parameters, parameters, step_flops
from common.bench.documents import read_json
from common.bench.gpu import __main__ as command
from common.bench.gpu import nano, roofline, timeline
from common.bench.gpu import tests as gpu_tests
from common.bench.gpu.budget import by_kernel, parts_of, step_budget
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import ROOT, load_engine
from tests.helpers.measured_here import measure_here, shrink_measurements

PARTS = ("smoke", "nano", "tests", "budget")  # the sides of stages are measured by their own tests
H200 = 4.2e12, 790e12
CONFIG = read_config(find_checkpoint("draft", with_weights=False))


def test_the_command_measures_tells_and_packs(tmp_path, monkeypatch, capfd):
    def said(*arguments):
        name = dict(pairwise(arguments)).get("-k", "")
        assert f"def {name}" in (ROOT / "tests/test_contract.py").read_text(encoding="utf-8")
        return 0, f"{len(arguments)} passed"

    monkeypatch.setattr(suite, "run_process", measure_here)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpu_tests, "run_pytest", said)
    shrink_measurements(monkeypatch)
    assert command.run(["--out", str(tmp_path), "--only", ",".join(PARTS)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"results.zip", "tables.txt"}, "few files can be brought back"
    out = tmp_path / "unpacked"
    shutil.unpack_archive(tmp_path / "results.zip", out)
    [summary] = out.glob("*-tiny.json")
    assert sorted(read_json(summary)["benchmarks"]) == sorted(PARTS)
    assert not any(str(ROOT) in path.read_text() for path in out.glob("*.json"))
    assert "graphs were asked for, but" in read_json(next(out.glob("*-tiny-budget.json")))["missing"]["graphs"]
    tables = (tmp_path / "tables.txt").read_text()
    assert tables.strip() in capfd.readouterr().err
    for each in ("marked gpu", "06_prefix_cache", "two layers", "triton [64, 4, 3]", "host", "budget", "A step of 3"):
        assert each in tables
    monkeypatch.setattr(suite, "run_process", Mock(side_effect=AssertionError))
    assert command.run(["--out", str(tmp_path), "--only", ",".join(PARTS)]) == 0, "it finds what is complete"


# ---- nano-vllm's benchmark ----


def test_the_requests_are_those_of_nano_vllm():
    """Its bench.py says 133,966 tokens for all answers."""
    prompts, answers = nano.workload(nano.BENCHMARK.sizes["full"])
    assert (sum(map(len, prompts)), sum(answers), len(prompts)) == (142_827, 133_966, 256)


def test_the_floor_is_what_arithmetic_says():
    """A request of 10 tokens in and 3 out looks at 11, 12 and 13 tokens, and reads the weights 3 times."""
    rates = {"copy_bytes_per_second": 1e9, "matmul_flops_per_second": 1e12}
    floor = nano.floor_seconds(CONFIG, torch.float32, [[7] * 10], [3], rates)
    weights = 4 * (parameters(CONFIG) - (0 if CONFIG.tie_embeddings else head_parameters(CONFIG)))
    kv = 36 * CONFIG.kv_bytes_per_token(torch.float32)
    assert floor == pytest.approx((3 * weights + kv) / 1e9 + step_flops(CONFIG, 10) / 0.7e12)


# ---- The budget ----


def test_the_lines_are_what_arithmetic_says():
    """Qwen3-0.6B: 28 layers of 8 K/V heads of 128, 151,936 tokens; worked out by hand."""
    config = read_config(find_checkpoint("Qwen3-0.6B", with_weights=False))
    lines = step_budget(config, torch.bfloat16, 1000, *H200, 256)
    assert lines["attention"] == pytest.approx(256 * 1000 * 2 * 28 * 8 * 128 * 2 / 4.2e12)
    assert lines["sampler"] == pytest.approx(256 * 151_936 * 2 / 4.2e12)
    assert lines["logits"] == pytest.approx(2 * 256 * 1024 * 151_936 / 790e12), "256 requests: arithmetic, not bytes"
    alone = step_budget(config, torch.bfloat16, 1000, *H200, 1)
    assert alone["logits"] == pytest.approx((1024 + 1) * 151_936 * 2 / 4.2e12), "one request: the weights' bytes"
    assert alone["small kernels"] == pytest.approx(28 * 4 * 2e-6), "no launch is shorter than the smallest kernel"


def test_the_longest_product_of_a_step_is_that_of_the_logits():
    moments = [0, 3, 8, 17, 18, 21, 26, 35, 36]  # two steps, one kernel after another
    names = 2 * ["nvjet_tst", "decode_kernel", "nvjet_tst", "nvjet_tst"]
    kernels = [(name, *times) for name, times in zip(names, pairwise(moments), strict=True)]
    assert parts_of(kernels, 2) == {"products": 4.0, "attention": 5.0, "logits": 9.0}
    kernels.append(("copy", 40, 44))  # It follows a gap; the next copy overlaps it.
    assert by_kernel([*kernels, ("copy", 41, 43)], 2) == (20.0, [
        ("nvjet_tst", 3.0, 13e6), ("decode_kernel", 1.0, 5e6), ("copy", 1.0, 3e6),
    ])  # fmt: skip


# ---- The roofline and the timeline ----


def test_the_roof_is_drawn_with_what_has_been_measured_or_without(tmp_path):
    for card in ("h200", "l4"):  # the second has no results
        roofline.draw(card, tmp_path / card)
        assert (tmp_path / card).stat().st_size > 10_000


def test_steps_are_recorded_and_drawn(tmp_path, loaded):
    engine = load_engine("06")(loaded, max_running=2, kv_memory="8M")
    spans = timeline.recorded(engine, 2, 20, tmp_path / "it.trace.json")
    assert Counter(name for name, *_ in spans) == {"Python": timeline.STEPS, "waiting": timeline.STEPS}
    assert (tmp_path / "it.trace.json").stat().st_size > 1000
    timeline.draw({"With graphs": spans}, tmp_path / "it.png", "")
    assert (tmp_path / "it.png").stat().st_size > 10_000

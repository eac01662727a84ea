"""The budget of a step: its arithmetic, which kernel belongs to which part, and the table."""

import json

import pytest
import torch

from common.bench.experiment import run_experiment
from common.bench.gpu import budget, host
from common.bench.gpu.budget import Rates, covered, measure_step, part_of, parts_of, prompt_budget, step_budget, table
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import load_engine

H200 = Rates(4.2e12, 790e12)


def test_the_lines_are_what_arithmetic_says():
    """Qwen3-0.6B: 28 layers of 8 K/V heads of 128, 151,936 tokens; worked out by hand."""
    config = read_config(find_checkpoint("Qwen3-0.6B", with_weights=False))
    lines = step_budget(config, torch.bfloat16, 256, 1000, H200)
    assert lines["attention"] == pytest.approx(256 * 1000 * 2 * 28 * 8 * 128 * 2 / 4.2e12)
    assert lines["sampler"] == pytest.approx(256 * 151_936 * 2 / 4.2e12)
    assert lines["logits"] == pytest.approx(2 * 256 * 1024 * 151_936 / 790e12), "256 requests: arithmetic, not bytes"
    alone = step_budget(config, torch.bfloat16, 1, 1000, H200)
    assert alone["logits"] == pytest.approx((1024 + 1) * 151_936 * 2 / 4.2e12), "one request: the weights' bytes"
    assert alone["small kernels"] == pytest.approx(28 * 4 * 2e-6), "no launch is shorter than the smallest kernel"
    assert prompt_budget(config, [100, 300], H200) == pytest.approx(
        prompt_budget(config, [100], H200) + prompt_budget(config, [300], H200)
    )


def test_kernels_are_known_by_their_names():
    names = ["decode_kernel", "add_norm_kernel", "draw_kernel", "nvjet_tst_128x64", "ampere_bf16_s16816gemm_bf16_128"]
    assert [part_of(name) for name in names] == ["attention", "small kernels", "sampler", "products", "products"]
    assert part_of("Memcpy DtoD (Device -> Device)") == "other"


def test_the_longest_product_of_each_step_is_that_of_the_logits():
    step = [("gemm", 3.0), ("decode_kernel", 5.0), ("gemm", 9.0), ("gemm", 1.0)]
    assert parts_of(2 * step, 2) == {"products": 4.0, "attention": 5.0, "logits": 9.0}


def test_time_in_which_kernels_overlap_counts_once():
    assert covered([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4


def test_a_table_has_a_line_for_everything_that_is_known():
    found = {"budget": {"attention": 2e-3, "host": 4e-3}, "measured": {"attention": 3e-3, "idle": 1e-3}}
    about = {"settings": {"model": "tiny"}, "sizes": {"requests": 1, "context": 2}, "rates": vars(H200)}
    lines = table(found | about)
    assert [line.split() for line in lines[2:]] == [
        ["attention", "2.000", "3.000", "1.5"],
        ["host", "4.000"],
        ["idle", "1.000"],
    ]


def test_a_step_is_measured_where_there_is_no_gpu(loaded):
    engine = load_engine("06")(loaded, max_running=4)
    found = measure_step(engine, 3, 20, steps=2)
    assert set(found) == {"prompts", "step", "host"} and 0 < found["host"] <= found["step"]
    assert not engine.has_unfinished


def test_python_is_measured_with_a_model_that_computes_nothing(capsys):
    assert run_experiment(host.measure, ["--requests", "3", "--context", "20", "--steps", "2"], device="cpu") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"]["requests"] == 3 and 0 < found["least_ms"] <= found["host_ms"]


def test_the_arithmetic_alone_needs_no_gpu(capsys):
    arguments = ["--bandwidth", "4.2", "--tflops", "790"]
    assert run_experiment(budget.measure, arguments, table=table, model="Qwen3-0.6B", load_format="dummy") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Qwen3-0.6B, 256 requests") and out[2].startswith("attention")
    document = json.loads(out[-1])
    parts = ("attention", "products", "small kernels", "logits", "sampler")
    assert document["budget"]["step"] == pytest.approx(sum(document["budget"][part] for part in parts))

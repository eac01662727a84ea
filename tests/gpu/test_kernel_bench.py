"""The benchmark of kernels runs wherever Triton's interpreter does, and its variants compute the same."""

import json
from dataclasses import replace

import pytest
import torch

from common.bench.gpu.kernels import TINY, line, measure_rows
from common.bench.timing import median_seconds
from common.model import ModelConfig
from tests.helpers.triton_marks import devices, needs_triton

QWEN3 = ModelConfig(
    vocab_size=97, hidden_size=48, intermediate_size=72, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=20,
    context_length=64, qk_norm=True,
)  # fmt: skip
LLAMA = replace(QWEN3, qk_norm=False, num_heads=3, num_kv_heads=3)


@needs_triton
@devices
def test_every_variant_is_measured(device):
    found = measure_rows(QWEN3, torch.device(device), torch.float32, TINY)
    assert json.loads(json.dumps(found)) == found and found["copy_bytes_per_second"] > 0
    shown = found["rows"]
    operations = ["add_norm", "norm_rotate", "norm_rotate, write", "silu_mul", "block"]
    expected = [(name, tokens) for tokens in TINY["tokens"] for name in operations] + [("decode attention", 2)]
    assert [(row["operation"], row["tokens"]) for row in shown] == expected
    for row in shown:
        wanted = {"torch", "triton"} if row["operation"] == "decode attention" else {"eager", "compiled", "triton"}
        assert {name.split(",")[0] for name in row["us"]} >= wanted
        assert row["floor_us"] > 0 and all(value > 0 for value in (*row["us"].values(), *row["first_call_s"].values()))
        assert all(f"{name} {value:.1f} (" in line(row) for name, value in row["us"].items())
    assert "flash" in shown[-1]["missing"], "it takes no float32"


@needs_triton
@devices
@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
@torch.inference_mode()
def test_variants_compute_the_same(config, device):
    from common.bench.gpu.kernel_cases import attention_case, layers_of, model_cases

    def outcome(case, name, arguments):
        """What the variant returns, and what it writes to; of a block, the sum that it leaves to the next."""
        arguments = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
        result = case.variants[name](*arguments)
        if case.operation == "add_norm":
            return result if name == "eager" else (arguments[1], result)
        if case.operation == "block":
            return result[:1] if name == "eager" else (arguments[2] + result,)
        return (*(result if isinstance(result, tuple) else (result.flatten(1),)), *arguments[1:])

    device = torch.device(device)
    cases = list(model_cases(layers_of(config, device, torch.float32), 3))
    for case in [*cases, attention_case(config, 3, 20, device, torch.float32)]:
        arguments = case.arguments(0)
        if case.operation == "block":
            arguments[2].zero_()  # the plain block takes the sum as x, the fused one in two parts
        names = [name for name in case.variants if name not in ("compiled", "products alone")]
        first, *others = (outcome(case, name, arguments) for name in names)
        assert others
        for other in others:
            for actual, expected in zip(other, first, strict=True):
                torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-5)


@needs_triton
@devices
def test_a_variant_that_fails_is_left_out_and_says_why(device, monkeypatch):
    from common.bench.gpu import kernel_cases

    def broken(gate_up):
        raise RuntimeError("no such instruction. Try another GPU")

    monkeypatch.setattr(kernel_cases, "silu_mul", broken)
    sizes = TINY | {"tokens": [1], "requests": [], "copy_bytes": 64}
    rows = measure_rows(QWEN3, torch.device(device), torch.float32, sizes)["rows"]
    [row] = (row for row in rows if row["operation"] == "silu_mul")
    assert row["us"].keys() == {"eager", "compiled"} and row["missing"] == {"triton": "no such instruction"}
    assert line(row).endswith("no triton: no such instruction")


def test_a_median_is_of_turns_of_all_inputs():
    calls = []
    seconds = median_seconds(calls.append, torch.device("cpu"), [(1,), (2,)], repeats=3)
    assert calls == [1, 2] * 4 and 0 < seconds < 1


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
def test_a_gpu_is_timed_by_its_own_clock(graph):
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    small, large = (
        median_seconds(torch.mm, device, [(matrix[:rows], matrix)], graph=graph, repeats=3) for rows in (64, 4096)
    )
    assert 0 < small < large, "Python is back long before the GPU has ended"


def test_where_triton_cannot_run_one_sentence_says_so(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="the kernels cannot be measured here: "):
        measure_rows(QWEN3, torch.device("cpu"), torch.float32, TINY)

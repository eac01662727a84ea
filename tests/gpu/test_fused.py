"""The fused kernels compute what the operations of common/model.py compute, and so does the model that uses them."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from common.fused import FusedTransformer, fuse
from common.loader import load_model
from common.model import Transformer, rope_table, rotate
from common.sampling import SamplingParams
from common.stages import load_engine
from tests.helpers.small_models import CONFIGS, SMALL, causal_attend, poison, random_model, step_of
from tests.helpers.triton_marks import devices, needs_triton

pytestmark = needs_triton
dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype).removeprefix("torch.")
)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    from common.fused import rotation, triton_kernels

    poison(monkeypatch, triton_kernels, rotation)


def normal(*shape, dtype, device, scale=1.0):
    return (scale * torch.randn(*shape)).to(device, dtype)


def assert_as_eager(actual, expected):
    """float32 within a few units in the last place of numbers about 10. The others are rounded where the plain model
    rounds, so that they differ only where its float32 results lie within their last bits of a rounding border."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    ulp = torch.finfo(expected.dtype).eps
    if expected.dtype == torch.float32:
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-6)
    elif expected.dtype == torch.bfloat16 and expected.device.type == "cpu":  # the interpreter cuts bits off instead
        torch.testing.assert_close(actual, expected, atol=4 * ulp, rtol=4 * ulp)
    else:
        torch.testing.assert_close(actual, expected, atol=4 * ulp, rtol=ulp)
        assert (actual != expected).sum() <= 1 + 0.01 * actual.numel()


# ---- Kernels ----


@devices
@dtypes
@pytest.mark.parametrize("shape", [(1, 64), (3, 1024), (5, 100), (2, 2560), (2, 7), (0, 64)], ids=str)
def test_add_norm(device, dtype, shape):
    from common.fused.triton_kernels import add_norm

    x, residual = (normal(*shape, dtype=dtype, device=device) for _ in range(2))
    weight = normal(shape[1], dtype=dtype, device=device)
    total = residual + x
    expected = F.rms_norm(total, weight.shape, weight, 1e-2)
    alone = F.rms_norm(residual, weight.shape, weight, 1e-2)
    assert_as_eager(add_norm(None, before := residual.clone(), weight, 1e-2), alone)
    assert torch.equal(before, residual)
    assert_as_eager(add_norm(x, residual, weight, 1e-2), expected)
    assert_as_eager(residual, total)


@devices
@dtypes
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "plain"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (1, 1, 80), (7, 7, 96), (16, 8, 128)])
def test_norm_rotate(device, dtype, normed, heads, kv_heads, head_dim):
    from common.attention.triton_backend import TritonAttention
    from common.fused.triton_kernels import Rotation

    config = replace(SMALL, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, context_length=40)
    cos, sin = (table.to(device) for table in rope_table(config))
    qkv = normal(5, (heads + 2 * kv_heads) * head_dim, dtype=dtype, device=device)
    positions = torch.tensor([39, 0, 7, 7, 23], device=device)
    weights = [normal(head_dim, dtype=dtype, device=device) for _ in range(2)] if normed else [None, None]
    q, k, v = qkv.clone().view(5, -1, head_dim).split([heads, kv_heads, kv_heads], dim=1)
    c, s = (table[positions].unsqueeze(1).to(dtype) for table in (cos, sin))
    expected = []
    for x, weight in zip((q, k), weights, strict=True):
        expected.append(rotate(F.rms_norm(x, (head_dim,), weight, 1e-2) if normed else x, c, s))
    rotation = Rotation(positions, cos, sin, *weights, 1e-2, heads, kv_heads)
    for ours, theirs in zip(rotation.heads(qkv), [*expected, v], strict=True):
        assert_as_eager(ours, theirs)
        assert ours.stride()[1:] == (head_dim, 1), "attention takes heads and dimensions as contiguous"
    k_pages, v_pages = torch.full((2, 3, 4, kv_heads, head_dim), 7.0, dtype=dtype, device=device)
    slots = torch.tensor([11, 0, 6, 3, 1], device=device)
    others = torch.tensor([2, 4, 5, 7, 8, 9, 10], device=device)
    ours = rotation.heads(qkv)
    TritonAttention(dtype).write(*ours[1:], k_pages, v_pages, slots)  # in the launch that rotates
    for one, theirs in zip(ours, [*expected, v], strict=True):
        assert_as_eager(one, theirs)
    for pages, theirs in ((k_pages, expected[1]), (v_pages, v)):
        assert_as_eager(pages.flatten(0, 1)[slots], theirs)
        assert (pages.flatten(0, 1)[others] == 7).all(), "a slot of another token was written"
    q, k, v = rotation.heads(qkv)
    k *= 2  # the first use: what is written now is what k holds
    TritonAttention(dtype).write(k, v, k_pages, v_pages, slots)
    assert_as_eager(k_pages.flatten(0, 1)[slots] / 2, expected[1])
    assert_as_eager(q, expected[0])


@devices
@dtypes
@pytest.mark.parametrize("shape", [(1, 64), (3, 1024), (2, 3000), (4, 45), (0, 64)], ids=str)
def test_silu_mul(device, dtype, shape):
    from common.fused.triton_kernels import silu_mul

    gate_up = normal(shape[0], 2 * shape[1], dtype=dtype, device=device, scale=3)
    gate, up = gate_up.chunk(2, dim=-1)
    assert_as_eager(silu_mul(gate_up), F.silu(gate) * up)


# ---- The model ----


@devices
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_hidden_states_are_those_of_the_plain_model(config, device):
    model = random_model(config, device)
    fused, step = fuse(model), step_of(config, device)
    with torch.inference_mode():
        expected, hidden = model(*step, causal_attend), fused(*step, causal_attend)
        assert hidden.dtype == expected.dtype and expected.std() > 0.5
        torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fused.logits(hidden), model.logits(expected), atol=1e-5, rtol=1e-5)


@devices
def test_bfloat16_is_as_close_to_float32_as_the_plain_model_is(device):
    exact, step = random_model(CONFIGS["qwen3"], device), step_of(CONFIGS["qwen3"], device)
    plain = random_model(CONFIGS["qwen3"], device, torch.bfloat16)
    for ours, theirs in zip(exact.parameters(), plain.parameters(), strict=True):
        theirs.copy_(ours)
        ours.copy_(theirs)
    with torch.inference_mode():
        expected = exact(*step, causal_attend)
        plain_error, fused_error = (
            (model(*step, causal_attend) - expected).square().mean().sqrt() for model in (plain, fuse(plain))
        )
    # The interpreter cuts bits off where a GPU rounds: twice the error, and all of it to one side.
    assert 0 < fused_error < plain_error * (1.2 if device == "cuda" else 4)


@devices
def test_it_is_the_same_modules_and_parameters(device):
    model = random_model(CONFIGS["llama tied"], device)
    fused = fuse(model)
    assert isinstance(fused, Transformer) and fused.head.weight is model.embedding.weight
    parameters = dict(model.named_parameters())
    assert parameters.keys() == dict(fused.named_parameters()).keys()
    assert all(parameter is parameters[name] for name, parameter in fused.named_parameters())


class Doubled(nn.Module):
    """Stands for a product that is spread over GPUs: a module of another class, whose result is its own."""

    def __init__(self, linear: nn.Module):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x) + self.linear(x)


@devices
def test_modules_can_be_replaced_and_heads_are_those_of_the_block(device):
    model = random_model(CONFIGS["llama"], device)
    for block in model.blocks:
        block.attention.output, block.mlp.down = Doubled(block.attention.output), Doubled(block.mlp.down)
    model.head = Doubled(model.head)
    step = step_of(model.config, device)
    with torch.inference_mode():
        expected = model.logits(model(*step, causal_attend))
        model.config = replace(model.config, num_heads=40, num_kv_heads=40)
        fused = fuse(model)
        torch.testing.assert_close(fused.logits(fused(*step, causal_attend)), expected, atol=1e-5, rtol=1e-5)


@devices
@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_the_bundled_model_writes_what_the_reference_writes(attention, device, reference, monkeypatch):
    """With Triton's attention, K and V are written by the kernel that rotates them, and by no other."""
    loaded = load_model(device=device, dtype="float32", fused="triton")
    assert isinstance(loaded.model, FusedTransformer)
    from common.attention import triton_kernels

    monkeypatch.setattr(triton_kernels, "write_kernel", None)
    prompt = loaded.tokenizer("The capital of France is")["input_ids"]
    engine = load_engine("05")(loaded, kv_memory="8M", attention=attention)
    [completion] = engine.generate([prompt], SamplingParams(max_tokens=4))
    assert completion.token_ids == reference.generate(prompt, 4)


def test_triton_on_the_cpu_needs_its_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="fused kernels cannot run here: "):
        load_model(device="cpu", fused="triton")
    with pytest.raises(ValueError, match="fused='always' is unknown"):
        load_model(device="cpu", fused="always")


@pytest.mark.gpu
def test_cuda_has_the_fused_model_unless_not_wanted():
    assert type(load_model(device="cuda").model) is FusedTransformer
    assert type(load_model(device="cuda", fused=False).model) is Transformer


@pytest.mark.gpu
@torch.inference_mode()
def test_a_cuda_graph_can_hold_it():
    model = fuse(random_model(CONFIGS["qwen3"], "cuda", torch.bfloat16))
    ids, positions = step_of(model.config, "cuda")
    model(ids, positions, causal_attend)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = model(ids, positions, causal_attend)
    for _ in range(2):
        for held, new in zip((ids, positions), step_of(model.config, "cuda"), strict=True):
            held.copy_(new)
        graph.replay()
        torch.testing.assert_close(hidden, model(ids, positions, causal_attend))

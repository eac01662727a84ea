"""The fused kernels and packed products compute what common/model.py computes, whatever else is in the batch."""

from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from common.learn.milestones.stage_under_test import causal_attention
from tests.helpers.small_models import CONFIGS, SMALL, poison, random_model, step_of
from tests.helpers.triton_marks import devices, needs_triton, on_cpu

pytest.importorskip("numba", exc_type=ImportError)

from common import fused as fusing
from common.fused import FusedTransformer, codes, few_tokens, fuse, numba_kernels, packed, rotation, tiles
from common.fused.packed import PackedLinear
from common.fused.quantized import Codes, QuantizedLinear, QuantizedWeight, prepare_unpacking
from common.loader import load_model
from common.loader.weights import quantize
from common.lora import StepRows, stacked
from common.model import Transformer, rope_table
from common.reference import Reference
from common.sampling import SamplingParams
from common.stages import load_engine

cpu_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
FEW = 10  # tokens: the limit of the kernels for few tokens in these tests. Engines measure theirs.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    poison(monkeypatch, numba_kernels, rotation, few_tokens)
    if find_spec("triton"):
        from common.fused import triton_adapters, triton_kernels

        poison(monkeypatch, triton_kernels, triton_adapters)


each_kernel = pytest.mark.parametrize(
    ("kernels", "device", "dtype"),
    [
        *(pytest.param("numba", "cpu", dtype) for dtype in (torch.float32, torch.bfloat16)),
        *(pytest.param("triton", "cpu", dtype, marks=[needs_triton, on_cpu]) for dtype in DTYPES),
        *(pytest.param("triton", "cuda", dtype, marks=[needs_triton, pytest.mark.gpu]) for dtype in DTYPES),
    ],
)


def module_of(kernels: str):
    return numba_kernels if kernels == "numba" else import_module("common.fused.triton_kernels")


def numbers(kernels: str, *shape, dtype, device, scale=1.0):
    """numba: of every size whose sum of squares float32 holds, zeros, and some below the smallest normal."""
    x = scale * torch.randn(shape)
    if kernels == "numba":
        x = x * 10.0 ** torch.randint(-8, 9, shape)
        x[torch.rand(shape) < 0.1] = 0.0
        x[torch.rand(shape) < 0.1] = 1e-39
    return x.to(device, dtype)


def assert_right(kernels, actual, exact, atol=1e-37):
    """numba: the number nearest to what float64 gives, but for ten units in the last place of float32; atol: what
    underflow leaves. Triton rounds where the plain model does, and its interpreter cuts bits off instead."""
    eps = torch.finfo(actual.dtype).eps
    rtol, atol = (eps / 2, atol) if kernels == "numba" else (4 * eps, max(4 * eps, 1e-5))
    torch.testing.assert_close(actual.double(), exact, rtol=rtol + 1e-6, atol=atol)


# ---- The kernels ----


@each_kernel
@pytest.mark.parametrize("shape", [(17, 100), (2, 2560), (2, 1), (0, 64)], ids=str)
def test_add_norm(kernels, device, dtype, shape):
    add_norm, sizes = module_of(kernels).add_norm, (shape, shape, shape[1:])
    x, residual, weight = (numbers(kernels, *size, dtype=dtype, device=device) for size in sizes)
    out = add_norm(x, total := residual.clone(), weight, 1e-2)
    assert out.dtype == dtype
    assert_right(kernels, total, residual.double() + x.double())
    expected = F.rms_norm(total.double(), weight.shape, weight.double(), 1e-2)
    assert_right(kernels, out, expected)
    assert_right(kernels, add_norm(None, before := total.clone(), weight, 1e-2), expected)
    assert torch.equal(before, total)
    # A copy: for rows at other addresses than in steps, Triton compiles sums in another order.
    assert torch.equal(add_norm(None, total[:1].clone(), weight, 1e-2), out[:1])


@each_kernel
@pytest.mark.parametrize("shape", [(17, 45), (2, 3000), (2, 1), (0, 64)], ids=str)
def test_silu_mul(kernels, device, dtype, shape):
    gate_up = numbers(kernels, shape[0], 2 * shape[1], dtype=dtype, device=device, scale=3)
    out, (gate, up) = module_of(kernels).silu_mul(gate_up), gate_up.double().chunk(2, dim=-1)
    assert out.dtype == dtype
    assert_right(kernels, out, F.silu(gate) * up, atol=1e-20)


@each_kernel
@pytest.mark.parametrize(("ranks", "ins"), [((5, 8, 0), 1100), ((192, 3, 0), 130)], ids=str)
def test_adapters(kernels, device, dtype, ranks, ins):
    """A row without an adapter, or with one of rank 0, stays as it is, and a tile without rows changes none."""
    module, outs, device = import_module(f"common.fused.{kernels}_adapters"), 150, torch.device(device)
    x, y = torch.randn(47, ins, dtype=dtype), torch.randn(47, outs, dtype=dtype)
    rows, adapters, expected, out = torch.randperm(47).split([19, 20, 1, 7]), [], y.double(), y.clone().to(device)
    for rank, own in zip(ranks, rows, strict=False):
        lora_a, lora_b = torch.randn(rank, ins, dtype=dtype), torch.randn(rank, outs, dtype=dtype)
        adapters.append((lora_a, lora_b, torch.tensor([0, outs]).repeat(rank, 1)))
        expected[own] += x[own].double() @ lora_a.double().T @ lora_b.double()
    step = StepRows(module, 3, 0, device)
    step.lay([own.tolist() for own in rows[:3]], 47)
    more = step.tiles.new_zeros(130 if ins < 1000 else 1, 3)  # without rows; many tiles are computed in another way
    backwards = torch.cat([step.tiles, more]).flip(0)  # so no later tile hides what a tile writes into its place
    module.add_lora(x.to(device), out, *stacked(adapters, device), step.order, backwards)
    near, terms = 4 * torch.finfo(dtype).eps, ins * max(ranks)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=near, atol=max(near, 4e-6) * terms**0.5)
    alone = torch.cat(rows[2:])
    assert torch.equal(out.cpu()[alone], y[alone])


@needs_triton
@devices
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(16, 8, 128), (1, 1, 80), (7, 7, 6)])
def test_the_launch_that_norms_and_rotates_writes_pages_too(device, dtype, heads, kv_heads, head_dim):
    """What it makes of q, k and v is what numba makes of them in float32."""
    from common.attention.triton_backend import TritonAttention
    from common.fused.triton_kernels import Rotation

    positions, qkv = torch.tensor([39, 0, 7, 7, 23]), torch.randn(5, (heads + 2 * kv_heads) * head_dim).to(dtype)
    tables = *rope_table(replace(SMALL, head_dim=head_dim)), *(torch.randn(head_dim).to(dtype) for _ in "qk")
    rotation = numba_kernels.Rotation(positions, *(each.float() for each in tables), 1e-2, heads, kv_heads)
    expected = rotation.heads(qkv.float().clone())
    rotation = Rotation(positions.to(device), *(each.to(device) for each in tables), 1e-2, heads, kv_heads)
    q, k, v = rotation.heads(qkv.to(device))
    slots = torch.tensor([11, 0, 6, 3, 1], device=device)
    pools = torch.full((2, 3, 4, kv_heads, head_dim), 7.0, dtype=dtype, device=device)
    TritonAttention(dtype).write(k, v, *pools, slots)
    for ours, exact in zip((q, k, v), expected, strict=True):
        assert_right("triton", ours.cpu(), exact.double())
        assert ours.stride()[1:] == (head_dim, 1), "attention takes heads and dimensions as contiguous"
    for pool, written in zip(pools.flatten(1, 2), (k, v), strict=True):
        assert torch.equal(pool[slots], written)
        pool[slots] = 7
    assert (pools == 7).all(), "a slot of another token was written"


# ---- Products ----


@pytest.mark.parametrize("bits", [8, 4])
@cpu_dtypes
@torch.inference_mode()
def test_what_is_unpacked_for_many_rows_is_what_codes_stand_for(dtype, bits):
    codes = Codes.of(torch.logspace(-1.5, 2, 97)[:, None] * torch.randn(97, 688), bits)
    layer = QuantizedLinear(QuantizedWeight(codes, 688, dtype), None)
    rounded = layer.quantized.rows(torch.arange(97))
    prepare_unpacking(layer, dtype, numba_kernels.compiled(dtype).unpacked)
    if layer.scratch:  # None if oneDNN packs otherwise than the course unpacks.
        for layer.keeps in (False, True, True):
            assert torch.equal(layer(torch.eye(688, dtype=dtype)).T, rounded.to(dtype))


def weight_bytes(model: nn.Module) -> int:
    """Of all weights, plain or packed; a tensor that two modules share counts once."""
    tensors = {id(tensor): tensor for tensor in model.parameters()}
    tensors |= {id(module): module.packed for module in model.modules() if isinstance(module, PackedLinear)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@cpu_dtypes
@pytest.mark.parametrize("config", ["llama", "llama tied"])
def test_weights_are_in_memory_once(config, dtype, monkeypatch):
    """But for small ones where oneDNN packs them otherwise than few_tokens.py reads them, and a small tied head."""
    monkeypatch.setattr(packed, "MAX_TWICE", 0)
    model = random_model(CONFIGS[config], dtype=dtype)
    before = weight_bytes(model)
    ids, words = torch.randint(97, (11,)), model.embedding.weight.clone()
    fused = fuse(model, "numba")
    assert weight_bytes(fused) == before
    assert torch.equal(fused.embedding(ids), words[ids])
    if fused.few_scores:  # None if oneDNN packs otherwise than these kernels read.
        assert type(fused.head) is PackedLinear and all(fused.few)


# ---- The model ----


SHAPES = CONFIGS | {"sizes of tiles": replace(SMALL, hidden_size=64, intermediate_size=96)}
QUANTIZATIONS = ("none", "int8", "int4")


@pytest.mark.parametrize(
    ("kernels", "device", "dtype", "count", "quantization"),
    [
        *product(["numba"], ["cpu"], [torch.float32], [7, FEW, FEW + 1], QUANTIZATIONS),
        *product(["numba"], ["cpu"], [torch.bfloat16], [24, 25, 39, 40], QUANTIZATIONS),
        pytest.param("triton", "cpu", torch.float32, 9, "none", marks=[needs_triton, on_cpu]),
        pytest.param("triton", "cuda", torch.float32, 9, "none", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
@torch.inference_mode()
def test_hidden_states_are_those_of_the_plain_model(config, kernels, device, dtype, count, quantization):
    """Or of a plain model in float32 whose weights are what the quantised ones stand for."""
    model, step = random_model(config, device, dtype), step_of(config, device, count)
    plain = deepcopy(model).float()
    if quantization != "none":
        quantize(model, quantization)
        model.blocks[0].attention.output = deepcopy(plain.blocks[0].attention.output).to(dtype)  # forms may be mixed
        for name, parameter in plain.named_parameters():
            layer = model.get_submodule(name.rpartition(".")[0])
            if parameter.ndim == 2 and hasattr(layer, "quantized"):
                parameter.copy_(layer.quantized.rows(torch.arange(len(parameter))))
    fused, expected = fuse(model, kernels), plain(*step, causal_attention)
    assert quantization == "none" or all(fused.few)
    most_few, near = FEW, {"atol": 2e-5, "rtol": 1e-5}
    if dtype == torch.bfloat16:
        most_few, near = 39, {"atol": 0.1, "rtol": 0.02}
    fused.most_few = most_few if all(fused.few) else 0
    hidden = fused(*step, causal_attention)
    assert hidden.dtype == dtype and expected.std() > 0.5
    if dtype == torch.bfloat16:  # It is rounded about as often as by the library; with codes, to 8 bits, too.
        assert (hidden.float() - expected).std() < (0.03 if quantization == "none" else 0.05)
    else:
        torch.testing.assert_close(hidden, expected, **near)
    torch.testing.assert_close(fused.logits(expected.to(dtype)), plain.logits(expected), **near)


@cpu_dtypes
def test_few_tokens_may_lie_apart_or_be_none(dtype):
    model = random_model(SMALL, dtype=dtype)
    hidden, weight = torch.randn(2 * FEW, SMALL.hidden_size).to(dtype)[::2], model.head.weight
    scores = checked_scores(fuse(model, "numba").head, hidden, weight)
    assert scores(hidden[:0]).shape == (0, SMALL.vocab_size)


@pytest.mark.parametrize("size", [100, 96])  # Tiles take a multiple of 32 inputs: 100 is none.
@pytest.mark.parametrize("rows", [1, 3, 8, 15, 17, 24, 25, 33, 70])
@pytest.mark.parametrize(("bits", "outputs"), [(8, 32), (4, 32), (16, 32), (16, 64)])
@torch.inference_mode()
def test_products_in_bfloat16_are_added_in_float32(bits, outputs, rows, size):
    """By the instructions that the processor has, with blocks of either size that oneDNN packs."""
    hidden = torch.randint(-127, 128, (rows, size))
    hidden[:, ::16] = torch.where(hidden[:, ::16] > 0, 127, -127)  # 127 is the largest of each 16: nothing is rounded.
    hidden = (hidden * 2.0 ** torch.randint(-9, 0, (rows, 1))).bfloat16()
    layer = nn.Linear(size, 97, bias=False, dtype=torch.bfloat16)
    layer.blocks, weight = packed.Blocks.at(packed.in_blocks(layer.weight, outputs, size).contiguous()), layer.weight
    if bits < 16:
        layer = QuantizedLinear(QuantizedWeight(Codes.of(weight, bits), size, torch.bfloat16), None)
        weight = layer.quantized.rows(torch.arange(97))
        if tiles.has_tiles() and size % tiles.INPUTS == 0 and rows >= tiles.MIN_ROWS_QUANTIZED:
            weight = weight.bfloat16()  # Tiles have no numbers in float32.
    checked_scores(layer, hidden, weight)


@pytest.mark.skipif(not codes.HAS_CODES, reason="needs a processor with AVX512 VNNI")
@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 15)])
@torch.inference_mode()
def test_rows_are_rounded_to_a_127th_of_the_largest_of_16_numbers(bits, most):
    hidden = torch.randn(20, 96).bfloat16()
    hidden[0, 32:64] = 0
    eye = QuantizedWeight(Codes.of(most * torch.eye(96), bits), 96, torch.bfloat16)
    rounded = few_tokens.FewScores(QuantizedLinear(eye, None), torch.bfloat16)(hidden) / most
    steps = hidden.float().unflatten(1, (-1, 16)).abs().amax(2).repeat_interleave(16, 1) / 127
    assert 0.45 < ((rounded - hidden).abs() / steps.clamp(min=1e-30)).max() < 0.51


def checked_scores(layer, hidden, weight) -> few_tokens.FewScores:
    """Return the layer's kernel, checked to multiply these rows with the weight."""
    scores = few_tokens.FewScores(layer, hidden.dtype)
    exact = hidden.double() @ weight.double().T
    torch.testing.assert_close(scores(hidden).double(), exact, atol=float(1e-5 + 1e-6 * exact.abs().max()), rtol=1e-5)
    if len(hidden) < tiles.MIN_ROWS_QUANTIZED or layer.blocks.form == "bfloat16":
        assert torch.equal(scores(hidden[-8:]), scores(hidden)[-8:])
    return scores


def test_a_block_of_quantised_weights_is_not_slower_in_bfloat16():
    assert packed.slowness_of_bfloat16(nn.Module(), 4) == 1


def test_steps_are_filled_up_to_few_numbers_of_rows():
    rows = [packed.padded(tokens) for tokens in range(1, 1025)]
    assert all(0 <= more - tokens <= max(3, tokens / 8) for tokens, more in enumerate(rows, start=1))
    assert rows == sorted(rows) and len(set(rows)) == 8 * 6  # from 0 to 32, and for each doubling to 1,024


def test_few_tokens_are_as_many_as_the_kernels_are_faster_for(monkeypatch):
    now = [0.0]

    def lasting(seconds):
        def block(*arguments):
            now[0] += seconds(len(arguments[-5]))  # rows of the residual

        return block

    monkeypatch.setattr(few_tokens, "time", SimpleNamespace(thread_time=lambda: now[0]))
    monkeypatch.setattr(fusing, "fused_block", lasting(lambda rows: 2.0))
    for slope, most in ((0.15, 6), (0.01, 64), (2.0, 0)):
        monkeypatch.setattr(few_tokens, "_most", {})
        monkeypatch.setattr(few_tokens.FewTokens, "__call__", lasting(lambda rows, slope=slope: 1.0 + slope * rows))
        assert fuse(random_model(SMALL), "numba").most_few == most


@needs_triton
@devices
def test_the_bundled_draft_writes_what_the_reference_writes(device, monkeypatch):
    """Several prompts at once; K and V are written by the kernel that rotates them alone."""
    loaded, reference = load_model("draft", device=device, dtype="float32", fused="triton"), Reference("draft", device)
    assert isinstance(loaded.model, FusedTransformer)
    from common.attention import triton_kernels

    monkeypatch.setattr(triton_kernels, "write_kernel", None)
    asked = [loaded.tokenizer("The capital of France is")["input_ids"], [40, 41]]
    engine = load_engine("05")(loaded, kv_memory="8M", attention="triton")
    for completion in engine.generate(asked, SamplingParams(max_tokens=2)):
        assert completion.token_ids == reference.generate(completion.prompt_token_ids, 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FusedTransformer),
        ({"fused": False}, Transformer),
        ({"dtype": "float16"}, Transformer),
        ({"fused": "numba", "dtype": "float16"}, "numba's are for float32 and bfloat16 on the CPU"),
        ({"fused": "always"}, "fused='always' is unknown"),
        pytest.param({"device": "cuda"}, FusedTransformer, marks=pytest.mark.gpu),
    ],
)
def test_models_are_fused_where_they_can_be_unless_not_wanted(options, expected):
    options = {"device": "cpu"} | options
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            load_model(**options)
    else:
        assert type(load_model(**options).model) is expected


@pytest.mark.parametrize("position", [-1, SMALL.context_length])
@torch.inference_mode()
def test_positions_beyond_the_rotary_table_are_refused(position):
    model, (token_ids, positions) = fuse(random_model(SMALL), "numba"), step_of(SMALL)
    positions[-1] = position
    with pytest.raises(IndexError, match=rf"position {position}, and the rotary table has rows for 0 to 63"):
        model(token_ids, positions, causal_attention)


def test_of_positions_on_a_device_the_lengths_on_the_host_are_checked():
    positions, table = torch.zeros(2, dtype=torch.int64, device="meta"), torch.zeros(64, 16)
    fits, too_long = (SimpleNamespace(batch=SimpleNamespace(host_lengths=[3, longest])) for longest in (64, 65))
    rotation.check_positions(positions, fits, table)
    with pytest.raises(IndexError, match="position 64, and"):
        rotation.check_positions(positions, too_long, table)

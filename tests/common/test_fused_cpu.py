"""The CPU's fused kernels and packed products compute what common/model.py computes, whatever else is in the batch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.helpers.small_models import CONFIGS, SMALL, causal_attend, poison, random_model, step_of

pytest.importorskip("numba")

from common.attention import PagedBatch, choose_attention
from common.fused import FusedTransformer, few_tokens, fuse, numba_basics, numba_kernels, packed, rotation
from common.fused.packed import PackedLinear
from common.loader import load_model
from common.model import Transformer, rope_table, rotate
from common.sampling import SamplingParams
from common.stages import load_engine, load_stage_module

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    poison(monkeypatch, numba_kernels, rotation, few_tokens)


def nasty(*shape, dtype):
    """Numbers of every size whose sum of squares float32 holds, zeros, and numbers below the smallest normal one."""
    x = torch.randn(shape) * 10.0 ** torch.randint(-8, 9, shape)
    x[torch.rand(shape) < 0.1] = 0.0
    x[torch.rand(shape) < 0.1] = 1e-39
    return x.to(dtype)


def close(actual, expected, dtype, atol=1e-37):
    """expected: float64. Within one unit in the last place of bfloat16, ten of float32; atol: what underflow leaves."""
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, rtol=torch.finfo(dtype).eps + 1e-6, atol=atol)


@dtypes
@pytest.mark.parametrize("make", [nasty, lambda *shape, dtype: torch.randn(shape).to(dtype)], ids=["nasty", "normal"])
@pytest.mark.parametrize("shape", [(1, 64), (3, 1024), (65, 100), (2, 7), (2, 1), (0, 64)], ids=str)
def test_add_norm(dtype, make, shape):
    x, residual, weight = make(*shape, dtype=dtype), make(*shape, dtype=dtype), make(shape[1], dtype=dtype)
    out = numba_kernels.add_norm(x, total := residual.clone(), weight, 1e-2)
    assert torch.equal(total, residual + x), "one addition, rounded once"
    exact = total.double()
    exact *= (exact.square().mean(-1, keepdim=True) + 1e-2).rsqrt() * weight.double()
    close(out, exact, dtype)
    close(numba_kernels.add_norm(None, total, weight, 1e-2), exact, dtype)
    order = torch.randperm(shape[0])
    assert torch.equal(numba_kernels.add_norm(x[order], residual[order], weight, 1e-2), out[order])
    for row, alone in enumerate(total.split(1) if shape[0] else ()):
        assert torch.equal(numba_kernels.add_norm(None, alone, weight, 1e-2)[0], out[row])


@dtypes
@pytest.mark.parametrize("shape", [(1, 64), (3, 1024), (70, 45), (2, 1), (0, 64)], ids=str)
def test_silu_mul(dtype, shape):
    gate_up = nasty(shape[0], 2 * shape[1], dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    close(out := numba_kernels.silu_mul(gate_up), F.silu(gate) * up, dtype, atol=1e-20)
    order = torch.randperm(shape[0])
    assert torch.equal(numba_kernels.silu_mul(gate_up[order]), out[order])


@dtypes
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "plain"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (1, 1, 80), (7, 7, 6), (16, 8, 128)])
def test_norm_rotate(dtype, normed, heads, kv_heads, head_dim):
    config = replace(SMALL, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, context_length=40)
    cos, sin = rope_table(config)
    qkv = torch.randn(5, (heads + 2 * kv_heads) * head_dim).to(dtype)
    positions = torch.tensor([39, 0, 7, 7, 23])
    norms = [torch.randn(head_dim).to(dtype) for _ in range(2)] if normed else [None, None]
    q, k, v = qkv.clone().view(5, -1, head_dim).split([heads, kv_heads, kv_heads], dim=1)
    c, s = (table[positions].unsqueeze(1).double() for table in (cos, sin))
    expected = []
    for x, weight in zip((q, k), norms, strict=True):
        x = F.rms_norm(x.double(), (head_dim,), weight.double(), 1e-2) if normed else x.double()
        expected.append(rotate(x, c, s))
    heads_of = numba_kernels.Rotation(positions, cos, sin, *norms, 1e-2, heads, kv_heads)
    tolerance = {"rtol": torch.finfo(dtype).eps, "atol": 1e-5}
    for ours, theirs in zip(heads_of.heads(qkv), [*expected, v.double()], strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, **tolerance)


# ---- Products ----


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5, 65])
@dtypes
@torch.inference_mode()
def test_packed_products(dtype, rows, bias):
    linear = nn.Linear(48, 97, bias=bias, dtype=dtype)
    model = nn.Sequential(linear)
    packed.pack_linears(model)
    if type(model[0]) is nn.Linear:
        pytest.skip("this torch has no oneDNN for it")
    assert type(model[0]) is PackedLinear
    x = torch.randn(rows, 48).to(dtype)
    exact = F.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    torch.testing.assert_close(model[0](x).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


def weight_bytes(model: nn.Module) -> int:
    """Of all weights, plain or packed; a tensor that two modules share counts once."""
    tensors = {id(tensor): tensor for tensor in model.parameters()}
    tensors |= {id(module): module.packed for module in model.modules() if isinstance(module, PackedLinear)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@dtypes
@pytest.mark.parametrize("config", ["llama", "llama tied"])
def test_weights_are_in_memory_once(config, dtype, monkeypatch):
    """But for small blocks, which few_tokens.py reads too, and a small tied head."""
    monkeypatch.setattr(few_tokens, "MOST_BYTES", 0)
    monkeypatch.setattr(packed, "MOST_TWICE", 0)
    model = random_model(CONFIGS[config], dtype=dtype)
    before = weight_bytes(model)
    assert weight_bytes(fuse(model, "numba")) == before
    kinds = {name: type(module) for name, module in model.named_modules()}
    if kinds["blocks.0.mlp.down"] is PackedLinear:  # this torch has oneDNN for it
        assert kinds["head"] is (nn.Linear if "tied" in config else PackedLinear)


# ---- The model ----


@pytest.mark.parametrize("count", [1, numba_kernels.MOST_TOKENS, numba_kernels.MOST_TOKENS + 1])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@torch.inference_mode()
def test_hidden_states_are_those_of_the_plain_model(config, count):
    model = random_model(config)
    step = step_of(config, count=count)
    expected = model(*step, causal_attend)
    logits, fused = model.logits(expected), fuse(model, "numba")
    hidden = fused(*step, causal_attend)
    assert expected.std() > 0.5
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fused.logits(hidden), logits, atol=1e-5, rtol=1e-5)


@dtypes
def test_logits_of_few_tokens_are_float32(dtype):
    model = random_model(SMALL, dtype=dtype)
    hidden = torch.randn(2 * numba_kernels.MOST_TOKENS, SMALL.hidden_size).to(dtype)[::2]  # not contiguous
    scores = few_tokens.few_scores(model)
    assert scores(hidden).dtype == torch.float32
    exact = hidden.double() @ model.head.weight.double().T
    torch.testing.assert_close(scores(hidden).double(), exact, atol=1e-5, rtol=1e-5)
    assert all(
        torch.equal(scores(row), whole) for row, whole in zip(hidden.split(1), scores(hidden).split(1), strict=True)
    )


def test_steps_are_filled_up_to_few_numbers_of_rows(monkeypatch):
    rows = [packed.padded(tokens) for tokens in range(1, 1025)]
    assert all(0 <= more - tokens <= max(3, tokens / 8) for tokens, more in enumerate(rows, start=1))
    assert rows == sorted(rows) and len(set(rows)) == 8 * 6  # from 0 to 32, and for each doubling to 1,024
    met: list[int] = []
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: met.append(len(x)))
    packed.prepare_products(nn.Sequential(PackedLinear(nn.Linear(8, 8)), nn.ReLU()), 100)
    assert met == sorted(set(rows[:100]))


def test_only_small_blocks_have_kernels_for_few_tokens(monkeypatch):
    model = random_model(SMALL)
    fused = fuse(model, "numba")
    assert fused.most_few == numba_kernels.MOST_TOKENS and all(fused.few) and fused.few_scores is not None
    monkeypatch.setattr(few_tokens, "MOST_BYTES", 10_000)
    fused = fuse(random_model(SMALL), "numba")
    assert fused.few == [None, None] and fused.few_scores is None


def test_the_cpu_has_the_fused_model_unless_not_wanted():
    assert type(load_model(device="cpu").model) is FusedTransformer
    assert type(load_model(device="cpu", fused=False).model) is Transformer
    assert type(load_model(device="cpu", dtype="float16").model) is Transformer
    with pytest.raises(ValueError, match="numba's are for float32 and bfloat16 on the CPU"):
        load_model(device="cpu", dtype="float16", fused="numba")
    with pytest.raises(ValueError, match="fused='always' is unknown"):
        load_model(device="cpu", fused="always")


@pytest.mark.parametrize("position", [-1, SMALL.context_length])
@pytest.mark.parametrize("count", [1, numba_kernels.MOST_TOKENS + 1])
@torch.inference_mode()
def test_positions_beyond_the_rotary_table_are_refused(count, position):
    model, (token_ids, positions) = fuse(random_model(SMALL), "numba"), step_of(SMALL, count=count)
    model(token_ids, positions.clamp(max=SMALL.context_length - 1), causal_attend)
    positions[-1] = position
    with pytest.raises(IndexError, match=rf"position {position}, and the rotary table has rows for 0 to 63"):
        model(token_ids, positions, causal_attend)


def test_of_positions_on_a_device_the_lengths_on_the_host_are_checked():
    positions, table = torch.zeros(2, dtype=torch.int64, device="meta"), torch.zeros(64, 16)
    batch = PagedBatch.pack([1, 1], [3, 64], [[0], [1]], torch.zeros(2, dtype=torch.int64), 64)
    rotation.check_positions(positions, SimpleNamespace(batch=batch), table)
    rotation.check_positions(positions, causal_attend, table)
    with pytest.raises(IndexError, match="position 64, and"):
        rotation.check_positions(positions, SimpleNamespace(batch=replace(batch, host_lengths=[3, 65])), table)


@dtypes
def test_what_an_engine_attends_to_are_tensors(dtype, prompts, monkeypatch):
    """Before anything is written, and equal to the plain model's: with few tokens and with many."""
    bound_cache = load_stage_module("05", "kv_cache").BoundCache
    call = bound_cache.__call__

    def seen(fused):
        engine, calls = load_engine("05")(load_model(device="cpu", dtype=dtype, fused=fused), kv_memory="8M"), []

        def recorded(attend, layer, *heads):
            calls.append([x.clone() for x in heads])
            return call(attend, layer, *heads)

        monkeypatch.setattr(bound_cache, "__call__", recorded)  # as a learner's own would be
        engine.generate([prompt[:20] for prompt in prompts[:2]], SamplingParams(max_tokens=3, ignore_eos=True))
        return engine.config, calls

    (config, ours), (_, plain) = seen("numba"), seen(False)
    counts = {len(q) for q, _, _ in ours}
    assert min(counts) <= numba_kernels.MOST_TOKENS < max(counts) and len(ours) == len(plain)
    for call, expected in zip(ours, plain, strict=True):
        for x, theirs, heads in zip(call, expected, (config.num_heads, *2 * [config.num_kv_heads]), strict=True):
            assert type(x) is torch.Tensor and x.shape == (len(call[0]), heads, config.head_dim)
            tolerance = 1e-4 if dtype == torch.float32 else 0.3
            torch.testing.assert_close(x, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("most_bytes", "threads"), [(2**26, 2), (0, 1)], ids=["products in kernels", "none there"])
@torch.inference_mode()
def test_threads_are_woken_for_few_tokens_only_where_kernels_have_the_products(most_bytes, threads, monkeypatch):
    monkeypatch.setattr(few_tokens, "MOST_BYTES", most_bytes)
    config, woken = replace(SMALL, hidden_size=256), []
    model, step = fuse(random_model(config), "numba"), step_of(config, count=1)
    monkeypatch.setattr(numba_kernels, "THREADS", SimpleNamespace(adapt=lambda: None))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(numba_basics.numba.config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setattr(numba_basics.numba, "set_num_threads", woken.append)
    model(*step, causal_attend)
    assert woken == [threads]


# ---- What bfloat16 changes ----


@torch.inference_mode()
def test_log_probabilities_of_bfloat16_stay_near_those_of_float32(prompts):
    """The bound that common/README.md states, for answers in one piece and token by token, through pages."""
    exact, rounded = (load_model(device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    kv_cache = load_stage_module("05", "kv_cache")

    def log_probabilities(loaded, token_ids, piece):
        attention, _ = choose_attention("numba", loaded.device, loaded.dtype, 64, 16)
        cache, pieces = kv_cache.KVCache(loaded, 30, 16, attention), []
        for start in range(0, len(token_ids), piece):
            places = torch.arange(start, min(start + piece, len(token_ids)))
            batch = PagedBatch.pack([len(places)], [int(places[-1]) + 1], [list(range(30))], places, 16)
            pieces.append(loaded.model.logits(loaded.model(token_ids[places], places, cache.bind(batch))))
        return torch.cat(pieces).log_softmax(-1)

    answers = load_engine("05")(exact).generate(prompts[:12], SamplingParams(max_tokens=40, ignore_eos=True))
    for piece in (400, 1):
        likeliest, divergences = [], []
        for prompt, answer in zip(prompts[:12], answers, strict=True):
            token_ids, said = torch.tensor(prompt + answer.token_ids), slice(len(prompt) - 1, None)
            expected, found = (log_probabilities(loaded, token_ids, piece)[said] for loaded in (exact, rounded))
            top = expected.argmax(-1, keepdim=True)
            likeliest.append((found - expected).gather(1, top).abs().flatten())
            divergences.append((expected.exp() * (expected - found)).sum(-1))
        likeliest, divergences = torch.cat(likeliest), torch.cat(divergences)
        assert len(likeliest) > 100
        assert 0 < likeliest.mean() < 0.005 and likeliest.max() < 0.1
        assert divergences.mean() < 1e-4 and divergences.max() < 5e-3

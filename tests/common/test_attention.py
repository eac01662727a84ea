"""Attention over pages: every backend against a definition that loops over the rows, and the choice among them."""

import random
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from common.attention import PagedBatch, choose_attention, why_not
from common.attention.int8 import MOST, dequantize, quantize
from common.attention.window import windowed
from common.fused import choose_model, triton_launch, why_not_numba
from common.sampling import has_kernels
from tests.helpers.small_models import SMALL, random_model
from tests.helpers.triton_marks import devices, needs_triton, on_cpu

CPU = torch.device("cpu")
needs_numba = pytest.mark.skipif(why_not_numba() is not None, reason=f"the compiled CPU kernel: {why_not_numba()}")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def make_case(sizes, *, page_size, heads, kv_heads, head_dim, dtype, device, seed=0):
    """sizes: for each request (tokens in the step, tokens of the sequence), decodes first. Pages lie anywhere."""
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    needed = [-(-length // page_size) for _, length in sizes]
    pages = rng.sample(range(sum(needed) + 3), sum(needed))
    tables = [[pages.pop() for _ in range(count)] for count in needed]
    slots = [
        table[position // page_size] * page_size + position % page_size
        for (count, length), table in zip(sizes, tables, strict=True)
        for position in range(length - count, length)
    ]
    counts, lengths = (list(column) for column in zip(*sizes, strict=True))
    batch = PagedBatch.pack(counts, lengths, tables, torch.tensor(slots, device=device), page_size)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype)

    k_pages, v_pages = (normal(sum(needed) + 3, page_size, kv_heads, head_dim) for _ in range(2))
    # As the model gives them: views of one tensor of all heads.
    qkv = normal(sum(counts), heads + 2 * kv_heads, head_dim)
    return batch, qkv.split([heads, kv_heads, kv_heads], dim=1), k_pages, v_pages, tables


def definition(q, k_pages, v_pages, batch, tables, window=None):
    """Row by row and head by head, in float64."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    groups = q.shape[1] // k_pages.shape[2]
    for i, table in enumerate(tables):
        k, v = (pages[table].flatten(0, 1).double() for pages in (k_pages, v_pages))  # [S, H_kv, D]
        start, end, length = *batch.query_starts[i : i + 2].tolist(), int(batch.lengths[i])
        for row in range(start, end):
            seen = length - end + row + 1
            near = slice(max(seen - window, 0) if window else 0, seen)
            for head in range(q.shape[1]):
                scores = k[near, head // groups] @ q[row, head].double() / q.shape[2] ** 0.5
                out[row, head] = scores.softmax(0) @ v[near, head // groups]
    return out


def check(  # noqa: PLR0913
    name, sizes, *, device="cpu", dtype=torch.float32, page_size=16, heads=4, kv_heads=2, head_dim=64, seed=0,
    windows=(), int8=False,
):  # fmt: skip
    shape = {"page_size": page_size, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    batch, (q, k, v), k_pages, v_pages, tables = make_case(sizes, **shape, dtype=dtype, device=device, seed=seed)
    attention, _ = choose_attention(name, torch.device(device), dtype, head_dim, page_size)
    if int8:
        k_pages, v_pages = quantize(k_pages), quantize(v_pages)
    untouched = torch.ones(k_pages.shape[0] * page_size, dtype=torch.bool, device=device)
    untouched[batch.slot_mapping] = False
    before = [pages.flatten(0, 1).clone() for pages in (k_pages, v_pages)]
    attention.write(k, v, k_pages, v_pages, batch.slot_mapping)
    for pages, old, new in zip((k_pages, v_pages), before, (k, v), strict=True):
        written = pages.flatten(0, 1)[batch.slot_mapping]
        if int8:
            expect_rounded(new, written)
        else:
            assert torch.equal(written, new), "a row is not where it belongs"
        assert torch.equal(pages.flatten(0, 1)[untouched], old[untouched]), "another row was written"
    plan = attention.prepare(batch)
    meant = [dequantize(pages, torch.float32) for pages in (k_pages, v_pages)] if int8 else (k_pages, v_pages)
    for window in (None, *windows):
        with windowed(window):
            out = attention.attend(q, k_pages, v_pages, plan)
        assert out.shape == q.shape and out.dtype == dtype
        expected = definition(q, *meant, batch, tables, window)
        torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=0)


def expect_rounded(x, rows):
    """Each number of x[..., D] is at most half a scale, and a rounding of float32, from what rows[..., D + 4] say."""
    half = x.double().abs().amax(-1, keepdim=True) / MOST / 2
    assert ((dequantize(rows, torch.float64) - x.double()).abs() <= half * (1 + 1e-4)).all()


EDGES = [15, 16, 17, 31, 32, 33, 1, 2]  # on, before and after the ends of pages
ONE_HEAD = {"heads": 2, "kv_heads": 1}
FEW = [(1, 7), (1, 65), (2, 64), (9, 70)]


def mixed(seed: int) -> list[tuple[int, int]]:
    """Any mix of decodes and pieces of prompts, and behind the longer pieces one of a single token."""
    rng = random.Random(seed)
    sizes = [(1, rng.choice(EDGES) + 16 * rng.randrange(4)) for _ in range(rng.randrange(4))]
    for _ in range(rng.randint(1, 4)):
        length = rng.choice(EDGES[:-2]) + 16 * rng.randrange(4)
        sizes.append((rng.randint(2, length), length))
    return [*sizes, (1, rng.randint(1, 40))]


CASES = {
    "decode": ([(1, length) for length in EDGES], {}),
    "decode in several programs": ([(1, 255), (1, 256), (1, 257), (1, 600), (1, 3)], ONE_HEAD),
    "prompts": ([(length, length) for length in EDGES if length > 1], ONE_HEAD),
    "a prompt alone": ([(70, 70)], ONE_HEAD),
    "few blocks": ([(1, 600), (1, 3), (2, 17), (8, 40), (1, 16)], {}),
    "heads of no power of two": (FEW, {"heads": 3, "kv_heads": 1, "head_dim": 80}),
    "pieces of every size": ([(1, 33), (3, 20), (40, 110), (9, 31), (2, 2), (40, 48), (1, 5)], ONE_HEAD),
} | {f"mix {seed}": (mixed(seed), {}) for seed in range(3)}
WINDOWS = {"decode in several programs": (1, 7, 90, 300), "pieces of every size": (1, 7, 90)}
for heads, kv_heads in [(1, 1), (3, 3), (6, 2), (8, 1), (20, 1)]:
    CASES[f"{heads} heads, {kv_heads}"] = [(1, 9), (1, 18), (3, 20)], {"heads": heads, "kv_heads": kv_heads}
for page_size in (1, 2, 8, 64, 256):
    CASES[f"pages of {page_size}"] = FEW, ONE_HEAD | {"page_size": page_size}

named = {"ids": lambda value: str(value).removeprefix("torch.")}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, **named)
cpu_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], **named)
backends = pytest.mark.parametrize("name", ["torch", pytest.param("triton", marks=needs_triton)])
all_backends = pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        pytest.param("torch", "cpu", torch.float32, marks=on_cpu),
        pytest.param("torch", "cuda", torch.float32, marks=pytest.mark.gpu),
        pytest.param("triton", "cpu", torch.float32, marks=[needs_triton, on_cpu]),
        pytest.param("triton", "cuda", torch.float32, marks=[needs_triton, pytest.mark.gpu]),
        pytest.param("numba", "cpu", torch.float32, marks=needs_numba),
        pytest.param("numba", "cpu", torch.bfloat16, marks=needs_numba),
    ],
    **named,
)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # 0 / 0 of pieces that Triton masks
@all_backends
@pytest.mark.parametrize("int8", [False, True], ids=["as the model", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_rows_attend_to_their_own_sequence_up_to_their_own_position(name, device, dtype, case, int8):
    sizes, shape = CASES[case]
    check(name, sizes, device=device, dtype=dtype, windows=WINDOWS.get(case, ()), int8=int8, **shape)


@devices
@backends
@dtypes
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_head_dimensions_and_types(name, device, dtype, head_dim):
    for int8 in (False, True):
        check(name, [(1, 17), (1, 40), (5, 21)], device=device, dtype=dtype, head_dim=head_dim, int8=int8, **ONE_HEAD)


rows_of_any_size = some.lists(some.floats(-1e4, 1e4, width=32), min_size=8, max_size=8)


@given(rows_of_any_size, some.integers(-30, 30))
def test_eight_bits_lose_half_a_scale_at_most(numbers, exponent):
    row = torch.tensor(numbers) * 2.0**exponent
    rows = quantize(row)
    assert rows.dtype == torch.int8 and len(rows) == 8 + 4
    expect_rounded(row, rows)
    assert torch.equal(quantize(dequantize(rows, torch.float32))[:8], rows[:8]), "rounding again changes no number"


def test_zeros_stay_zeros_and_what_is_no_number_does_not_become_one():
    assert not dequantize(quantize(torch.zeros(3, 8)), torch.float32).any()
    for bad in (float("inf"), float("nan")):
        assert dequantize(quantize(torch.tensor([1.0, bad, 3.0, 0.0])), torch.float32).isnan().all()


@needs_numba
@cpu_dtypes
@pytest.mark.parametrize("int8", [False, True], ids=["as the model", "int8"])
def test_a_row_does_not_depend_on_its_block(dtype, int8):
    """To the bit: else an answer would depend on how its prompt was cut, and on what came with it."""
    sizes = [(1, 21), (1, 300), (2, 40), (11, 70), (45, 45)]
    batch, (q, *_), *pages, _ = make_case(
        sizes, page_size=8, heads=4, kv_heads=2, head_dim=64, dtype=dtype, device="cpu"
    )
    pages = [quantize(one) if int8 else one for one in pages]
    attention, _ = choose_attention("numba", CPU, dtype, 64, 8)
    positions = torch.cat([torch.arange(length - count, length) for count, length in sizes])
    together, alone = (
        attention.attend(q, *pages, attention.prepare(each)) for each in (batch, batch.one_by_one(positions))
    )
    assert torch.equal(together, alone)


@needs_triton
@devices
@pytest.mark.parametrize("tile", [(64, 4, 3), (32, 2, 3)])
def test_long_sequences_have_larger_pieces_not_more(device, tile, monkeypatch):
    """Pieces of 16 tokens, at most 4: from 65 tokens on they are larger."""
    from common.attention import triton_backend

    monkeypatch.setattr(triton_backend, "SPLIT", 16)
    monkeypatch.setattr(triton_backend, "MOST_PIECES", 4)
    monkeypatch.setattr(triton_backend, "tuned", lambda _: {"float32 64": tile})
    check("triton", [(1, length) for length in (1, 16, 17, 64, 65, 129, 200)], device=device, **ONE_HEAD)


@needs_triton
@devices
def test_pages_so_far_behind_that_offsets_need_64_bits(device):
    """The pools of K and of V overlap, and take 4.3 GB together; each has pages of its own behind 2^31 elements."""
    sizes, shape = [(1, 40), (40, 90)], {"page_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 64}
    batch, (q, k, v), *near, tables = make_case(sizes, **shape, dtype=torch.float16, device=device)
    pages, elements = len(near[0]), 2**31 if device == "cuda" else 2**14
    shift = elements // near[0][0].numel()
    memory = torch.empty(shift + 2 * pages, *near[0].shape[1:], dtype=torch.float16, device=device)
    far, slots = (memory[:-pages], memory[pages:]), batch.slot_mapping
    for pool, new, start in zip(far, (k, v), near, strict=True):
        pool[shift:] = start
        start.flatten(0, 1)[slots] = new
    behind = replace(batch, page_tables=batch.page_tables + shift, slot_mapping=slots + 16 * shift)
    attention, _ = choose_attention("triton", torch.device(device), torch.float16, 64, 16)
    attention.write(k, v, *far, behind.slot_mapping)
    assert all(torch.equal(pool[shift:], expected) for pool, expected in zip(far, near, strict=True))
    out, expected = attention.attend(q, *far, attention.prepare(behind)), definition(q, *near, batch, tables)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[torch.float16], rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_flash(dtype):
    page_size = 256
    try:
        choose_attention("flash", torch.device("cuda"), dtype, 64, page_size)
    except ValueError as error:
        pytest.skip(f"{error}")
    check("flash", [(1, 17), (1, 600), (33, 300)], device="cuda", dtype=dtype, page_size=page_size)


# ---- The choice ----


@pytest.mark.parametrize(
    ("name", "device", "dtype", "capability", "line"),
    [
        ("torch", "cpu", torch.float32, None, "torch (asked for)"),
        pytest.param("auto", "cpu", torch.float32, None, "numba (the fastest there is on cpu)", marks=needs_numba),
        ("auto", "cpu", torch.float16, None, "torch (no numba: it is for float32 and bfloat16 on the CPU; the fastest"),
        pytest.param("auto", "cuda", torch.float16, (8, 0), "triton (the fastest there is", marks=needs_triton),
        pytest.param(
            "auto", "cuda", torch.float16, (7, 5), "torch (no triton: before compute capability 8.0", marks=needs_triton
        ),
    ],
)
def test_the_choice_says_why(name, device, dtype, capability, line, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(triton_launch, "why_no_driver", lambda: None)
    attention, why = choose_attention(name, torch.device(device), dtype, 64, 16)
    assert attention.name == line.partition(" ")[0] and why.startswith(f"attention={line}")


def test_a_numba_that_refuses_this_numpy_is_as_good_as_none(monkeypatch):
    refused = Mock(side_effect=ImportError("Numba needs NumPy 2.4 or less. Got NumPy 2.5."))
    monkeypatch.setattr("common.fused.import_module", refused)
    attention, why = choose_attention("auto", CPU, torch.float32, 64, 16)
    assert attention.name == "torch" and "no numba: the package numba cannot be imported: Numba needs NumPy 2.4" in why
    model = random_model(SMALL)
    assert choose_model(model, "auto") is model


@needs_triton
def test_triton_is_not_chosen_where_it_cannot_compile_its_part_in_c(monkeypatch):
    from triton.runtime import driver

    without_compiler = Mock(side_effect=RuntimeError("Failed to find C compiler."))
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=without_compiler))
    monkeypatch.setattr(triton_launch, "why_no_driver", triton_launch.why_no_driver.__wrapped__)  # not as remembered
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    attention, why = choose_attention("auto", torch.device("cuda"), torch.bfloat16, 64, 16)
    assert attention.name == "torch" and "no triton: it needs gcc and Python's headers" in why
    assert not has_kernels(torch.device("cuda"))


def test_flash_says_which_pages_it_takes(monkeypatch):
    from common.attention import flash_backend

    def refuse(*_):
        raise RuntimeError("expected something else\nand more")

    monkeypatch.setattr(flash_backend, "why_not_triton", lambda device: None)
    monkeypatch.setattr(flash_backend, "NEEDED", set())  # whatever this version of torch has
    monkeypatch.setattr(flash_backend, "attend_to_one_page", refuse)
    reasons = [why_not("flash", torch.device("cuda"), torch.bfloat16, 64, page_size) for page_size in (16, 256)]
    assert reasons[0] == "FlashAttention-2 takes pages of multiples of 256 tokens, and these have 16"
    assert reasons[1] == "expected something else"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("xformers", "no attention backend 'xformers'"),
        ("flash", "'flash' cannot run here: it needs a CUDA device"),
        ("triton", "'triton' cannot run here: "),
    ],
)
def test_what_cannot_run_here_is_refused(name, says, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=says):
        choose_attention(name, CPU, torch.float32, 64, 16)

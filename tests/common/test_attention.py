"""Attention over pages: every backend against a definition that loops over the rows, and the choice among them."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from common.attention import PagedBatch, choose_attention
from common.attention.int8 import MAX_CODE, SMALLEST, dequantize, quantize
from common.attention.window import windowed
from common.fused import choose_model, triton_launch, why_not_numba
from common.sampling import has_kernels
from tests.helpers.small_models import SMALL, random_model
from tests.helpers.triton_marks import devices, needs_triton, on_cpu

CPU = torch.device("cpu")
needs_numba = pytest.mark.skipif(why_not_numba() is not None, reason=f"the compiled CPU kernel: {why_not_numba()}")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Case:
    """One step: sizes gives for each request its tokens in the step and of the sequence, decodes first.

    Pages lie anywhere from `first_page` on; what lies before them is memory that is not touched.
    """

    def __init__(  # noqa: PLR0913
        self, sizes, *, page_size=16, heads=4, kv_heads=2, head_dim=64, dtype=torch.float32, device="cpu", int8=False,
        first_page=0,
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        needed = [-(-length // page_size) for _, length in sizes]
        count = sum(needed) + 3
        pages = (first_page + torch.randperm(count, generator=generator)).tolist()
        self.tables = [[pages.pop() for _ in range(number)] for number in needed]
        slots = [
            table[position // page_size] * page_size + position % page_size
            for (tokens, length), table in zip(sizes, self.tables, strict=True)
            for position in range(length - tokens, length)
        ]
        tokens, lengths = (list(column) for column in zip(*sizes, strict=True))
        self.batch = PagedBatch.pack(tokens, lengths, self.tables, torch.tensor(slots, device=device), page_size)

        def normal(*shape):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        self.pools, self.first_page, self.int8 = [], first_page, int8
        for _ in "kv":
            pages = normal(count, page_size, kv_heads, head_dim)
            pages = quantize(pages) if int8 else pages
            pool = torch.empty(first_page + count, *pages.shape[1:], dtype=pages.dtype, device=device)
            pool[first_page:] = pages
            self.pools.append(pool)
        # As the model gives them: views of one tensor of all heads.
        qkv = normal(sum(tokens), heads + 2 * kv_heads, head_dim)
        self.q, *self.kv = qkv.split([heads, kv_heads, kv_heads], dim=1)

    def backend(self, name):
        return choose_attention(name, self.q.device, self.q.dtype, self.q.shape[2])[0]

    def expected(self, window=None):
        """One request after the other, in float64."""
        ends, out = self.batch.query_starts.tolist(), []
        for start, end, length, table in zip(ends, ends[1:], self.batch.host_lengths, self.tables, strict=False):
            k, v = (pool[table].flatten(0, 1)[:length] for pool in self.pools)
            k, v = (dequantize(x, torch.float64) if self.int8 else x.double() for x in (k, v))
            places = torch.arange(length, device=k.device)
            own = places[start - end :, None]  # the places of the request's rows
            seen = (places <= own) & (places > own - (window or length))
            q, k, v = (x.transpose(0, 1)[None] for x in (self.q[start:end].double(), k, v))  # [1, heads, tokens, D]
            out.append(F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(out)


def check(name, sizes, windows=(), **shape):
    case = Case(sizes, **shape)
    attention, slots = case.backend(name), case.batch.slot_mapping
    places = slots - case.first_page * case.batch.page_size
    before = [pool[case.first_page :].flatten(0, 1).clone() for pool in case.pools]
    attention.write(*case.kv, *case.pools, slots)
    for pool, rows, new in zip(case.pools, before, case.kv, strict=True):
        after = pool[case.first_page :].flatten(0, 1)
        if case.int8:
            expect_rounded(new, after[places])
        else:
            assert torch.equal(after[places], new), "a row is not where it belongs"
        rows[places] = after[places]
        assert torch.equal(rows, after), "another row was written"
    plan = attention.prepare(case.batch)
    for window in (None, *windows):
        with windowed(window):
            out = attention.attend(case.q, *case.pools, plan)
        assert out.shape == case.q.shape and out.dtype == case.q.dtype
        torch.testing.assert_close(out.double(), case.expected(window), atol=TOLERANCE[out.dtype], rtol=0)


def expect_rounded(x, rows):
    """Assert that rows[..., D + 4] give each number of x[..., D] to half a scale and a rounding of float32."""
    half = x.double().abs().amax(-1, keepdim=True).clamp_min(SMALLEST) / MAX_CODE / 2
    assert ((dequantize(rows, torch.float64) - x.double()).abs() <= half * (1 + 1e-4)).all()


ONE_HEAD = {"heads": 2, "kv_heads": 1}
WINDOWS = {"decode in several programs": (1, 7, 90, 300), "pieces of every size": (1, 7, 90)}
CASES = {
    "decode in several programs": ([(1, 255), (1, 256), (1, 257), (1, 600), (1, 3)], ONE_HEAD),
    "few blocks": ([(1, 600), (1, 3), (2, 17), (8, 40), (1, 16)], {"page_size": 1}),
    "heads of no power of two": ([(1, 7), (1, 65), (2, 64), (9, 70)], {"heads": 3, "kv_heads": 1, "head_dim": 80}),
    "pieces of every size": ([(1, 33), (3, 20), (40, 110), (9, 31), (2, 2), (40, 48), (1, 5)], ONE_HEAD),
    "ends of pages": ([(1, 15), (1, 16), (1, 17), (15, 31), (17, 48), (1, 1)], {"heads": 20, "kv_heads": 1}),
    "large pages": ([(1, 49), (2, 17), (48, 79), (1, 33)], {"heads": 3, "kv_heads": 3, "page_size": 256}),
}

named = {"ids": lambda value: str(value).removeprefix("torch.")}
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


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # from 0 / 0 in pieces that Triton masks
@all_backends
@pytest.mark.parametrize("int8", [False, True], ids=["as the model", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_rows_attend_to_their_own_sequence_up_to_their_own_position(name, device, dtype, case, int8):
    sizes, shape = CASES[case]
    check(name, sizes, windows=WINDOWS.get(case, ()), device=device, dtype=dtype, int8=int8, **shape)


@devices
@pytest.mark.parametrize("name", ["torch", pytest.param("triton", marks=needs_triton)])
@pytest.mark.parametrize("dtype", TOLERANCE, **named)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_head_dimensions_and_types(name, device, dtype, head_dim):
    for int8 in (False, True):
        check(name, [(1, 17), (1, 40), (5, 21)], device=device, dtype=dtype, head_dim=head_dim, int8=int8, **ONE_HEAD)


@pytest.mark.parametrize("largest", [0.0, 1e-38, 1e-6, 1e38])
def test_eight_bits_lose_half_a_scale_at_most(largest):
    row = largest * torch.linspace(-1, 0.9, 80)
    expect_rounded(row, quantize(row))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of Triton's interpreter
@pytest.mark.parametrize(
    "name",
    ["torch", pytest.param("numba", marks=needs_numba), pytest.param("triton", marks=[needs_triton, on_cpu])],
)
def test_what_is_no_number_does_not_become_one(name):
    attention, _ = choose_attention(name, CPU, torch.float32, 64)
    for bad in (float("inf"), float("nan")):
        k, pages = torch.ones(1, 2, 64), torch.zeros(2, 1, 16, 2, 68, dtype=torch.int8)
        k[0, 1, 40] = bad
        attention.write(k, k, *pages, torch.tensor([3]))
        wrong = dequantize(pages[:, 0, 3], torch.float32).isnan()
        assert wrong[:, 1].all() and not wrong[:, 0].any()


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], **named)
@pytest.mark.parametrize("int8", [False, True], ids=["as the model", "int8"])
def test_a_row_does_not_depend_on_its_block(dtype, int8):
    """To the bit: else an answer would depend on how its prompt was cut, and on what came with it."""
    sizes = [(1, 21), (1, 300), (2, 40), (11, 70), (45, 45)]
    case = Case(sizes, page_size=8, dtype=dtype, int8=int8)
    positions = torch.cat([torch.arange(length - tokens, length) for tokens, length in sizes])
    attention = case.backend("numba")
    together, alone = (
        attention.attend(case.q, *case.pools, attention.prepare(batch))
        for batch in (case.batch, case.batch.one_by_one(positions))
    )
    assert torch.equal(together, alone)


@needs_triton
@devices
def test_long_sequences_have_larger_pieces_not_more(device, monkeypatch):
    """Pieces of 16 tokens, at most 4: from 65 tokens on they are larger."""
    from common.attention import triton_backend

    monkeypatch.setattr(triton_backend, "SPLIT", 16)
    monkeypatch.setattr(triton_backend, "MAX_PIECES", 4)
    check("triton", [(1, length) for length in (1, 16, 17, 64, 65, 129, 200)], device=device, **ONE_HEAD)


@needs_triton
@devices
def test_pages_so_far_behind_that_offsets_need_64_bits(device):
    """On a GPU behind 2^31 elements."""
    first_page = (2**31 if device == "cuda" else 2**14) // (16 * 64)
    check("triton", [(1, 40), (40, 90)], device=device, dtype=torch.float16, first_page=first_page, **ONE_HEAD)


# ---- The choice ----


@pytest.mark.parametrize(
    ("name", "device", "dtype", "capability", "line"),
    [
        ("torch", "cpu", torch.float32, None, "attention=torch (asked for)"),
        pytest.param("auto", "cpu", torch.float32, None, "attention=numba (the fastest there is", marks=needs_numba),
        ("auto", "cpu", torch.float16, None, "attention=torch (no numba: it is for float32 and bfloat16 on the CPU; "),
        pytest.param("auto", "cuda", torch.float16, (8, 0), "attention=triton (the fastest", marks=needs_triton),
        ("auto", "cuda", torch.float16, (7, 5), "attention=torch (no triton: before compute capability 8.0"),
        ("xformers", "cpu", torch.float32, None, "no attention backend 'xformers'"),
        ("numba", "cpu", torch.float16, None, "'numba' cannot run here: it is for float32 and bfloat16 on the CPU"),
    ],
)
def test_the_choice_says_why(name, device, dtype, capability, line, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(triton_launch, "why_no_driver", lambda: None)
    if line.startswith("attention="):
        attention, why = choose_attention(name, torch.device(device), dtype, 64)
        assert why.startswith(line) and f"attention={attention.name} " in why
    else:
        with pytest.raises(ValueError, match=line):
            choose_attention(name, torch.device(device), dtype, 64)


def test_a_numba_that_refuses_this_numpy_is_as_good_as_none(monkeypatch):
    refused = Mock(side_effect=ImportError("Numba needs NumPy 2.4 or less. Got NumPy 2.5."))
    monkeypatch.setattr("common.fused.import_module", refused)
    attention, why = choose_attention("auto", CPU, torch.float32, 64)
    assert attention.name == "torch" and "no numba: the package numba cannot be imported: Numba needs NumPy 2.4" in why
    model = random_model(SMALL)
    assert choose_model(model, "auto") is model


@needs_triton
def test_triton_is_not_chosen_where_it_cannot_compile_its_part_in_c(monkeypatch):
    from triton.runtime import driver

    without_compiler = Mock(side_effect=RuntimeError("Failed to find C compiler."))
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=without_compiler))
    monkeypatch.setattr(triton_launch, "why_no_driver", triton_launch.why_no_driver.__wrapped__)  # without its cache
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    attention, why = choose_attention("auto", torch.device("cuda"), torch.bfloat16, 64)
    assert attention.name == "torch" and "no triton: it needs gcc and Python's headers" in why
    assert not has_kernels(torch.device("cuda"))

"""Is every kernel right at the shapes of real models, and how long does it take beside the operations that it replaces?

Method. Medians of replayed CUDA graphs, where the gaps between kernels are the GPU's own (`median_seconds`). Two layers
without attention, in plain PyTorch, by torch.compile, and with the course's kernels; attention in decode, with the
other backends, with every tile of the kernel, and by PyTorch's own kernels on K and V in one piece. The floor is the
bytes to move over the bandwidth of a copy. The seconds of a variant's first call are told as well: torch.compile
compiles again in every row, Triton has its kernels from the first row on. Then what is not timed: prompts and decode in
one step, K and V written to pages, also to pages behind 2^31 elements, and the sampler beside its definition.

Expectation. Differences are those of rounding. A kernel that does in one pass what happens between matrix products
takes what a copy of its bytes takes. What layers compute for many tokens takes longer than their bytes, and "products
alone" says how long. Attention of a large batch reads K and V at 80 percent of the rate of a copy.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import sampling
from common.attention import Attention, PagedBatch, choose_attention
from common.attention.triton_backend import TILES, Tile, TritonAttention
from common.bench.ceilings import ceilings, read_bytes_per_second
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.suite import wrong_in
from common.bench.timing import inputs_beyond_cache, median_seconds
from common.fused import fuse
from common.fused.triton_launch import why_not_triton
from common.loader import find_checkpoint
from common.loader.config import first_sentence, read_config
from common.loader.device import DTYPES
from common.loader.weights import empty_model, randomize_weights
from common.model import ModelConfig
from common.request import Request
from common.sampling import Drawn, SamplingParams, draw, probabilities, uniform
from common.transfers import synchronize

SIZES = {
    "model": "Qwen3-0.6B",
    "layers": {"Qwen3-8B": [1, 256]},  # tokens in a pass; few, since every row compiles something
    "attention": {"Qwen3-0.6B": [1, 8, 64, 256], "TinyLlama-1.1B": [64]},  # requests; head dimensions of 128 and 64
    "context": 1024,
    "compiler": "inductor",  # the backend of torch.compile
    "samples": 30,
    "batch": [[1, 700], [1, 33], [300, 300], [40, 900], [700, 1500]],  # tokens in the step, and of the sequence
    "types": ["float32", "float16", "bfloat16"],
    "elements": 2**31,  # of a layer's K before the pages that are far behind
    "rows": 64,  # of logits
}
TINY = {"model": "draft", "layers": {"draft": [2]}, "attention": {"draft": [2]}, "context": 20, "compiler": "eager"}
TINY |= {"samples": 1, "batch": [[1, 33], [9, 40]], "types": ["float32"], "elements": 2**14, "rows": 3}
LAYERS, VOCABULARY, PAGE_SIZE = 2, 16, 16
PAGE_SIZES = {"torch": PAGE_SIZE, "flash": 256}  # torch's flash attention takes no smaller one
LIBRARY = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
MORE_TILES = (Tile(32, 4, 4), Tile(64, 4, 6), Tile(64, 8, 3), Tile(128, 8, 3), Tile(128, 8, 5))
ALLOWED = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # relative errors
SAMPLED = {"plain": {}, "top-k and top-p": {"top_k": 20, "top_p": 0.95}}  # the second is what Qwen3 asks for
MOST_OTHER_DRAWS = 0.04  # of all: numbers at the border between two tokens
RATES = ("copy_bytes", "read_bytes", "matmul_flops")


class Case(NamedTuple):
    """One row: functions that do the same, and take the same arguments; the first is the definition of those by Triton.
    "compiled" is still to pass torch.compile.
    """

    operation: str
    tokens: int  # in the step
    nbytes: int  # what every variant has to move: weights, and what goes in and comes out, once
    arguments: Callable[[], tuple]  # the next of the inputs that take turns
    variants: dict[str, Callable]
    missing: dict[str, str]  # variants that cannot run, and why


def config_of(model: str) -> ModelConfig:
    return read_config(find_checkpoint(model, with_weights=False))


def measure_times(settings: Settings, sizes: dict) -> Figures:
    """Return what the device can do at best, and a row for each operation and number of tokens.

    Raise ValueError where Triton cannot run.
    """
    device, dtype = settings.place()
    if (reason := why_not_triton(device)) is not None:
        raise ValueError(f"the kernels cannot be measured here: {reason}")
    rates = ceilings(device, dtype)
    rates["read_bytes_per_second"] = read_bytes_per_second(device, 2**32 if device.type == "cuda" else 2**20)
    tiles, rows = (*TILES, *MORE_TILES), []
    cases = [
        (name, partial(layers_case, config_of(name), N)) for name, tokens in sizes["layers"].items() for N in tokens
    ]
    for name, requests in sizes["attention"].items():
        cases += [(name, partial(attention_case, config_of(name), B, sizes["context"], tiles=tiles)) for B in requests]
    for name, case_of in cases:
        case = case_of(device=device, dtype=dtype)
        row = {"model": name, "operation": case.operation, "tokens": case.tokens, "bytes": case.nbytes}
        row["floor_us"] = 1e6 * case.nbytes / rates["copy_bytes_per_second"]
        rows.append(row | times_of(case, device, sizes))
    errors = {f"{row['model']}, {row['tokens']}, {name}": x for row in rows for name, x in row["errors"].items()}
    needed = "triton", f"triton {list(Tile())}"  # of the other tiles some do not fit into 99 KB of shared memory
    wrong = [f"{name}: {row['missing'][name]}" for row in rows for name in needed if name in row["missing"]]
    return rates | {"rows": rows, "wrong": [*wrong, *too_large(errors, ALLOWED[dtype])]}


def too_large(errors: dict[str, float], most: float) -> list[str]:
    """Return a sentence for each error that is larger than allowed; NaN is."""
    return [f"{name}: error {x:.1e}, allowed {most:.0e}" for name, x in errors.items() if not x <= most]


@torch.inference_mode()
def times_of(case: Case, device: torch.device, sizes: dict) -> dict[str, dict]:
    """Return by variant microseconds of a call, seconds of the first one, and for those that fail the reason; and how
    far what Triton's return is from the definition."""
    inputs = [case.arguments() for _ in range(inputs_beyond_cache(case.nbytes, device))]
    times, first_calls, errors, missing = {}, {}, {}, dict(case.missing)
    expected = None
    for name, function in case.variants.items():
        if name == "compiled":
            torch.compiler.reset()  # it gives up compiling a function for more than a few shapes
            function = torch.compile(function, fullgraph=True, dynamic=False, backend=sizes["compiler"])
        try:
            start = time.perf_counter()
            found = function(*inputs[0])
            synchronize(device)
            first_calls[name] = time.perf_counter() - start
            expected = found if expected is None else expected
            if name.startswith("triton"):
                errors[name] = relative_error(found, expected)
            # A variant that compiled again for the next input, or gave up, would not be what its name says.
            with torch.compiler.set_stance("fail_on_recompile"):
                times[name] = 1e6 * median_seconds(function, device, inputs, repeats=sizes["samples"])
        except Exception as error:  # neither Triton nor torch.compile has a common class for what it refuses
            missing[name] = first_sentence(error)
    return {"us": times, "first_call_s": first_calls, "errors": errors, "missing": missing}


def relative_error(actual: Tensor | tuple, expected: Tensor | tuple) -> float:
    """Return the norm of the difference over that of the expected; of what layers return, the hidden states'."""
    a, b = (x.double() if isinstance(x, Tensor) else x[0].double() for x in (actual, expected))
    return ((a - b).norm() / b.norm()).item()


def layers_case(config: ModelConfig, N: int, device: torch.device, dtype: torch.dtype) -> Case:
    """Return a case: a pass over N tokens through two layers, in which attention returns its queries."""
    model = empty_model(replace(config, num_layers=LAYERS, vocab_size=VOCABULARY), device, dtype)
    randomize_weights(model)
    fused = fuse(model)

    def arguments() -> tuple:
        return tuple(torch.randint(most, (N,), device=device) for most in (VOCABULARY, config.context_length))

    def products(token_ids, positions):
        x = model.embedding(token_ids)
        for block in model.blocks:
            x = block.attention.output(block.attention.qkv(x)[:, : config.num_heads * config.head_dim])
            x = block.mlp.down(block.mlp.gate_up(x)[:, : config.intermediate_size])
        return x

    def outputs(model, token_ids, positions):
        kept = []  # a compiler would leave out k and v if nothing used them
        return model(token_ids, positions, lambda layer, *qkv: kept.append(qkv) or qkv[0]), kept

    def plain(*arguments):
        return outputs(model, *arguments)

    nbytes = sum(parameter.nbytes for parameter in model.blocks.parameters())
    nbytes += LAYERS * 2 * N * config.hidden_size * dtype.itemsize
    variants = {"eager": plain, "compiled": plain, "triton": partial(outputs, fused), "products alone": products}
    return Case("two layers", N, nbytes, arguments, variants, {})


def attention_case(
    config: ModelConfig, B: int, context: int, device: torch.device, dtype: torch.dtype, tiles: Sequence[Tile] = TILES
) -> Case:
    """Return a case: one token of each of B requests looks at `context` tokens. PyTorch's kernels find K and V of a
    request in one piece, not in pages."""
    H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
    room = -(-context // 256) * 256  # tokens in the pages of each request, whatever the size of a page

    def arguments() -> tuple:
        return tuple(
            torch.randn(shape, device=device, dtype=dtype) for shape in ((B, H, D), *2 * [(B * room, H_kv, D)])
        )

    def decode(backend: Attention, page_size: int = 16) -> Callable:
        order = torch.randperm(B * room // page_size, generator=torch.Generator().manual_seed(0))  # pages lie anywhere
        tables = order.view(B, -1)[:, : -(-context // page_size)].tolist()
        slots = torch.zeros(B, dtype=torch.int64, device=device)  # nothing is written
        plan = backend.prepare(PagedBatch.pack([1] * B, [context] * B, tables, slots, page_size))
        return lambda q, k, v: backend.attend(q, k.unflatten(0, (-1, page_size)), v.unflatten(0, (-1, page_size)), plan)

    variants, missing = {}, {}
    for name, page_size in PAGE_SIZES.items():
        try:
            variants[name] = decode(choose_attention(name, device, dtype, D, page_size)[0], page_size)
        except ValueError as error:
            missing[name] = str(error)
    variants |= {f"triton {list(tile)}": decode(TritonAttention(dtype, tile)) for tile in tiles}
    if device.type == "cuda":
        variants |= {kind.name.lower(): partial(in_one_piece, kind, B, context, room) for kind in LIBRARY}
    nbytes = (2 * context * H_kv + 2 * H) * D * B * dtype.itemsize
    return Case(f"attention, D={D}", B, nbytes, arguments, variants, missing)


def in_one_piece(kind: SDPBackend, B: int, context: int, room: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a kernel of PyTorch; k and v have `room` places for each of B requests, the first `context` full."""
    k, v = (x.unflatten(0, (B, room))[:, :context].transpose(1, 2) for x in (k, v))
    with sdpa_kernel(kind):
        return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


@torch.inference_mode()
def measure_pages(settings: Settings, sizes: dict) -> Figures:
    """Return errors of attention in a step of prompts and decode, by model and type; and whether K and V are written
    and read as well in pages that are far behind."""
    (device, usual), errors, wrong = settings.place(), {}, []
    batch = random_batch(sizes["batch"], device)
    N, pages = len(batch.slot_mapping), 1 + int(batch.page_tables.max())
    for name in sizes["attention"]:
        config = config_of(name)
        H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
        for dtype in map(DTYPES.__getitem__, sizes["types"]):
            q, k, v = (torch.randn(N, heads, D, device=device).to(dtype) for heads in (H, H_kv, H_kv))
            near = torch.randn(2, pages, PAGE_SIZE, H_kv, D, device=device).to(dtype)
            shift = sizes["elements"] // near[0, 0].numel() if dtype == usual else 0
            far = [torch.empty(shift + pages, PAGE_SIZE, H_kv, D, device=device, dtype=dtype) for _ in near]
            for pool, each in zip(far, near, strict=True):
                pool[shift:] = each
            slots = batch.slot_mapping + shift * PAGE_SIZE
            behind = replace(batch, page_tables=batch.page_tables + shift, slot_mapping=slots)
            found = []
            for backend, pools, where in (
                ("torch", near.clone(), batch),
                ("triton", near, batch),
                ("triton", far, behind),
            ):
                attention, _ = choose_attention(backend, device, dtype, D, PAGE_SIZE)
                attention.write(k, v, *pools, where.slot_mapping)
                found.append((attention.attend(q, *pools, attention.prepare(where)), *(x[-pages:] for x in pools)))
            expected, actual, last = found
            errors[what := f"{name}, {dtype}"] = relative_error(actual, expected)
            wrong += too_large({what: errors[what]}, ALLOWED[dtype])
            if not all(map(torch.equal, (*actual, *expected[1:]), (*last, *actual[1:]))):
                wrong.append(f"{what}: K and V are not written and read everywhere as they should be")
    return {"errors": errors, "wrong": wrong}


def random_batch(sizes: list[list[int]], device: torch.device) -> PagedBatch:
    """Return a batch of requests with these (tokens in the step, tokens of the sequence), their pages in any order."""
    counts, lengths = (list(column) for column in zip(*sizes, strict=True))
    needed = [-(-length // PAGE_SIZE) for length in lengths]
    order = iter(torch.randperm(sum(needed), generator=torch.Generator().manual_seed(0)).tolist())
    tables = [[next(order) for _ in range(count)] for count in needed]
    places = [
        table[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE
        for table, (count, length) in zip(tables, sizes, strict=True)
        for p in range(length - count, length)
    ]
    return PagedBatch.pack(counts, lengths, tables, torch.tensor(places, device=device), PAGE_SIZE)


@torch.inference_mode()
def measure_sampler(settings: Settings, sizes: dict) -> Figures:
    """Return microseconds, and the share of draws that are not the definition's, by what the requests ask for."""
    device, dtype = settings.place()
    logits = 3 * torch.randn(sizes["rows"], settings.config().vocab_size, device=device)  # in float32 none are equal
    errors, us = {}, {}
    for name, options in SAMPLED.items():
        params = [SamplingParams(temperature=0.6 if i % 8 else 0.0, seed=i, **options) for i in range(len(logits))]
        rows = [Request("smoke", [0], each, None, frozenset(), 1) for each in params]
        expected = draw(probabilities(logits, rows), [uniform(row.seed, 0) for row in rows])
        with patch.object(sampling, "has_kernels", return_value=True):  # on a CPU, too, in Triton's interpreter
            errors[name] = (Drawn(logits, rows).token_ids != expected).float().mean().item()
            seconds = median_seconds(
                Drawn, device, [(logits.to(dtype), rows)], graph=False, repeats=min(5, sizes["samples"])
            )
        us[name] = 1e6 * seconds
    return {"us": us, "errors": errors, "wrong": too_large(errors, MOST_OTHER_DRAWS)}


def report(document: dict) -> dict[str, list]:
    """Return a line for each row and variant, and what else there is to say."""
    sides, tables = document["sides"], {}
    if "times" in sides:
        lines = [("operation", "tokens", "variant", "microseconds", "times the floor", "error", "first call, s")]
        for row in sides["times"]["rows"]["values"][0]:
            what = f"{row['model']}: {row['operation']}", row["tokens"]
            for name, us in row["us"].items():
                error = f"{row['errors'][name]:.1e}" if name in row["errors"] else ""
                figures = f"{us:.1f}", f"{us / row['floor_us']:.1f}", error, f"{row['first_call_s'][name]:.2f}"
                lines.append((*what, name, *figures))
            lines += [(*what, *why, "", "", "") for why in row["missing"].items()]
        rates = (f"{sides['times'][f'{name}_per_second']['median']:.3g} {name}" for name in RATES)
        tables[f"kernels; at best {', '.join(rates)} per second"] = lines
    lines = [("what", "error", "microseconds")]
    for side in (sides[name] for name in ("pages", "sampler") if name in sides):
        us = side["us"]["values"][0] if "us" in side else {}
        lines += [(name, f"{x:.1e}", f"{us.get(name, 0):.0f}") for name, x in side["errors"]["values"][0].items()]
    return tables | {"pages, and the sampler": lines, "wrong": [(said,) for said in ("wrong", *wrong_in(sides))]}


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"pages": measure_pages, "sampler": measure_sampler, "times": measure_times},
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 65},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""Is every kernel right at the shapes of real models, and how long does it take beside the operations that it replaces?

Method. Medians of replayed CUDA graphs, in which the gaps between kernels are the GPU's own (`median_seconds`): two
layers without attention, in plain PyTorch and with the course's kernels; and attention in decode, by the other
backends and with every tile of the kernel. The floor is the time of a copy of the same bytes. Then two checks: prompts
and decode in one step, with pages behind 2^31 elements of their pool; and the sampler beside its definition.

Expectation. Errors are those of rounding. Layers take little more than the floor for one token, and more for many,
whose products take longer than the bytes. Attention of a large batch reads K and V at 80 percent of a copy's rate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from common import sampling
from common.attention import PagedBatch, choose_attention
from common.attention.triton_backend import TILES, Tile
from common.bench.ceilings import ceilings
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.suite import wrong_in
from common.bench.timing import inputs_beyond_cache, median_seconds
from common.errors import first_sentence
from common.fused import fuse
from common.loader.weights import empty_model, randomize_weights
from common.model import ModelConfig, Transformer
from common.request import Request
from common.sampling import Drawn, SamplingParams, draw, probabilities, uniform

SIZES = {
    "model": "Qwen3-0.6B",
    "layers": [["Qwen3-8B", 1], ["Qwen3-8B", 256]],  # tokens in a pass
    # Requests, and tokens of each; heads have 128 dimensions, and 64 in the last one.
    "attention": [*(["Qwen3-0.6B", B, 1024] for B in (1, 8, 64, 256)), ["TinyLlama-1.1B", 64, 1024]],
    "samples": 5,  # of what no graph replays
    "batch": [[1, 700], [1, 33], [300, 300], [40, 900], [700, 1500]],  # tokens in the step, and of the sequence
    "elements": 2**31,  # of K, and of V, before the pages of this batch
    "rows": 64,  # of logits
}
TINY = {"model": "draft", "layers": [["draft", 5]], "attention": [["draft", 2, 20]], "samples": 1}
TINY |= {"batch": [[1, 33], [9, 40]], "elements": 2**14, "rows": 3}
LAYERS, VOCABULARY, PAGE_SIZE = 2, 16, 16
FLASH_PAGE_SIZE = 256  # torch's flash attention takes no smaller pages
ALLOWED = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # relative errors
SAMPLED = {"plain": {}, "top-k and top-p": {"top_k": 20, "top_p": 0.95}}  # the second is what Qwen3 asks for
MOST_OTHER_DRAWS = 0.04  # of all: numbers at the border between two tokens


class Case(NamedTuple):
    """One row: functions of the same arguments with the same result. The first is the definition of Triton's."""

    operation: str
    tokens: int  # in the step
    nbytes: int  # to be moved by each variant: weights, inputs and outputs, once
    arguments: Callable[[], tuple]  # new ones at each call
    variants: dict[str, Callable[[], Callable]]  # makers of the functions


def measure_times(settings: Settings, sizes: dict) -> Figures:
    """Return the rates of a copy and of products, and a row for each operation and number of tokens."""
    device, dtype = settings.place()
    rates, rows, wrong = ceilings(device, dtype), [], []
    for kind, case_of in (("layers", layers_case), ("attention", attention_case)):
        for model, *numbers in sizes[kind]:
            case = case_of(Settings(model, load_format="dummy").config(), *numbers, device, dtype)
            found, where = times_of(case, device, sizes["samples"]), f"{model}, {case.tokens}, "
            row = {"model": model, "operation": case.operation, "tokens": case.tokens}
            rows.append(row | {"floor_us": 1e6 * case.nbytes / rates["copy_bytes_per_second"]} | found)
            own = next(
                name for name in case.variants if name.startswith("triton")
            )  # other tiles need not fit on the chip
            wrong += [f"{where}{own}: {found['missing'][own]}"] if own in found["missing"] else []
            wrong += too_large(found["errors"], ALLOWED[dtype], where)
    return rates | {"rows": rows, "wrong": wrong}


def too_large(errors: dict[str, float], most: float, where: str = "") -> list[str]:
    """Return a sentence for each error that is larger than allowed, or NaN."""
    return [f"{where}{name}: error {x:.1e}, allowed {most:.0e}" for name, x in errors.items() if not x <= most]


@torch.inference_mode()
def times_of(case: Case, device: torch.device, samples: int) -> dict[str, dict]:
    """Return by variant microseconds of a call, the relative errors of Triton's, and why a variant cannot run."""
    inputs = [case.arguments() for _ in range(inputs_beyond_cache(case.nbytes, device))]
    times, errors, missing, expected = {}, {}, {}, None
    for name, make in case.variants.items():
        try:
            function = make()
            found = function(*inputs[0])
            expected = found if expected is None else expected
            if name.startswith("triton"):  # with pages of another size, a request of `flash` has other tokens
                errors[name] = relative_error(found, expected)
            times[name] = 1e6 * median_seconds(function, device, inputs, repeats=samples)
        except Exception as error:  # Triton and PyTorch have exceptions of many classes for what they cannot run
            missing[name] = first_sentence(error)
    return {"us": times, "errors": errors, "missing": missing}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over that of the expected."""
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def layers_case(config: ModelConfig, N: int, device: torch.device, dtype: torch.dtype) -> Case:
    """Return a case: a pass over N tokens through two layers, in which attention returns its queries."""
    model = empty_model(replace(config, num_layers=LAYERS, vocab_size=VOCABULARY), device, dtype)
    randomize_weights(model)

    def arguments() -> tuple:
        return tuple(torch.randint(most, (N,), device=device) for most in (VOCABULARY, config.context_length))

    def without_attention(model: Transformer) -> Callable:
        return partial(model, attend=lambda layer, q, k, v: q)

    nbytes = sum(parameter.nbytes for parameter in model.blocks.parameters())
    nbytes += LAYERS * 2 * N * config.hidden_size * dtype.itemsize
    variants = {"eager": lambda: without_attention(model), "triton": lambda: without_attention(fuse(model))}
    return Case("two layers", N, nbytes, arguments, variants)


def attention_case(config: ModelConfig, B: int, context: int, device: torch.device, dtype: torch.dtype) -> Case:
    """Return a case: one token of each of B requests attends to `context` tokens."""
    H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
    slots = B * -(-context // FLASH_PAGE_SIZE) * FLASH_PAGE_SIZE  # enough for pages of either size

    def arguments() -> tuple:
        return tuple(torch.randn(shape, device=device, dtype=dtype) for shape in ((B, H, D), *2 * [(slots, H_kv, D)]))

    def decode(name: str, page_size: int = PAGE_SIZE, tile: Tile | None = None) -> Callable:
        backend, _ = choose_attention(name, device, dtype, D, page_size)
        if tile:
            backend.tile = tile
        plan = backend.prepare(random_batch(B * [(1, context)], page_size, device))
        return lambda q, k, v: backend.attend(q, k.unflatten(0, (-1, page_size)), v.unflatten(0, (-1, page_size)), plan)

    variants = {"torch": partial(decode, "torch"), "flash": partial(decode, "flash", FLASH_PAGE_SIZE)}
    variants |= {f"triton {list(tile)}": partial(decode, "triton", tile=tile) for tile in TILES}
    nbytes = (2 * context * H_kv + 2 * H) * D * B * dtype.itemsize
    return Case(f"attention, D={D}", B, nbytes, arguments, variants)


def random_batch(sizes: Sequence[Sequence[int]], page_size: int, device: torch.device) -> PagedBatch:
    """Return a batch of requests with these (tokens in the step, tokens of the sequence), their pages in any order.

    All page tables are as long as the longest sequence needs; together they have the pages from 0 on, once each.
    """
    counts, lengths = (list(column) for column in zip(*sizes, strict=True))
    pages = len(sizes) * -(-max(lengths) // page_size)
    tables = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).view(len(sizes), -1).tolist()
    slots = [
        table[position // page_size] * page_size + position % page_size
        for table, (count, length) in zip(tables, sizes, strict=True)
        for position in range(length - count, length)
    ]
    return PagedBatch.pack(counts, lengths, tables, torch.tensor(slots, device=device), page_size)


@torch.inference_mode()
def measure_pages(settings: Settings, sizes: dict) -> Figures:
    """Return the error of Triton's attention, beside PyTorch's, in a step of prompts and decode whose pages are so far
    behind in their pools that offsets do not fit into 32 bits."""
    (device, dtype), config, found = settings.place(), settings.config(), []
    batch, shape = random_batch(sizes["batch"], PAGE_SIZE, device), (PAGE_SIZE, config.num_kv_heads, config.head_dim)
    shift, slots = sizes["elements"] // math.prod(shape), batch.slot_mapping
    batch = replace(batch, page_tables=batch.page_tables + shift, slot_mapping=slots + shift * PAGE_SIZE)
    q, k, v = (
        torch.randn(len(slots), heads, config.head_dim, device=device, dtype=dtype)
        for heads in (config.num_heads, *2 * [config.num_kv_heads])
    )
    pools = [torch.empty(shift + batch.page_tables.numel(), *shape, device=device, dtype=dtype) for _ in "kv"]
    for pool in pools:
        pool[shift:].normal_()
    for name in ("triton", "torch"):
        attention, _ = choose_attention(name, device, dtype, config.head_dim, PAGE_SIZE)
        if name == "triton":
            attention.write(k, v, *pools, batch.slot_mapping)
        found.append(attention.attend(q, *pools, attention.prepare(batch)))
    errors = {"prompts and decode": relative_error(*found)}
    written = [pool[shift:].flatten(0, 1)[slots] for pool in pools]
    wrong = [] if all(map(torch.equal, written, (k, v))) else ["K and V are not in their slots"]
    return {"errors": errors, "wrong": [*wrong, *too_large(errors, ALLOWED[dtype])]}


@torch.inference_mode()
def measure_sampler(settings: Settings, sizes: dict) -> Figures:
    """Return microseconds, and the share of draws that differ from the definition's, by what the requests ask for."""
    device, dtype = settings.place()
    logits = 3 * torch.randn(sizes["rows"], settings.config().vocab_size, device=device)  # in float32 none are equal
    errors, us = {}, {}
    for name, options in SAMPLED.items():
        params = [SamplingParams(temperature=0.6 if i % 8 else 0.0, seed=i, **options) for i in range(len(logits))]
        rows = [Request("smoke", [0], each, None, frozenset(), 1) for each in params]
        expected = draw(probabilities(logits, rows), [uniform(row.seed, 0) for row in rows])
        with patch.object(sampling, "has_kernels", return_value=True):  # on a CPU, too, in Triton's interpreter
            errors[name] = (Drawn(logits, rows).token_ids != expected).float().mean().item()
            inputs = [(logits.to(dtype), rows)]
            us[name] = 1e6 * median_seconds(Drawn, device, inputs, graph=False, repeats=sizes["samples"])
    return {"us": us, "errors": errors, "wrong": too_large(errors, MOST_OTHER_DRAWS)}


def report(document: dict) -> dict[str, list]:
    """Return a line for each row and variant, for each of the checks, and for what is wrong."""
    sides, tables, checks = document["sides"], {}, [("check", "error", "microseconds")]
    if times := sides.get("times"):
        lines = [("operation", "tokens", "variant", "microseconds", "times the floor", "error")]
        for row in times["rows"]["values"][0]:
            what, errors = (f"{row['model']}: {row['operation']}", row["tokens"]), row["errors"]
            for name, us in row["us"].items():
                error = f"{errors[name]:.1e}" if name in errors else ""
                lines.append((*what, name, f"{us:.1f}", f"{us / row['floor_us']:.1f}", error))
            lines += [(*what, *why, "", "") for why in row["missing"].items()]
        copy, products = (times[f"{rate}_per_second"]["median"] / 1e12 for rate in ("copy_bytes", "matmul_flops"))
        tables[f"kernels; at best {copy:.2f} TB/s and {products:.0f} TFLOP/s"] = lines
    for side in (sides[name] for name in ("pages", "sampler") if name in sides):
        us = side.get("us", {"values": [{}]})["values"][0]
        for name, error in side["errors"]["values"][0].items():
            checks.append((name, f"{error:.1e}", f"{us[name]:.0f}" if name in us else ""))
    return tables | {"pages, and the sampler": checks, "wrong": [(said,) for said in ("wrong", *wrong_in(sides))]}


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

"""Is every kernel right at the shapes of real models, and how long does it take beside the operations that it replaces?

Method. Medians of replayed CUDA graphs, in which the gaps between kernels are the GPU's own (`median_seconds`): two
layers without attention, in plain PyTorch and with the course's kernels; and attention in decode, by the other
backends and with every tile of the kernel. The sampler and its definition are launched from Python. The floor is the
time of a copy of the same bytes.

Expectation. Errors are those of rounding. Layers take little more than the floor for one token, and more for many,
whose products take longer than the bytes. Attention of a large batch reads K and V at 80 percent of a copy's rate.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

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
from common.sampling import SamplingParams, draw, probabilities, uniform

LAYERS, VOCABULARY, PAGE_SIZE = 2, 16, 16
ALLOWED = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # relative errors


class Case(NamedTuple):
    """One row: functions with the same arguments and results; the first defines what those by Triton must return."""

    operation: str
    tokens: int  # in the step
    nbytes: int  # to be moved by each variant: weights, inputs and outputs, once
    arguments: Callable[[], tuple]  # new arguments at each call
    variants: dict[str, Callable[[], Callable]]  # makers of the functions
    graph: bool = True  # whether a CUDA graph can hold them


def measure_times(settings: Settings, sizes: dict) -> Figures:
    """Return the rates of a copy and of products, and a row for each operation and number of tokens."""
    device, dtype = settings.place()
    rates, rows, wrong = ceilings(device, dtype), [], []
    for kind, case_of in (("layers", layers_case), ("attention", attention_case), ("sampler", sampler_case)):
        for model, *numbers in sizes[kind]:
            case = case_of(Settings(model, load_format="dummy").config(), *numbers, device, dtype)
            found, where = times_of(case, device, sizes["samples"]), f"{model}, {case.tokens}, "
            row = {"model": model, "operation": case.operation, "tokens": case.tokens}
            rows.append(row | {"floor_us": 1e6 * case.nbytes / rates["copy_bytes_per_second"]} | found)
            own = next(name for name in case.variants if name.startswith("triton"))  # Other tiles may be too large.
            wrong += [f"{where}{own}: {found['missing'][own]}"] if own in found["missing"] else []
            wrong += [f"{where}{name}: error {x:.1e}" for name, x in found["errors"].items() if not x <= ALLOWED[dtype]]
    return rates | {"rows": rows, "wrong": wrong}


@torch.inference_mode()
def times_of(case: Case, device: torch.device, samples: int) -> dict[str, dict]:
    """Return by variant microseconds of a call, the relative error of those by Triton, and why one cannot run.

    The error is the norm of the difference over that of the expected.
    """
    inputs = [case.arguments() for _ in range(inputs_beyond_cache(case.nbytes, device))]
    times, errors, missing, expected = {}, {}, {}, None
    for name, make in case.variants.items():
        try:
            function = make()
            found = function(*inputs[0])
            expected = found if expected is None else expected
            if name.startswith("triton"):
                errors[name] = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
            times[name] = 1e6 * median_seconds(function, device, inputs, graph=case.graph, repeats=samples)
        except Exception as error:  # Triton and PyTorch have exceptions of many classes for what they cannot run
            missing[name] = first_sentence(error)
    return {"us": times, "errors": errors, "missing": missing}


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
    slots = B * -(-context // PAGE_SIZE) * PAGE_SIZE

    def arguments() -> tuple:
        return tuple(torch.randn(shape, device=device, dtype=dtype) for shape in ((B, H, D), *2 * [(slots, H_kv, D)]))

    def decode(name: str, tile: Tile | None = None) -> Callable:
        backend, _ = choose_attention(name, device, dtype, D)
        if tile:
            backend.tile = tile
        order = torch.randperm(slots // PAGE_SIZE, generator=torch.Generator().manual_seed(0))  # pages lie anywhere
        tables = order.view(B, -1)[:, : -(-context // PAGE_SIZE)].tolist()
        nowhere = torch.full((B,), -1, device=device)
        plan = backend.prepare(PagedBatch.pack([1] * B, [context] * B, tables, nowhere, PAGE_SIZE))
        return lambda q, k, v: backend.attend(q, k.unflatten(0, (-1, PAGE_SIZE)), v.unflatten(0, (-1, PAGE_SIZE)), plan)

    variants = {"torch": partial(decode, "torch")}
    variants |= {f"triton {list(tile)}": partial(decode, "triton", tile=tile) for tile in TILES}
    nbytes = (2 * context * H_kv + 2 * H) * D * B * dtype.itemsize
    return Case(f"attention, D={D}", B, nbytes, arguments, variants)


def sampler_case(config: ModelConfig, B: int, filters: dict, device: torch.device, dtype: torch.dtype) -> Case:
    """Return a case: draw a token for each of B requests, of which every eighth is greedy."""
    from common.sampling_kernels import draw_tokens

    params = [SamplingParams(temperature=0.6 if i % 8 else 0.0, **filters) for i in range(B)]
    rows = [Request("smoke", [0], each, None, frozenset(), 1) for each in params]
    numbers = [uniform(0, i) for i in range(B)]

    def arguments() -> tuple:
        return (3 * torch.randn(B, config.vocab_size, device=device),)  # in float32 hardly any two are equal

    variants = {
        "torch": lambda: lambda logits: draw(probabilities(logits, rows), numbers),
        "triton": lambda: lambda logits: draw_tokens(logits, params, numbers),
    }
    name = ", ".join(["sampler", *filters])
    return Case(name, B, 4 * B * config.vocab_size, arguments, variants, graph=False)


def report(document: dict) -> dict[str, list]:
    """Return a line for each row and variant, and for what is wrong."""
    times = document["sides"]["times"]
    lines = [("operation", "tokens", "variant", "microseconds", "times the floor", "error")]
    for row in times["rows"]["values"][0]:
        what, errors = (f"{row['model']}: {row['operation']}", row["tokens"]), row["errors"]
        for name, us in row["us"].items():
            error = f"{errors[name]:.1e}" if name in errors else ""
            lines.append((*what, name, f"{us:.1f}", f"{us / row['floor_us']:.1f}", error))
        lines += [(*what, *why, "", "") for why in row["missing"].items()]
    copy, products = (times[f"{rate}_per_second"]["median"] / 1e12 for rate in ("copy_bytes", "matmul_flops"))
    title = f"kernels; at best {copy:.2f} TB/s and {products:.0f} TFLOP/s"
    return {title: lines, "wrong": [(said,) for said in ("wrong", *wrong_in(document["sides"]))]}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={"times": measure_times},
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

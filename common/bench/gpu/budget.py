"""Where the time of a decode step goes: what arithmetic allows each part, beside what a GPU takes for it.

Method. B requests of stage 06 decode, `context` tokens behind each, with CUDA graphs and the overlapped loop, each on
and off. The budget of a part is the larger of its bytes over the bandwidth and its FLOPs over the rate of products, and
at least 2 us for each launch. What is measured is the time of the part's kernels, known by their names in torch's
profiler; of matrix products the longest in each step is that of the logits. "host" is the time in which Python works on
a step, without its waits for tokens: it costs nothing while it is shorter than the kernels. "prompts" is the time of
the prompts before the steps, "prompts, host" that of Python. "idle" is the time in which no kernel runs. Tables of each
kernel follow.

Expectation. A part that takes far more than its budget is where to look first. Without graphs the CPU takes 5 us to
launch a kernel of 1 us, so the GPU idles; without overlap it idles while Python prepares the next step.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch

from common.bench.cost_model import block_parameters, head_parameters, step_flops
from common.bench.harness import Benchmark, Figures, Unavailable, curves
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.steps import ENDLESS, decoding
from common.bench.timing import free_memory, kernels_of
from common.engine import BaseEngine
from common.loader.device import DTYPES
from common.model import ModelConfig
from common.transfers import ToHost, synchronize

STAGE = "06"
Kernel = tuple[str, float, float]  # name, start, end, in seconds
MAX_KERNELS = 30  # in a table
SMALLEST_KERNEL = 2e-6  # seconds of a launch, at least
HOST_SECONDS = 4e-3  # Python's time for a step of 256 requests, at most
KERNELS = {  # what kernels' names contain, by the part of a step that the kernels belong to
    "attention": ("decode_kernel",),
    "products": ("gemm", "gemv", "nvjet", "cutlass", "xmma", "splitkreduce", "few_rows_kernel"),
    "small kernels": ("add_norm_kernel", "norm_rotate_kernel", "silu_mul_kernel", "write_kernel"),
    "sampler": ("block_sums_kernel", "cut_kernel", "draw_kernel"),
}
LAYER_LAUNCHES = 4  # small kernels in a layer: two norms, one rotation that also writes K and V, one activation


def step_budget(
    config: ModelConfig, dtype: torch.dtype, context: int, bandwidth: float, flops: float, B: int
) -> dict[str, float]:
    """Return seconds of each part of a step in which B requests decode, of the step, and of the prompts before it.

    context: tokens behind each. bandwidth, flops: the device's best, in bytes (read and written) and FLOPs per second.
    """
    size, layers, heads = dtype.itemsize, config.num_layers, config.num_heads + 2 * config.num_kv_heads
    # Numbers that the small kernels of a layer read and write for each token; the residual counts both ways.
    small = 8 * config.hidden_size + 2 * heads * config.head_dim + 3 * config.intermediate_size

    def seconds(nbytes: float, products: float = 0.0, launches: int = 1) -> float:
        return max(nbytes / bandwidth, products / flops, launches * SMALLEST_KERNEL)

    parts = {
        "attention": seconds(B * context * config.kv_bytes_per_token(dtype), launches=layers),
        "products": seconds(block_parameters(config) * size, 2.0 * B * block_parameters(config), 4 * layers),
        "small kernels": seconds(layers * B * small * size, launches=LAYER_LAUNCHES * layers),
        "logits": seconds((head_parameters(config) + B * config.vocab_size) * size, 2.0 * B * head_parameters(config)),
        "sampler": seconds(B * config.vocab_size * size, launches=2),
    }
    host = HOST_SECONDS * max(B, 64) / 256
    step = max(sum(parts.values()), host)
    return parts | {"host": host, "step": step, "prompts": B * step_flops(config, context) / flops}


def part_of(kernel: str) -> str:
    """Return the part of a step that a kernel of this name belongs to; "other" for copies and fills."""
    found = (part for part, names in KERNELS.items() if any(name in kernel.lower() for name in names))
    return next(found, "other")


def parts_of(kernels: Sequence[Kernel], steps: int) -> dict[str, float]:
    """Return seconds of each part of a step, from all kernels of `steps` steps."""
    totals, products = {}, []
    for name, start, end in kernels:
        part = part_of(name)
        totals[part] = totals.get(part, 0.0) + (end - start) / steps
        products += [end - start] if part == "products" else []
    if products:
        totals["logits"] = sum(sorted(products)[-steps:]) / steps
        totals["products"] -= totals["logits"]
    return totals


def by_kernel(kernels: Sequence[Kernel], steps: int) -> tuple[float, list[tuple[str, float, float]]]:
    """Return seconds of a step in which kernels run; and name, times and microseconds of each, costliest first."""
    counts, totals, busy, reached = Counter(), Counter(), 0.0, 0.0
    for name, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        counts[name[:80]] += 1
        totals[name[:80]] += end - start
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    costliest = totals.most_common(MAX_KERNELS)
    return busy / steps, [(name, counts[name] / steps, 1e6 * total / steps) for name, total in costliest]


def measure_step(engine: BaseEngine, B: int, context: int, steps: int) -> Figures:
    """Return milliseconds of each part of a step, of the step, its idle time, the host and the prompts; and kernels."""
    waits, original = [], ToHost.tolist

    def timed(self: ToHost) -> list:
        start = time.perf_counter()
        numbers = original(self)
        waits.append(time.perf_counter() - start)
        return numbers

    with patch.object(ToHost, "tolist", timed):
        begun = time.perf_counter()
        with decoding(engine, B, context, replace(ENDLESS, temperature=0.6)):
            synchronize(engine.device)
            start, waited = time.perf_counter(), sum(waits)
            for _ in range(steps):
                engine.step()
            host = time.perf_counter() - start - (sum(waits) - waited)
            synchronize(engine.device)
            step = (time.perf_counter() - start) / steps
            found = {"prompts": start - begun, "prompts, host": start - begun - waited}
            found |= {"step": step, "host": host / steps}
            kernels = kernels_of(engine.step, steps, engine.device)
    busy, rows = by_kernel(kernels, steps)
    found |= parts_of(kernels, steps) | {"idle": max(0.0, step - busy)}
    return {"ms": {part: 1e3 * seconds for part, seconds in found.items()}, "kernels": rows}


def measure(graphs: bool, overlap: bool, settings: Settings, sizes: dict) -> Figures:
    """Return milliseconds of each part of a step and its kernels, for each number of requests."""
    loaded, batches, size = settings.load(), sizes["requests"], (sizes["context"], sizes["steps"])
    try:
        engine = engine_of(STAGE, loaded, max_running=max(batches), graphs=graphs, overlap=overlap)
    except ValueError as reason:
        raise Unavailable(str(reason)) from reason
    tokens = sizes["context"] + 3 * sizes["steps"]  # of each request, at most
    room = engine.stats()["kv_tokens_capacity"]  # A batch that does not fit has no figures.
    none: Figures = {"ms": {}, "kernels": []}
    steps = [measure_step(engine, B, *size) if B * tokens <= room else none for B in batches]
    del engine
    free_memory(settings.place()[0])
    return curves(steps)


def report(document: dict) -> dict[str, list]:
    """Return for each number of requests a line for each part: milliseconds allowed, and taken in each way to run.

    "times" is how many times its budget a part takes in the first way.
    """
    ways, tables = {name: side["ms"]["values"][0] for name, side in document["sides"].items()}, {}
    config, settings, context = ModelConfig(**document["model"]), document["settings"], document["sizes"]["context"]
    rates = (document["hardware"][f"{rate}_per_second"] for rate in ("copy_bytes", "matmul_flops"))
    budget_of = partial(step_budget, config, DTYPES[settings["dtype"]], context, *rates)
    for i, B in enumerate(document["sizes"]["requests"]):
        budget = {part: 1e3 * seconds for part, seconds in budget_of(B).items()}
        taken, lines = [steps[i] for steps in ways.values()], [("milliseconds", "budget", *ways, "times")]
        for part in dict.fromkeys([*budget, *taken[0]]):
            shown = [f"{each[part]:.3f}" if part in each else "" for each in (budget, *taken)]
            times = f"{taken[0][part] / budget[part]:.1f}" if part in budget and part in taken[0] else ""
            lines.append((part, *shown, times))
        tables[f"{settings['model']}, {B} requests, {context} tokens each"] = lines
    for name, side in document["sides"].items():
        for B, kernels in zip(document["sizes"]["requests"], side["kernels"]["values"][0], strict=True):
            lines = [(f"{us:.1f}", f"{count:g}", kernel) for kernel, count, us in kernels]
            tables[f"A step of {B} requests, {name}"] = [("microseconds", "times", "kernel"), *lines]
    return tables


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        "graphs and overlap": partial(measure, True, True),
        "graphs": partial(measure, True, False),
        "overlap": partial(measure, False, True),
        "neither": partial(measure, False, False),
    },
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

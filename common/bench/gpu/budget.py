"""Where the time of a decode step goes: what arithmetic allows each part, beside what a GPU takes for it.

    python -m common.bench.gpu.budget                                # measure on this machine's GPU
    python -m common.bench.gpu.budget --bandwidth 4.2 --tflops 790   # the arithmetic alone, for an H200

B requests decode, with `context` tokens behind each. A part costs the larger of its bytes over the bandwidth and its
arithmetic over the rate of products, and no launch is shorter than the smallest kernel there is. The rates are measured
here, or given. What is measured is the time of the kernels in each part, by torch's profiler and their names; of
matrix products the longest in each step is that of the logits. "host" is what Python needs for a step, without its
waits for tokens: it costs nothing while it is shorter than the kernels, and "idle" is the time in which none runs.

A line that takes far more than its budget is where to look first.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from unittest.mock import patch

import torch

from common.acceleration.accelerate import make_engine
from common.bench.ceilings import copy_bytes_per_second, matmul_flops_per_second
from common.bench.cost_model import block_parameters, head_parameters, step_flops
from common.bench.experiment import run_experiment
from common.bench.harness import Figures
from common.bench.settings import Settings
from common.bench.steps import ENDLESS, decoding
from common.bench.timing import kernels_of
from common.engine import BaseEngine
from common.model import ModelConfig
from common.stages import load_engine
from common.transfers import ToHost, synchronize

STAGE = "06"
SMALLEST_KERNEL = 2e-6  # seconds
HOST_SECONDS = 4e-3  # of a step of 256 requests: at most
STEPS = 20  # measured
KERNELS = {  # in the names of kernels, by the part of a step that they belong to
    "attention": ("decode_kernel", "combine_kernel"),
    "small kernels": ("add_norm_kernel", "norm_rotate_kernel", "silu_mul_kernel", "write_kernel"),
    "sampler": ("block_sums_kernel", "draw_kernel"),
    "products": ("gemm", "gemv", "nvjet", "cutlass", "xmma"),
}
LAYER_LAUNCHES = 4  # small kernels in a layer: two norms, one rotation that also writes K and V, one activation


@dataclass(frozen=True)
class Rates:
    """What a device does at best: bytes a second (read and written), FLOPs a second."""

    bandwidth: float
    flops: float


def step_budget(config: ModelConfig, dtype: torch.dtype, B: int, context: int, rates: Rates) -> dict[str, float]:
    """Return seconds of each part of a step in which B requests decode."""
    size, layers, heads = dtype.itemsize, config.num_layers, config.num_heads + 2 * config.num_kv_heads
    # Numbers that the small kernels of a layer read and write for each token; the residual counts both ways.
    small = 8 * config.hidden_size + 2 * heads * config.head_dim + 3 * config.intermediate_size

    def seconds(nbytes: float, flops: float = 0.0, launches: int = 1) -> float:
        return max(nbytes / rates.bandwidth, flops / rates.flops, launches * SMALLEST_KERNEL)

    return {
        "attention": seconds(B * context * config.kv_bytes_per_token(dtype), launches=2 * layers),
        "products": seconds(block_parameters(config) * size, 2.0 * B * block_parameters(config), 4 * layers),
        "small kernels": seconds(layers * B * small * size, launches=LAYER_LAUNCHES * layers),
        "logits": seconds((head_parameters(config) + B * config.vocab_size) * size, 2.0 * B * head_parameters(config)),
        "sampler": seconds(B * config.vocab_size * size, launches=2),
        "host": HOST_SECONDS * max(B, 64) / 256,
    }


def prompt_budget(config: ModelConfig, lengths: Iterable[int], rates: Rates) -> float:
    """Return seconds of the arithmetic of prompts of these lengths."""
    return sum(step_flops(config, length) for length in lengths) / rates.flops


def part_of(kernel: str) -> str:
    """Return the part of a step that a kernel of this name belongs to; "other" for copies and fills."""
    found = (part for part, names in KERNELS.items() if any(name in kernel.lower() for name in names))
    return next(found, "other")


def parts_of(kernels: Sequence[tuple[str, float]], steps: int) -> dict[str, float]:
    """Return seconds of each part of a step, from the names and seconds of all kernels of `steps` steps."""
    totals: dict[str, float] = {}
    for name, seconds in kernels:
        totals[part_of(name)] = totals.get(part_of(name), 0.0) + seconds / steps
    products = sorted((seconds for name, seconds in kernels if part_of(name) == "products"), reverse=True)
    if products:
        totals["logits"] = sum(products[:steps]) / steps
        totals["products"] -= totals["logits"]
    return totals


def measure_step(
    engine: BaseEngine, B: int, context: int, steps: int = STEPS, temperature: float = 0.6
) -> dict[str, float]:
    """Return the seconds of each part of a step on a GPU, of the step, its idle time, the host's, and of a prompt."""
    begun = time.perf_counter()
    with decoding(engine, B, context, replace(ENDLESS, temperature=temperature)):
        synchronize(engine.device)
        start = time.perf_counter()
        with waits_timed() as waits:
            for _ in range(steps):
                engine.step()
        host = time.perf_counter() - start - sum(waits)
        synchronize(engine.device)
        step = (time.perf_counter() - start) / steps
        found = {"prompts": start - begun, "step": step, "host": host / steps}
        if engine.device.type == "cuda":
            kernels = kernels_of(engine.step, steps, engine.device)
            found |= parts_of([(name, end - start) for name, start, end in kernels], steps)
            found["idle"] = max(0.0, step - covered([(start, end) for _, start, end in kernels]) / steps)
    return found


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of what the spans cover together, where they overlap counted once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


@contextmanager
def waits_timed() -> Iterator[list[float]]:
    """Time each wait for tokens, in seconds, while this lasts."""
    waits, original = [], ToHost.tolist

    def timed(self: ToHost) -> list:
        start = time.perf_counter()
        try:
            return original(self)
        finally:
            waits.append(time.perf_counter() - start)

    with patch.object(ToHost, "tolist", timed):
        yield waits


def table(document: dict) -> list[str]:
    """Return one line for each part: milliseconds allowed, taken, and how many times that is."""
    sizes, rates, budget, measured = (document[name] for name in ("sizes", "rates", "budget", "measured"))
    lines = [
        f"{document['settings']['model']}, {sizes['requests']} requests with {sizes['context']} tokens each; "
        f"{rates['bandwidth'] / 1e12:.2f} TB/s, {rates['flops'] / 1e12:.0f} TFLOP/s",
        f"{'part':15} {'budget ms':>10} {'measured ms':>12} {'times':>7}",
    ]
    for part in [*budget, *(part for part in measured if part not in budget)]:
        allowed, taken = budget.get(part), measured.get(part)
        times = f"{taken / allowed:.1f}" if allowed and taken is not None else ""
        shown = [f"{1e3 * value:.3f}" if value is not None else "" for value in (allowed, taken)]
        lines.append(f"{part:15} {shown[0]:>10} {shown[1]:>12} {times:>7}")
    return lines


def measure(
    settings: Settings,
    requests: int = 256,
    context: int = 558,
    bandwidth: float | None = None,
    tflops: float | None = None,
) -> Figures:
    """bandwidth: TB/s, read and written; with tflops, of a large product of matrices: measure nothing."""
    measured: dict[str, float] = {}
    if bandwidth is not None and tflops is not None:
        config, dtype, rates = settings.config(), torch.bfloat16, Rates(1e12 * bandwidth, 1e12 * tflops)
    elif not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device here: give --bandwidth and --tflops for the arithmetic alone")
    else:
        loaded = settings.load()
        config, dtype, device = loaded.config, loaded.dtype, loaded.device
        rates = Rates(copy_bytes_per_second(device), matmul_flops_per_second(device, dtype))
        engine = make_engine(load_engine(STAGE), loaded, max_running=requests)
        print(engine.startup_notes, file=sys.stderr)
        measured = measure_step(engine, requests, context)
    budget = step_budget(config, dtype, requests, context, rates)
    budget["prompts"] = prompt_budget(config, [context] * requests, rates)
    budget["step"] = max(sum(budget[part] for part in (*KERNELS, "logits")), budget["host"])
    return {"rates": asdict(rates), "budget": budget, "measured": measured}


if __name__ == "__main__":
    sys.exit(run_experiment(measure, table=table, model="Qwen3-0.6B", load_format="dummy"))

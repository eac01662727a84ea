"""How close is a decode step to the time that its bytes take, for one request and for many?

Method. 1 to 256 requests that all decode, about 1,024 tokens before each; steps are timed from return to return, in
several rounds. Stage 06 with CUDA graphs and the overlap of steps, and with neither; stage 03, which launches every
operation by itself, with one request; and stage 06 with one request of a larger model. The floor is the time to read
every weight once and K and V of all requests at the bandwidth of a large copy, or that of the arithmetic at the rate of
a large matrix product, where it is longer.

Expectation. Weights are read once for all, so that at first a step takes hardly longer with more requests; at 256 of
them K and V are most of the bytes. The distance to the floor should not grow with the batch, unless the CPU's work for
each request does. A kernel of a microsecond takes the CPU five to launch: without graphs a step of 36 layers with a
dozen kernels each cannot be faster than that, however little there is to read.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from common.bench import plots
from common.bench.ceilings import ceilings
from common.bench.cost_model import step_floor
from common.bench.harness import Benchmark, Figures, Headline, Unavailable
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.steps import decoding, time_steps
from common.bench.timing import free_memory, peak_memory_gib
from common.engine import BaseEngine
from common.model import ModelConfig
from common.sampling import SamplingParams

STAGE, LAUNCHING = "06_prefix_cache", "03_streaming"
SIZES = {
    "model": "Qwen3-8B",
    "larger_model": "Qwen2.5-14B",
    "batches": [1, 8, 64, 256],
    "context": 1024,
    "steps": 20,  # of each round
    "rounds": 3,
    "token_budget": 16_384,
}
TINY = {
    "model": None, "larger_model": None, "batches": [1, 4], "context": 40, "steps": 3, "rounds": 2, "token_budget": 64,
}  # fmt: skip
ACCELERATED, PLAIN, LARGER = "graphs and overlap", "neither", "larger model"


def measure(
    stage: str, many: bool = True, larger: bool = False, **switches: bool
) -> Callable[[Settings, dict], Figures]:
    """Return a side: milliseconds of a step with each number of requests, or with one; and the least there can be."""

    def side(settings: Settings, sizes: dict) -> Figures:
        if larger and sizes["larger_model"]:
            settings = replace(settings, model=sizes["larger_model"], load_format="dummy")
        loaded, batches = settings.load(), sizes["batches"] if many else [1]
        options = {"max_running": max(batches), "token_budget": sizes["token_budget"]}
        try:
            engine = engine_of(stage, loaded, **options, **switches)
        except ValueError as reason:
            raise Unavailable(str(reason)) from reason
        # The largest first, so that the smaller ones find their prompts in the cache.
        steps = {batch: decode_steps(engine, batch, sizes) for batch in sorted(batches, reverse=True)}
        figures = {"step_ms": [steps[batch] for batch in batches], "peak_memory_gib": peak_memory_gib(loaded.device)}
        del engine
        free_memory(loaded.device)
        rates, context = ceilings(loaded.device, loaded.dtype), sizes["context"]
        floors = [step_floor(loaded.config, batch, context, loaded.dtype, *rates.values()) for batch in batches]
        return figures | rates | {"floor_ms": [1e3 * seconds for seconds in floors]}

    return side


def decode_steps(engine: BaseEngine, batch: int, sizes: dict) -> float:
    """Return milliseconds of a step, the median of the rounds' medians. Raise ValueError if memory lacks room."""
    filling = -(-batch * sizes["context"] // max(sizes["token_budget"] - batch, 1)) + 8  # steps until the last decodes
    timed = sizes["rounds"] * sizes["steps"]
    prompt_tokens = sizes["context"] - filling // 2 - timed // 2  # so that the context is right in the middle
    params = SamplingParams(max_tokens=filling + timed + 8, ignore_eos=True)
    room = batch * (prompt_tokens + params.max_tokens + 16)
    if room > engine.stats().get("kv_tokens_capacity", room):
        raise ValueError(f"{batch} requests need room for K and V of {room:,} tokens, which is not there")
    with decoding(engine, batch, prompt_tokens, params, tokens=3):
        rounds = [time_steps(engine, sizes["steps"]) for _ in range(sizes["rounds"])]
    return 1e3 * statistics.median(map(statistics.median, rounds))


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    best, larger = measured.get(ACCELERATED, measured[PLAIN]), measured[LARGER]
    return {
        "floor_ms": best["floor_ms"],
        "over_floor": [step / least for step, least in zip(best["step_ms"], best["floor_ms"], strict=True)],
        "larger_over_floor": larger["step_ms"][0] / larger["floor_ms"][0],
    }


HEADLINE = Headline(
    "a decode step of one request",
    "ms",
    (PLAIN, ACCELERATED),
    lambda sizes, side: side["step_ms"][0],
    more_is_better=False,
)


def draw(document: dict, png: Path) -> None:
    figures, sizes, sides = document["figures"], document["sizes"], document["sides"]
    batches, ratios = sizes["batches"], figures["over_floor"]["median"]
    message = (
        f"A step of {batches[-1]} requests takes {ratios[-1]:.2f} times as long as its bytes; of one, {ratios[0]:.2f}"
    )
    remark = (
        f"All requests decode, about {sizes['context']:,} tokens before each. Dashed: all weights once, and K and V of "
        "all requests, at the bandwidth of a large copy on this device\n(or the arithmetic at the rate of a large "
        f"matrix product, where that takes longer). {sizes['larger_model'] or 'The same model again'}, one request: "
        f"{figures['larger_over_floor']['median']:.2f} times its bytes."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (step, alone):
        plots.doubling(step, batches)
        plots.predicted(step, batches, figures["floor_ms"], "its bytes")
        for side in (ACCELERATED, PLAIN):
            if side in sides:
                plots.line(step, batches, sides[side]["step_ms"], STAGE, side.replace(" ", "\n"), dashed=side == PLAIN)
        plots.axes(step, "requests in the step", "milliseconds", "Time of a decode step, stage 06")
        names = [side for side in (ACCELERATED, PLAIN, LAUNCHING) if side in sides]
        firsts = [{key: sides[side]["step_ms"][key][0] for key in ("median", "min", "max")} for side in names]
        labels = ["stage 03" if side == LAUNCHING else "stage 06\n" + side.replace(" ", "\n", 1) for side in names]
        plots.bars(alone, ["03" if side == LAUNCHING else "06" for side in names], firsts, labels)
        floor = figures["floor_ms"]["median"][0]
        plots.floor_line(alone, len(names), floor, f"{plots.short(floor)}:\nits bytes")
        plots.axes(alone, "", "milliseconds", "One request")


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={
        ACCELERATED: measure(STAGE, graphs=True, overlap=True),
        PLAIN: measure(STAGE, graphs=False, overlap=False),
        LAUNCHING: measure(LAUNCHING, many=False),
        LARGER: measure(STAGE, many=False, larger=True),
    },
    sizes={"full": SIZES, "tiny": TINY},
    derive=derive,
    draw=draw,
    headline=HEADLINE,
    seconds={"gpu": 65},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

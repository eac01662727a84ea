"""A decode step of many requests: how close is it to the time that its bytes take?

Method. Stage 06 with 1 to 256 requests that all decode, about 1,024 tokens before each; steps are timed from return to
return, in several rounds. The floor is the time to read every weight once and K and V of all requests at the bandwidth
of a large copy, or that of the arithmetic at the rate of a large matrix product, where it is longer.

Expectation. Weights are read once for all, so that at first a step takes hardly longer with more requests; at 256 of
them K and V are most of the bytes. The distance to the floor should not grow with the batch, unless the CPU's work for
each request does.
"""

import statistics
import time
from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.harness import aggregate
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.sampling import SamplingParams

from .run import Run, peak_memory_gib, synchronize

STAGE = "06_prefix_cache"
SIZES: dict[str, Any] = {
    "model": "Qwen3-8B",
    "batches": [1, 8, 64, 256],
    "context": 1024,
    "steps": 20,  # of each round
    "rounds": 3,
    "token_budget": 16_384,
}
TINY = SIZES | {"model": "tiny", "batches": [1, 4], "context": 40, "steps": 3, "rounds": 2, "token_budget": 64}


def measure(run: Run) -> None:
    sizes = run.sizes
    loaded = run.load(sizes["model"])
    run.ceilings()
    engine = run.engine(STAGE, loaded, max_running=max(sizes["batches"]), token_budget=sizes["token_budget"])
    run.say(f"room for K and V of {engine.stats()['kv_tokens_capacity']:,} tokens; {engine.startup_notes}")
    points: dict[int, dict[str, list]] = {}
    for batch in sorted(sizes["batches"], reverse=True):  # so that the smaller ones find their prompts in the cache
        rounds = decode_steps(engine, batch, sizes)
        floor = 1e3 * run.step_floor(loaded.config, batch, sizes["context"])
        points[batch] = {"step_ms": rounds, "floor_ms": floor}
        run.say(f"{batch} requests: a step takes {statistics.median(rounds):.3f} ms, floor {floor:.3f} ms")
        measured = sorted(points)
        by_round = [{"step_ms": [points[b]["step_ms"][i] for b in measured]} for i in range(sizes["rounds"])]
        for figures in by_round:
            pairs = zip(figures["step_ms"], measured, strict=True)
            figures["over_floor"] = [milliseconds / points[b]["floor_ms"] for milliseconds, b in pairs]
        floors = [points[b]["floor_ms"] for b in measured]
        run.keep(batches=measured, floor_ms=floors, **aggregate(by_round), peak_memory_gib=peak_memory_gib(run.device))
    ratios = run.document["figures"]["over_floor"]["median"]
    run.headline(**{f"over floor at {batch}": ratio for batch, ratio in zip(sorted(points), ratios, strict=True)})


def decode_steps(engine: BaseEngine, batch: int, sizes: dict[str, Any]) -> list[float]:
    """Milliseconds of a step, the median of each round. ValueError if not all requests fit into memory at once."""
    filling = -(-batch * sizes["context"] // (sizes["token_budget"] - batch)) + 8  # steps until the last one decodes
    timed = sizes["rounds"] * sizes["steps"]
    prompt_tokens = sizes["context"] - filling // 2 - timed // 2  # so that the context is right in the middle
    params = SamplingParams(max_tokens=filling + timed + 8, ignore_eos=True)
    room = batch * (prompt_tokens + params.max_tokens + 16)
    if room > engine.stats()["kv_tokens_capacity"]:
        raise ValueError(f"{batch} requests need room for K and V of {room:,} tokens, which is not there")
    prompts = [random_prompt(prompt_tokens, engine.config.vocab_size, f"decode {i}") for i in range(batch)]
    requests = [engine.add(prompt, params) for prompt in prompts]
    try:
        while not all(len(request.token_ids) > 3 for request in requests):
            engine.step()
        return [1e3 * median_step(engine, sizes["steps"]) for _ in range(sizes["rounds"])]
    finally:
        for request in requests:
            engine.abort(request.request_id)


def median_step(engine: BaseEngine, steps: int) -> float:
    """Seconds from the return of one step to that of the next."""
    synchronize(engine.device)
    moments = [time.perf_counter()]
    for _ in range(steps):
        engine.step()
        moments.append(time.perf_counter())
    return statistics.median(after - before for before, after in zip(moments, moments[1:], strict=False))


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    figures, sizes = document["figures"], document["sizes"]
    batches, ratios = figures["batches"], figures["over_floor"]["median"]
    message = (
        f"A step of {batches[-1]} requests takes {ratios[-1]:.2f} times as long as its bytes; of one, {ratios[0]:.2f}"
    )
    remark = (
        f"All requests decode, about {sizes['context']:,} tokens before each. Dashed: all weights once, and K and V of "
        "all requests, at the bandwidth of a large copy on this device\n(or the arithmetic at the rate of a large "
        "matrix product, where that takes longer)."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (step, rate):
        for panel in (step, rate):
            plots.doubling(panel, batches)
        plots.predicted(step, batches, {"median": figures["floor_ms"]}, "its bytes")
        plots.line(step, batches, figures["step_ms"], STAGE, "stage 06")
        plots.axes(step, "requests in the step", "milliseconds", "Time of a decode step")
        most = [1e3 * batch / floor for batch, floor in zip(batches, figures["floor_ms"], strict=True)]
        low, middle, high = (figures["step_ms"][key] for key in ("max", "median", "min"))
        rates = {
            key: [1e3 * batch / milliseconds for batch, milliseconds in zip(batches, values, strict=True)]
            for key, values in (("min", low), ("median", middle), ("max", high))
        }
        plots.predicted(rate, batches, {"median": most}, "its bytes")
        plots.line(rate, batches, rates, STAGE, "stage 06")
        plots.logarithmic(rate)
        plots.axes(rate, "requests in the step", "tokens per second", "Tokens of all together")

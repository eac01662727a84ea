"""How many tokens per second do the course's engines reach in nano-vllm's benchmark?

Method. The requests of nano-vllm's bench.py, number for number: 256 prompts of 100 to 1,024 random tokens, answers of
as many, at a temperature of 0.6, all known from the start; 142,827 tokens go in and 133,966 come out. "floor" is the
time that the card needs for the bytes and the arithmetic alone: K and V, and the weights once a step, at the rate of a
copy, and the prompts at 70 % of the rate of products.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random

import torch

from common.bench.ceilings import ceilings
from common.bench.cost_model import decode_bytes, step_flops
from common.bench.documents import medians
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.model import ModelConfig
from common.process import freeze_loaded_objects
from common.sampling import SamplingParams

PRODUCTS_SHARE = 0.7  # of the rate of large products: products of prompts reach it
SHOWN = ("tokens_per_second", "share_of_floor", "seconds", "floor_seconds", "steps", "preemptions", "made_seconds")
known_ceilings = cache(ceilings)


def workload(sizes: dict) -> tuple[list[list[int]], list[int]]:
    """Return the prompts and the lengths of the answers, drawn as nano-vllm's bench.py draws them after seed(0)."""
    rng, N = Random(0), range(sizes["requests"])
    prompts = [[rng.randint(0, sizes["vocabulary"]) for _ in range(rng.randint(*sizes["lengths"]))] for _ in N]
    return prompts, [rng.randint(*sizes["lengths"]) for _ in N]


def floor_seconds(
    config: ModelConfig, dtype: torch.dtype, prompts: Sequence[list], answers: Sequence[int], rates: dict[str, float]
) -> float:
    """Return the least seconds for these requests if all run at once; rates as `ceilings` gives them."""
    looked_at = sum(
        count * len(prompt) + count * (count + 1) // 2 for prompt, count in zip(prompts, answers, strict=True)
    )
    nbytes = looked_at * config.kv_bytes_per_token(dtype) + max(answers) * decode_bytes(config, 0, dtype)
    products = sum(step_flops(config, len(prompt)) for prompt in prompts)
    return nbytes / rates["copy_bytes_per_second"] + products / rates["matmul_flops_per_second"] / PRODUCTS_SHARE


def measure(settings: Settings, sizes: dict, stage: str, which: str = "model", **options) -> Figures:
    """Return output tokens per second of a stage's engine, and their floor."""
    made = time.perf_counter()
    if which == "large":
        settings = replace(settings, model=sizes[which], load_format="dummy")
    loaded, (prompts, answers) = settings.load(sizes["context"]), workload(sizes)
    rates = known_ceilings(*settings.place())  # before an engine takes the memory
    engine = engine_of(stage, loaded, max_running=len(prompts), **options)
    engine.generate([[7] * 20] * 2, SamplingParams(max_tokens=4, ignore_eos=True))
    before, begun = engine.trace.steps, time.perf_counter()
    freeze_loaded_objects()  # Otherwise a full garbage collection takes 0.2 s.
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=count) for count in answers]
    start = time.perf_counter()
    engine.generate(prompts, params)
    seconds = time.perf_counter() - start
    floor = floor_seconds(loaded.config, loaded.dtype, prompts, answers, rates)
    return rates | {
        "tokens_per_second": sum(answers) / seconds,
        "share_of_floor": floor / seconds,
        "seconds": seconds,
        "floor_seconds": floor,
        "steps": engine.trace.steps - before,
        "preemptions": engine.stats().get("preemptions", 0),
        "made_seconds": begun - made,
    }


def report(document: dict) -> dict[str, list]:
    """Return a line for each engine."""
    lines = [("engine", *(name.replace("_", " ") for name in SHOWN))]
    _, sides, _ = medians(document)
    for side, figures in sides.items():
        values = (figures[name] for name in SHOWN)
        lines.append((side, *(f"{x:,.0f}" if x >= 100 else f"{x:.2g}" for x in values)))
    return {"nano-vllm's benchmark": lines}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        "05_paged_attention": partial(measure, stage="05"),
        "06_prefix_cache": partial(measure, stage="06"),
        "07_speculative": partial(measure, stage="07", draft="lookup"),
        "large model": partial(measure, stage="06", which="large"),
    },
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

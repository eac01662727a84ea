"""How many tokens per second do the course's engines reach in nano-vllm's benchmark, and what takes the time of a step?

Method. The requests of nano-vllm's bench.py, number for number: 256 prompts of 100 to 1,024 random tokens, answers of
as many, at a temperature of 0.6, all known from the start; 142,827 tokens go in and 133,966 come out. "floor" is the
time that the card needs for the bytes and the arithmetic alone: K and V, and the weights once a step, at the rate of a
copy, and the prompts at 70 % of the rate of products. Then steps of stage 06, by kernel and gap: decode with many
requests and with one, and prompts.

Expectation. Production engines reach about two thirds of the floor. A step of prompts runs no graph: where the host
takes longer than the kernels, they wait for it.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

import torch

from common.bench.ceilings import ceilings
from common.bench.cost_model import decode_bytes, step_flops
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.steps import ENDLESS, decoding
from common.bench.timing import kernels_of
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.model import ModelConfig
from common.process import freeze_loaded_objects
from common.sampling import SamplingParams
from common.transfers import synchronize

SIZES = {
    "model": "Qwen3-0.6B",
    "large": "Qwen3-8B",
    "requests": 256,
    "lengths": [100, 1024],  # of prompts and answers, in tokens
    "vocabulary": 10_000,  # of the prompts
    "context": 4096,  # of the model: no request needs more
    "decode": [256, 1],  # requests of the profiled steps
    "behind": 558,  # tokens before each of them
    "prompt_tokens": 8192,  # of the profiled step of prompts
    "steps": 3,  # of decode, profiled
}
TINY = {"model": "draft", "large": "draft", "requests": 6, "lengths": [3, 12], "vocabulary": 500, "context": 128}
TINY |= {"decode": [3, 1], "behind": 10, "prompt_tokens": 64, "steps": 2}
PRODUCTS_SHARE = 0.7  # of the rate of large products: what those of prompts reach
MOST_ROWS = 30  # of kernels in a table; of gaps half as many
SHOWN = ("tokens_per_second", "share_of_floor", "seconds", "floor_seconds", "steps", "preemptions", "made_seconds")
PROMPTS = 8  # in the step of prompts
known_ceilings = cache(ceilings)
Kernel = tuple[str, float, float]  # name, start, end, in seconds


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


def measure(stage: str, which: str = "model", **options) -> Callable[[Settings, dict], Figures]:
    """Return a side: output tokens per second of a stage's engine, and their floor."""

    def side(settings: Settings, sizes: dict) -> Figures:
        made = time.perf_counter()
        if which == "large":
            settings = replace(settings, model=sizes[which], load_format="dummy")
        loaded, (prompts, answers) = settings.load(sizes["context"]), workload(sizes)
        rates = known_ceilings(*settings.place())  # before an engine takes the memory
        engine = engine_of(stage, loaded, max_running=len(prompts), **options)
        engine.generate([[7] * 20] * 2, SamplingParams(max_tokens=4, ignore_eos=True))
        before, begun = engine.trace.steps, time.perf_counter()
        freeze_loaded_objects()  # a visit of all objects takes 0.2 s
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

    return side


def measure_profile(settings: Settings, sizes: dict) -> Figures:
    """Return where the time of a step goes: of decode for each number of requests, and of prompts."""
    options = {"token_budget": sizes["prompt_tokens"], "max_running": max(PROMPTS, *sizes["decode"])}
    engine, steps = engine_of("06", settings.load(sizes["context"]), **options), []
    for B in sizes["decode"]:
        with decoding(engine, B, sizes["behind"], replace(ENDLESS, temperature=0.6), tokens=5):
            kernels = kernels_of(engine.step, sizes["steps"], engine.device)
            steps.append({"what": f"{B} in decode"} | by_kernel(kernels, sizes["steps"]))
    return {"steps": [*steps, profile_prompts(engine, sizes["prompt_tokens"])]}


def profile_prompts(engine: BaseEngine, tokens: int) -> Figures:
    """Return milliseconds of a step of prompts, the host's and all, and the same by kernel.

    tokens: of all prompts in the step, which are of equal length.
    """
    device, times, kernels = engine.device, [], []
    for turn in range(5):  # the first one compiles, three are timed, and the last one is profiled
        for i in range(PROMPTS):
            prompt = random_prompt(tokens // PROMPTS, engine.config.vocab_size, f"prompts {turn} {i}")
            engine.add(prompt, SamplingParams(max_tokens=1, ignore_eos=True))
        synchronize(device)
        start = time.perf_counter()
        kernels = kernels_of(engine.step, 1, device) if turn == 4 else engine.step()
        host = time.perf_counter() - start
        synchronize(device)
        times.append((1e3 * host, 1e3 * (time.perf_counter() - start)))
        while engine.has_unfinished:
            engine.step()
    host, whole = (statistics.median(column) for column in zip(*times[1:4], strict=True))
    return {"what": f"{tokens} tokens of prompts", "step_ms": whole, "host_ms": host} | by_kernel(kernels, 1)


def by_kernel(kernels: Sequence[Kernel], steps: int) -> Figures:
    """Return milliseconds of a step in which kernels run, and none does; [name, times, microseconds] of each kernel in
    a step, the costliest first; and [microseconds, the kernel behind it] of the longest gaps."""
    counts, totals, gaps = Counter(), Counter(), []
    kernels = sorted(kernels, key=lambda kernel: kernel[1])
    begun = reached = kernels[0][1]
    for name, start, end in kernels:
        counts[name[:80]] += 1
        totals[name[:80]] += end - start
        gaps += [[1e6 * (start - reached), name[:80]]] if start > reached else []
        reached = max(reached, end)
    idle = sum(gap for gap, _ in gaps) / 1e3
    return {
        "kernels_ms": (1e3 * (reached - begun) - idle) / steps,
        "idle_ms": idle / steps,
        "kernels": [[name, counts[name] / steps, 1e6 * total / steps] for name, total in totals.most_common(MOST_ROWS)],
        "gaps": sorted(gaps, reverse=True)[: MOST_ROWS // 2],
    }


def report(document: dict) -> dict[str, list]:
    """Return a line for each engine, and for each profiled step its kernels and gaps."""
    sides, lines = dict(document["sides"]), [("engine", *(name.replace("_", " ") for name in SHOWN))]
    profile = sides.pop("profile", {"steps": {"values": [[]]}})
    for side, figures in sides.items():
        values = (figures[name]["median"] for name in SHOWN)
        lines.append((side, *(f"{x:,.0f}" if x >= 100 else f"{x:.2g}" for x in values)))
    tables = {"nano-vllm's benchmark": lines}
    for step in profile["steps"]["values"][0]:
        lines = [(f"{1e3 * step[name]:.1f}", "", name[:-3]) for name in step if name.endswith("_ms")]
        lines += [(f"{us:.1f}", f"{count:g}", kernel) for kernel, count, us in step["kernels"]]
        gaps = [(f"{us:.1f}", "", f"a gap, then {kernel}") for us, kernel in step["gaps"]]
        tables[f"A step, {step['what']}"] = [("microseconds", "times", "kernel"), *lines, *gaps]
    return tables


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={
        "05_paged_attention": measure("05"),
        "06_prefix_cache": measure("06"),
        "profile": measure_profile,
        "07_speculative": measure("07", draft="lookup"),
        "large model": measure("06", "large"),
    },
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 100},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

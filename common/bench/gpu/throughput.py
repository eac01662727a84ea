"""How many tokens a second for 256 requests at once? The workload on which nano-vllm compares itself with vLLM.

Method. Prompts and answers of 100 to 1,024 tokens, drawn as nano-vllm's bench.py draws them, number for number; sampled
at temperature 0.6; output tokens over the time from the first request added to the last token. Stage 06 with CUDA
graphs and with the overlap of steps (common/gpu/accelerate.py), each on and off. A warm-up with other prompts runs
every batch size from 256 down. Afterwards torch's profiler looks at some steps in the middle of such a load: the share
of the time in which no kernel runs is what the CPU costs.

Expectation. Every decode step reads all weights once, and K and V of all requests. Over the whole run K and V are most
of the bytes: 134,000 tokens with about 900 before each. That over the bandwidth of memory, with the arithmetic of the
prompts, is the least it can take; one that launches kernels one by one waits for the CPU instead.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

from common.bench import plots
from common.bench.predict import decode_bytes, step_flops
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.model import ModelConfig
from common.sampling import SamplingParams

from .run import Run, free_memory, mode_name, peak_memory_gib, synchronize

STAGE = "06_prefix_cache"
SIZES: dict[str, Any] = {
    "model": "Qwen3-0.6B",
    "requests": 256,
    "lengths": [100, 1024],  # of prompts and of answers
    "highest_id": 10_000,
    "totals": [142_827, 133_966],  # tokens of all prompts and of all answers
    "temperature": 0.6,
    "token_budget": 16_384,
    "profiled_steps": 20,
    "target_tokens_per_second": 25_000,
}
TINY = SIZES | {
    "model": "tiny",
    "requests": 6,
    "lengths": [4, 16],
    "highest_id": 1000,
    "totals": [79, 56],
    "token_budget": 64,
    "profiled_steps": 2,
}
README, ISSUE, OTHER = (
    "nano-vllm's README",
    "GeeeekExplorer/nano-vllm issue 245",
    "cosmoliu2002/nano-vllm-triton issue 1",
)
PUBLISHED = [  # of the same workload and model, elsewhere: for orientation
    {"engine": "nano-vllm", "gpu": "RTX 4070 Laptop 8 GB", "tokens_per_second": 1434.13, "source": README},
    {"engine": "vLLM", "gpu": "RTX 4070 Laptop 8 GB", "tokens_per_second": 1361.84, "source": README},
    {"engine": "vLLM 0.10.2", "gpu": "A800-SXM4-80GB", "tokens_per_second": 8587.95, "source": OTHER},
    {"engine": "nano-vllm-triton", "gpu": "A800-SXM4-80GB", "tokens_per_second": 10009.26, "source": OTHER},
    {"engine": "vLLM 0.20.1rc1", "gpu": "A100 80GB PCIe", "tokens_per_second": 9530.43, "source": ISSUE},
]


def measure(run: Run) -> None:
    sizes, runs = run.sizes, {}
    jobs = workload(sizes)
    loaded = run.load(sizes["model"])
    run.keep(published=PUBLISHED, floor_seconds=floor(run, loaded.config, jobs))
    for mode in run.modes():
        options = {"max_running": sizes["requests"], "token_budget": sizes["token_budget"], **mode}
        engine = run.try_engine(STAGE, loaded, **options)
        if engine is None:
            continue
        warm_up(engine, sizes)
        runs[mode_name(mode)] = row = serve(engine, jobs, sizes)
        row |= {"peak_memory_gib": peak_memory_gib(run.device), "why": engine.startup_notes}
        run.keep(runs=runs)  # before the profile, which can fail for reasons of its own
        row |= profile_steps(engine, sizes)
        run.keep(runs=runs)
        run.say(f"stage 06, {mode_name(mode)}: {row['tokens_per_second']:,.0f} output tokens per second")
        del engine
        free_memory(run.device)
    best = max(row["tokens_per_second"] for row in runs.values())
    run.headline(tokens_per_second=best, of_target=best / sizes["target_tokens_per_second"])


def workload(sizes: dict[str, Any]) -> list[tuple[list[int], int]]:
    """Prompts and lengths of answers, number for number those of nano-vllm's bench.py: it seeds with 0 and draws all
    prompts, the length of each before its tokens, and then all lengths. ValueError if the totals are not those."""
    rng, (low, high) = Random(0), sizes["lengths"]
    prompts = []
    for _ in range(sizes["requests"]):
        prompts.append([rng.randint(0, sizes["highest_id"]) for _ in range(rng.randint(low, high))])
    answers = [rng.randint(low, high) for _ in range(sizes["requests"])]
    totals = [sum(map(len, prompts)), sum(answers)]
    if totals != sizes["totals"]:
        raise ValueError(f"the workload has {totals} tokens in prompts and answers, not {sizes['totals']}")
    return list(zip(prompts, answers, strict=True))


def floor(run: Run, config: ModelConfig, jobs: Sequence[tuple[list[int], int]]) -> float:
    """Seconds that the workload takes at least: its bytes and its arithmetic at the ceilings of this device."""
    bytes_per_second, flops_per_second = run.ceilings()
    weights = decode_bytes(config, 0, run.dtype)
    steps = max(answer for _, answer in jobs)
    behind = sum(answer * (len(prompt) + answer / 2) for prompt, answer in jobs)  # tokens that all decodes look at
    kv_bytes = behind * config.kv_bytes_per_token(run.dtype)
    prompts = sum(step_flops(config, len(prompt)) for prompt, _ in jobs)
    return (steps * weights + kv_bytes) / bytes_per_second + prompts / flops_per_second


def warm_up(engine: BaseEngine, sizes: dict[str, Any]) -> None:
    """Requests that end one after another, so that each size of a batch is seen once, a few with long prompts."""
    count, longest = sizes["requests"], sizes["lengths"][1]
    prompts = [
        random_prompt(longest if i % 16 == 0 else 16, engine.config.vocab_size, f"warm-up {i}") for i in range(count)
    ]
    params = [
        SamplingParams(max_tokens=2 + i * 30 // count, temperature=sizes["temperature"], ignore_eos=True)
        for i in range(count)
    ]
    engine.generate(prompts, params)


def serve(engine: BaseEngine, jobs: Sequence[tuple[list[int], int]], sizes: dict[str, Any]) -> dict[str, Any]:
    """All requests at once. A step's time is that from its call to its return."""
    synchronize(engine.device)
    before = engine.stats().get("preemptions", 0)
    start = time.perf_counter()
    requests = [
        engine.add(prompt, SamplingParams(max_tokens=answer, temperature=sizes["temperature"], ignore_eos=True))
        for prompt, answer in jobs
    ]
    steps, decodes = [], []
    while engine.has_unfinished:
        called = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - called)
        if all(work.phase == "decode" for work in engine.trace[-1].works):
            decodes.append(steps[-1])
    synchronize(engine.device)
    seconds = time.perf_counter() - start
    output = sum(len(request.token_ids) for request in requests)
    if output != sizes["totals"][1]:
        raise ValueError(f"{output} tokens came out, not {sizes['totals'][1]}")
    return {
        "tokens_per_second": output / seconds,
        "seconds": seconds,
        "steps": len(steps),
        "step_ms_mean": 1e3 * statistics.mean(steps),
        "decode_step_ms_median": 1e3 * statistics.median(decodes),
        "decode_step_ms_longest": 1e3 * max(decodes),
        "preemptions": engine.stats().get("preemptions", 0) - before,
    }


def profile_steps(engine: BaseEngine, sizes: dict[str, Any]) -> dict[str, Any]:
    """Steps in which all requests decode, half way through an answer: milliseconds, and the share of the time in which
    the GPU does nothing. Without a GPU, or where the profiler sees no kernels, the share is None."""
    length = sum(sizes["lengths"]) // 2
    endless = SamplingParams(max_tokens=None, temperature=sizes["temperature"], ignore_eos=True)
    prompts = [random_prompt(length, engine.config.vocab_size, f"profile {i}") for i in range(sizes["requests"])]
    requests = [engine.add(prompt, endless) for prompt in prompts]
    try:
        while not all(len(request.token_ids) > 2 for request in requests):
            engine.step()
        return timed_and_profiled(engine, sizes["profiled_steps"])
    finally:
        for request in requests:
            engine.abort(request.request_id)


def timed_and_profiled(engine: BaseEngine, steps: int) -> dict[str, Any]:
    synchronize(engine.device)
    start = time.perf_counter()
    for _ in range(steps):
        engine.step()
    synchronize(engine.device)
    figures = {"full_batch_step_ms": 1e3 * (time.perf_counter() - start) / steps, "idle_percent": None}
    if engine.device.type != "cuda":
        return figures
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:  # of the CPU nothing: that would slow it down
        for _ in range(steps):
            engine.step()
        synchronize(engine.device)
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    if not events:
        return figures
    spans = [(event.time_range.start, event.time_range.end) for event in events]  # microseconds
    begin, end = min(start for start, _ in spans), max(end for _, end in spans)
    return figures | {
        "idle_percent": 100 * (1 - covered(spans) / (end - begin)),
        "profiled_step_ms": (end - begin) / steps / 1e3,  # how much the profiler itself slows a step down
        "kernels_per_step": len(spans) / steps,
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of what the spans cover together, where they overlap counted once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


# ---- The plot ----


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    figures, sizes = document["figures"], document["sizes"]
    runs = dict(sorted(figures["runs"].items(), key=lambda item: -item[1]["tokens_per_second"]))
    best = next(iter(runs.values()))["tokens_per_second"]
    names = [name.replace(" and ", "\nand ") for name in runs]
    rates = [row["tokens_per_second"] for row in runs.values()]
    labels = [f"stage 06\n{name}" for name in names]
    theirs = others.get("transformers", {}).get("figures", {}).get("tokens_per_second")
    if theirs:
        rates.append(theirs)
        labels.append("trans-\nformers")
    most = sizes["totals"][1] / figures["floor_seconds"]
    message = f"{best:,.0f} output tokens a second with {sizes['requests']} requests at once"
    remark = (
        f"{sizes['requests']} prompts and answers of {sizes['lengths'][0]} to {sizes['lengths'][1]:,} tokens, "
        f"temperature {sizes['temperature']}; one run each; transformers: its continuous batching.\n"
        "Dashed: what memory and the prompts' arithmetic allow. Right: time from the call of a step to its return,\n"
        "all requests decoding; idle: share of it in which no kernel runs, by torch's profiler."
    )
    with plots.page(png, document, message, columns=2, height=5.2, remark=remark) as (throughput, step):
        sides = ["06"] * len(runs) + ["transformers"] * bool(theirs)
        plots.bars(throughput, sides, [as_figure(rate) for rate in rates], labels)
        plots.floor_line(throughput, len(rates), most, f"{most:,.0f}:\nthe most\nthere\ncan be")
        plots.axes(throughput, "", "output tokens per second", "Throughput")
        times = [as_figure(row.get("full_batch_step_ms", row["decode_step_ms_median"])) for row in runs.values()]
        idle = [row.get("idle_percent") for row in runs.values()]
        shares = ["" if share is None else f"\n{share:.0f} % idle" for share in idle]
        plots.bars(step, ["06"] * len(runs), times, [name + share for name, share in zip(names, shares, strict=True)])
        plots.axes(step, "", "milliseconds", f"A step of {sizes['requests']} requests")
        for panel in (throughput, step):
            panel.tick_params(axis="x", labelsize=9.5)


def as_figure(value: float) -> dict[str, float]:
    """A single run in the form of `harness.spread`."""
    return {"median": value, "min": value, "max": value}

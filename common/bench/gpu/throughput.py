"""How many tokens a second for 256 requests at once? The workload on which nano-vllm compares itself with vLLM.

Method. Prompts and answers of 100 to 1,024 tokens, drawn as nano-vllm's bench.py draws them, number for number; sampled
at temperature 0.6; output tokens over the time from the first request added to the last token. Stage 06 with CUDA
graphs and with the overlap of steps (common/acceleration), each on and off; and transformers' own continuous batching.
A warm-up with other prompts runs every batch size from 256 down. Afterwards torch's profiler looks at some steps in the
middle of such a load: the share of the time in which no kernel runs is what the CPU costs.

Expectation. Every decode step reads all weights once, and K and V of all requests. Over the whole run K and V are most
of the bytes: 134,000 tokens with about 900 before each. That over the bandwidth of memory, with the arithmetic of the
prompts, is the least it can take; one that launches kernels one by one waits for the CPU instead.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import torch

from common.bench import plots
from common.bench.ceilings import ceilings
from common.bench.cost_model import decode_bytes, step_flops
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures, Headline, Unavailable
from common.bench.offline import transformers_continuous_batches
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.timing import free_memory, peak_memory_gib
from common.bench.workloads import Job, random_prompt
from common.engine import BaseEngine
from common.model import ModelConfig

from .budget import measure_step

STAGE = "06_prefix_cache"
SIZES = {
    "model": "Qwen3-0.6B",
    "requests": 256,
    "lengths": [100, 1024],  # of prompts and of answers
    "highest_id": 10_000,
    "totals": [142_827, 133_966],  # tokens of all prompts and of all answers
    "temperature": 0.6,
    "token_budget": 16_384,
    "profiled_steps": 20,
    "memory": {},  # of transformers' manager, which otherwise takes all there is
}
TINY = {
    "model": None,
    "requests": 6,
    "lengths": [4, 16],
    "highest_id": 1000,
    "totals": [79, 56],
    "token_budget": 64,
    "profiled_steps": 2,
    "memory": {"num_blocks": 32, "max_batch_tokens": 64},
}
MODES = {  # what changes how fast an engine is on a GPU, and nothing else
    "graphs and overlap": {"graphs": True, "overlap": True},
    "graphs": {"graphs": True, "overlap": False},
    "overlap": {"graphs": False, "overlap": True},
    "neither": {"graphs": False, "overlap": False},
}


def measure(mode: str) -> Callable[[Settings, dict], Figures]:
    def side(settings: Settings, sizes: dict) -> Figures:
        loaded, jobs = settings.load(), workload(sizes)
        options = {"max_running": sizes["requests"], "token_budget": sizes["token_budget"], **MODES[mode]}
        try:
            engine = engine_of(STAGE, loaded, **options)
        except ValueError as reason:
            raise Unavailable(str(reason)) from reason
        warm_up(engine, sizes)
        figures = serve(engine, jobs, sizes) | {"peak_memory_gib": peak_memory_gib(loaded.device)}
        # In the middle of such a load, half way through an answer. Without a GPU there is no idle time.
        context, steps = sum(sizes["lengths"]) // 2, sizes["profiled_steps"]
        parts = measure_step(engine, sizes["requests"], context, steps, sizes["temperature"])
        figures |= {"step_parts_ms": {part: 1e3 * seconds for part, seconds in parts.items()}}
        figures |= {"full_batch_step_ms": 1e3 * parts["step"]}
        if "idle" in parts:
            figures["idle_percent"] = 100 * parts["idle"] / parts["step"]
        del engine
        free_memory(loaded.device)
        return figures | (ceilings(*settings.place()) if mode == "neither" else {})

    return side


def measure_transformers(settings: Settings, sizes: dict) -> Figures:
    """Measure transformers' continuous batching. Whether it runs depends on its version and on other packages there:
    what it says if it does not is a result."""
    try:
        seconds = transformers_continuous_batches(settings, workload(sizes), sizes["memory"])
    except Exception as error:
        raise Unavailable(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    return {"tokens_per_second": sizes["totals"][1] / seconds, "seconds": seconds}


def workload(sizes: dict) -> list[Job]:
    """Return prompts and lengths of answers, as nano-vllm's bench.py draws them: it seeds with 0 and draws all
    prompts, the length of each before its tokens, and then all lengths. ValueError if the totals are not those."""
    rng, (low, high) = Random(0), sizes["lengths"]
    prompts = []
    for _ in range(sizes["requests"]):
        prompts.append([rng.randint(0, sizes["highest_id"]) for _ in range(rng.randint(low, high))])
    answers = [rng.randint(low, high) for _ in range(sizes["requests"])]
    totals = [sum(map(len, prompts)), sum(answers)]
    if totals != sizes["totals"]:
        raise ValueError(f"the workload has {totals} tokens in prompts and answers, not {sizes['totals']}")
    sampling = {"temperature": sizes["temperature"]}
    return [Job(prompt, answer, sampling=sampling) for prompt, answer in zip(prompts, answers, strict=True)]


def warm_up(engine: BaseEngine, sizes: dict) -> None:
    """Run requests that end one after another: each size of a batch is seen once, a few with long prompts."""
    jobs, count, longest = [], sizes["requests"], sizes["lengths"][1]
    for i in range(count):
        prompt = random_prompt(longest if i % 16 == 0 else 16, engine.config.vocab_size, f"warm-up {i}")
        jobs.append(Job(prompt, 2 + i * 30 // count, sampling={"temperature": sizes["temperature"]}))
    engine_load(engine, jobs, concurrency=count)


def serve(engine: BaseEngine, jobs: Sequence[Job], sizes: dict) -> Figures:
    """Run all requests at once."""
    before = engine.stats().get("preemptions", 0)
    result = engine_load(engine, jobs, concurrency=len(jobs))
    output = sum(record.output_tokens for record in result.records)
    if output != sizes["totals"][1]:
        raise ValueError(f"{output} tokens came out, not {sizes['totals'][1]}")
    preemptions = engine.stats().get("preemptions", 0) - before
    return {"tokens_per_second": result.throughput, "seconds": result.seconds, "preemptions": preemptions}


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    """Return the seconds that the workload takes at least: bytes and arithmetic at the ceilings of this device."""
    jobs, rates = workload(sizes), measured["neither"]
    weights = decode_bytes(config, 0, dtype)
    steps = max(job.max_tokens for job in jobs)
    behind = sum(job.max_tokens * (len(job.prompt) + job.max_tokens / 2) for job in jobs)  # tokens that decodes look at
    read = steps * weights + behind * config.kv_bytes_per_token(dtype)
    prompts = sum(step_flops(config, len(job.prompt)) for job in jobs)
    return {"floor_seconds": read / rates["copy_bytes_per_second"] + prompts / rates["matmul_flops_per_second"]}


HEADLINE = Headline(
    "{requests} requests at once",
    "output tokens/s",
    ("neither", "graphs and overlap"),
    lambda sizes, side: side["tokens_per_second"],
)


def draw(document: dict, png: Path) -> None:
    sides, sizes = document["sides"], document["sizes"]
    ours = {name: side for name, side in sides.items() if name in MODES}
    best = max(side["tokens_per_second"]["median"] for side in ours.values())
    names = [name.replace(" and ", "\nand ") for name in ours]
    most = sizes["totals"][1] / document["figures"]["floor_seconds"]["median"]
    message = f"{best:,.0f} output tokens a second with {sizes['requests']} requests at once"
    remark = (
        f"{sizes['requests']} prompts and answers of {sizes['lengths'][0]} to {sizes['lengths'][1]:,} tokens, "
        f"temperature {sizes['temperature']}; one run each; transformers: its continuous batching.\n"
        "Dashed: what memory and the prompts' arithmetic allow. Right: time from the call of a step to its return,\n"
        "all requests decoding; idle: share of it in which no kernel runs, by torch's profiler."
    )
    with plots.page(png, document, message, columns=2, height=5.2, remark=remark) as (throughput, step):
        labels = [f"stage 06\n{name}" for name in names] + ["trans-\nformers"] * ("transformers" in sides)
        colors = ["06"] * len(ours) + ["transformers"] * ("transformers" in sides)
        rates = [side["tokens_per_second"] for side in sides.values()]
        plots.bars(throughput, colors, rates, labels)
        plots.floor_line(throughput, len(rates), most, f"{most:,.0f}:\nthe most\nthere\ncan be")
        plots.axes(throughput, "", "output tokens per second", "Throughput")
        idle = [side.get("idle_percent") for side in ours.values()]
        shares = ["" if share is None else f"\n{share['median']:.0f} % idle" for share in idle]
        times = [side["full_batch_step_ms"] for side in ours.values()]
        plots.bars(step, ["06"] * len(ours), times, [name + share for name, share in zip(names, shares, strict=True)])
        plots.axes(step, "", "milliseconds", f"A step of {sizes['requests']} requests")
        for panel in (throughput, step):
            panel.tick_params(axis="x", labelsize=9.5)


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={mode: measure(mode) for mode in MODES} | {"transformers": measure_transformers},
    sizes={"full": SIZES, "tiny": TINY},
    derive=derive,
    draw=draw,
    headline=HEADLINE,
    seconds={"gpu": 130},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

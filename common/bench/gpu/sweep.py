"""What do 1 to 64 clients get from a server that takes one request after another, and from one that batches them?

Method. A closed loop on the engine, without HTTP: so many clients, each with its next request when its last one has
ended; prompts of 16 to 256 tokens and answers of 75 on average. Stage 03 is what a first server does: it streams, and
has a K/V cache, but runs one request at a time. Of it few requests are measured, and only with few clients, since 64
clients would take minutes and say the same: its throughput does not depend on who waits. What many clients get is
computed from its time for one request (dashed): each waits for all the others.

Expectation. Stage 06 reads the weights once for all that decode, so its throughput grows nearly with the number of
clients, until K and V, or arithmetic, are most of a step.
"""

from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.engine_load import engine_load
from common.bench.metrics import LoadResult
from common.bench.workloads import mixed_length_jobs
from common.engine import BaseEngine

from .run import Run, free_memory, peak_memory_gib

BEFORE, NOW = "03_streaming", "06_prefix_cache"
SIZES: dict[str, Any] = {
    "model": "Qwen2.5-14B",
    "prompt_tokens": 256,  # at most, and 16 at least
    "output_tokens": 134,  # at most, and 16 at least: 75 on average
    "clients": {BEFORE: [1, 4], NOW: [1, 4, 8, 16, 32, 64]},
    "requests": {BEFORE: [4, 12], NOW: [16, 40, 64, 64, 64, 128]},
    "token_budget": 4096,
}
TINY = SIZES | {
    "model": "tiny",
    "prompt_tokens": 20,
    "output_tokens": 17,
    "clients": {BEFORE: [1, 2], NOW: [1, 2, 4]},
    "requests": {BEFORE: [2, 4], NOW: [2, 4, 4]},
    "token_budget": 64,
}


def measure(run: Run) -> None:
    sizes, sides = run.sizes, {}
    loaded = run.load(sizes["model"])
    for stage in (NOW, BEFORE):
        engine = run.engine(stage, loaded, token_budget=sizes["token_budget"])
        sides[stage] = []
        warm_up(engine, sizes, max(sizes["clients"][stage]))
        for clients, requests in zip(sizes["clients"][stage], sizes["requests"][stage], strict=True):
            result = engine_load(engine, jobs(engine, sizes, requests, clients), concurrency=clients)
            sides[stage].append(point(result, clients))
            run.keep(sides=sides, **{f"{stage}_peak_memory_gib": peak_memory_gib(run.device)})
            run.say(f"{stage}, {clients} clients: {result.throughput:,.0f} output tokens per second")
        del engine
        free_memory(run.device)
    service = sides[BEFORE][0]["e2el"]["mean"]
    run.keep(predicted=predictions(sizes, service, sides[BEFORE][0]))
    most = sizes["clients"][NOW][-1]
    ratio = sides[NOW][-1]["output_tokens_per_second"] / sides[BEFORE][-1]["output_tokens_per_second"]
    run.headline(**{f"throughput over stage 03 at {most} clients": ratio})


def jobs(engine: BaseEngine, sizes: dict[str, Any], count: int, seed: int):
    """Prompts of a level's own, so that it finds none of another level's in the prefix cache."""
    lengths = {name: sizes[name] for name in ("prompt_tokens", "output_tokens")}
    return mixed_length_jobs(count, engine.config.vocab_size, seed=seed, **lengths)


def warm_up(engine: BaseEngine, sizes: dict[str, Any], clients: int) -> None:
    short = sizes | {"output_tokens": 16}
    engine_load(engine, jobs(engine, short, clients, "warm-up"), concurrency=clients)


def point(result: LoadResult, clients: int) -> dict[str, Any]:
    """As in the documents of the load generator: times in seconds."""
    return {
        "concurrency": clients,
        "requests": len(result.records),
        "seconds": result.seconds,
        "output_tokens": sum(record.output_tokens for record in result.records),
        "output_tokens_per_second": result.throughput,
        **result.summary(),
    }


def predictions(sizes: dict[str, Any], service: float, alone: dict[str, Any]) -> dict[str, list[float]]:
    """Stage 03 with as many clients as stage 06 had: a request waits for those of all others, then has its own time."""
    clients = sizes["clients"][NOW]
    return {
        "e2el": [service * count for count in clients],
        "ttft": [service * (count - 1) + alone["ttft"]["p50"] for count in clients],
        "output_tokens_per_second": [alone["output_tokens_per_second"]] * len(clients),
    }


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    sizes, figures = document["sizes"], document["figures"]
    sides, predicted = figures["sides"], figures["predicted"]
    clients = sizes["clients"][NOW]
    first, last = sides[BEFORE][-1]["output_tokens_per_second"], sides[NOW][-1]["output_tokens_per_second"]
    message = f"{clients[-1]} clients get {plots.short(last / first)} times as many tokens from one server that batches"
    most, few = (least_to_most(sizes["requests"][stage]) for stage in (NOW, BEFORE))
    remark = (
        f"Prompts of 16 to {sizes['prompt_tokens']} tokens, answers of 16 to {sizes['output_tokens']}, a closed loop "
        f"on the engine; medians, bands to the 90th percentile. Stage 06: {most}\nrequests for each point; stage 03: "
        f"{few}, and up to {sizes['clients'][BEFORE][-1]} clients. Dashed: stage 03 computed from its time for one "
        "request, since each waits for all others."
    )
    with plots.page(png, document, message, rows=2, columns=2, height=8, remark=remark) as panels:
        total, gaps, throughput, first_token = panels
        for panel in panels:
            plots.doubling(panel, clients)
        for stage, label in ((BEFORE, "stage 03"), (NOW, "stage 06")):
            at = [one["concurrency"] for one in sides[stage]]
            plots.line(total, at, percentile_band(sides[stage], "e2el", 1), stage, label)
            plots.line(gaps, at, percentile_band(sides[stage], "itl", 1e3), stage, label)
            plots.line(first_token, at, percentile_band(sides[stage], "ttft", 1), stage, label)
            rates = [one["output_tokens_per_second"] for one in sides[stage]]
            plots.line(throughput, at, {"median": rates, "min": rates, "max": rates}, stage, label)
        for panel, name in ((total, "e2el"), (throughput, "output_tokens_per_second"), (first_token, "ttft")):
            plots.predicted(panel, clients, {"median": predicted[name]}, "stage 03,\ncomputed")
        for panel in (total, first_token, throughput):
            plots.logarithmic(panel)
        plots.axes(total, "clients at once", "seconds", "Total latency")
        plots.axes(gaps, "clients at once", "milliseconds", "Inter-token latency")
        plots.axes(throughput, "clients at once", "output tokens per second", "Throughput of all together")
        plots.axes(first_token, "clients at once", "seconds", "Time to first token")


def least_to_most(counts: list[int]) -> str:
    return f"{min(counts)} to {max(counts)}"


def percentile_band(points: list[dict], metric: str, scale: float) -> dict[str, list[float]]:
    """Medians as a line, and the band from there to the 90th percentile."""
    median, high = ([scale * one[metric][rank] for one in points] for rank in ("p50", "p90"))
    return {"median": median, "min": median, "max": high}

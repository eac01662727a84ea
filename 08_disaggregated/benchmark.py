"""Which requests wait for a long prompt: in one engine on all cores, in replicas, with prefill and decode apart?

Method. The same load on three servers of the same cores, in turn: stage 07's engine with all of them; two replicas,
each a whole engine with half of them, behind stage 08's router; and one prefill and one decode worker with half of them
each. Clients decode without a pause, each with a new short request when its last one has ended, and long prompts arrive
at fixed times. All without HTTP and without draft tokens, so that a step is a token; workers run under Ray, as they do
when they serve. Waiting times are those at the router, of what arrived in the measured seconds. All pools are full of
old pages when the measurement begins, since memory that is used for the first time is slow. Goodput is that of the
DistServe paper: requests a second, short and long, that keep both objectives, for their first token (TTFT) and for each
further one (TPOT). The objectives are twice to three times what a lone request takes.

Expectation. An engine computes a prompt in pieces of its token budget, and every piece is in a step that all others
wait for: their longest gaps are as long as a pass over a full piece. In a replica the same pass has half of the cores,
so it takes up to twice as long, and half of the clients wait for it. A decode worker computes no prompt: its gaps are
its steps, whatever arrives. What it costs: a core that decodes is no help with prompts, so their first token takes up
to twice as long, and their K and V must travel.

In figures, for Qwen3-0.6B in bfloat16 on two cores of 75 GFLOP/s each: a step reads 1.2 GB, which takes 0.12 s at 10
GB/s, by one core or by two. A piece of 128 tokens is 2 x 0.44 G x 128 = 113 GFLOP: 0.75 s with both cores and 1.5 s
with one. So a long prompt should lengthen one engine's gaps 6 times, a replica's 12 times, and the decode worker's not
at all, or, where both workers want the memory's bandwidth, less than twice. Half of a replica's p99 gap is then easy to
reach. With the bundled model a step takes a few milliseconds, of which reading the weights is a tenth: calls and
handoffs weigh as much as what is kept apart, so apart should lose there in all but the longest gaps.
"""

import statistics
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.documents import medians, parts
from common.bench.engine_load import add, answer, record
from common.bench.harness import Benchmark, Figures, Measured, curves
from common.bench.metrics import LoadResult, percentiles
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.steps import decode_seconds
from common.bench.workloads import Job, page_prompt
from common.engine import BaseEngine
from common.loader import Loaded
from common.process import freeze_loaded_objects
from common.stages import load_engine

BEFORE, REPLICAS, NOW = "07_speculative", "replicas", "08_disaggregated"
LABELS = {BEFORE: "one engine", REPLICAS: "replicas", NOW: "apart"}
# The measured time that predicts each side's longest gap.
ALONE = {BEFORE: "full_piece_ms", REPLICAS: "half_piece_ms", NOW: "half_step_ms"}


def measure_engine(settings: Settings, sizes: dict) -> Figures:
    """Measure stage 07 with all cores; and what a pass takes with all, and with half of them."""
    loaded = settings.load()
    engine = load_engine(BEFORE)(loaded, **options(loaded, sizes))
    fill(engine, sizes)
    figures = {ALONE[BEFORE]: full_piece_ms(engine, sizes, "all")}
    cores = torch.get_num_threads()
    torch.set_num_threads(max(1, cores // 2))
    try:
        figures[ALONE[REPLICAS]] = full_piece_ms(engine, sizes, "half")
        figures[ALONE[NOW]] = 1e3 * decode_seconds(engine, sizes["clients"], sizes["short"], steps=10)
    finally:
        torch.set_num_threads(cores)
    engine.trace.clear()
    return figures | sweep(engine, sizes)


def measure_workers(settings: Settings, sizes: dict, **workers: int) -> Figures:
    """Measure stage 08's router in front of these workers, in processes of their own."""
    loaded = settings.without_weights()  # Only the workers need the weights.
    engine = load_engine(NOW)(
        loaded, workers="ray", load_format=settings.load_format, **workers, **options(loaded, sizes)
    )
    try:
        fill(engine, sizes, times=workers.get("replicas", 1))
        freeze_loaded_objects()  # As `serve` does: a garbage collection of Ray's objects would be the longest gap.
        moved = [step.counters["handoff_bytes"] for step in engine.trace if step.counters.get("handoff_bytes")]
        engine.trace.clear()
        figures = sweep(engine, sizes)
        return figures | (handoffs(engine, max(moved)) if moved else {})
    finally:
        engine.close()


def handoffs(engine: BaseEngine, nbytes: int) -> Figures:
    """Return the median ms of the handoffs of a long prompt, each of `nbytes`, if any came alone."""
    handed = [step.counters for step in engine.trace if step.counters.get("handoff_bytes", 0) >= nbytes]
    least = min((step["handoff_bytes"] for step in handed), default=0)
    seconds = [step["handoff_seconds"] for step in handed if step["handoff_bytes"] == least]  # others bring several
    return {"handoff_ms": 1e3 * statistics.median(seconds)} if seconds else {}


def options(loaded: Loaded, sizes: dict) -> dict:
    memory = sizes["pool"] * loaded.config.kv_bytes_per_token(loaded.dtype)
    no_drafts = {"draft": "lookup", "num_draft_tokens": 0}
    return {"kv_memory": memory, "token_budget": sizes.get("token_budget", 256)} | no_drafts


def fill(engine: BaseEngine, sizes: dict, times: int = 1) -> None:
    """Run long prompts, one after another, for more than the pool; `times` as many if workers share them."""
    for i in range(times * (2 + sizes["pool"] // sizes["long"])):
        answer(engine, page_prompt(engine, sizes["long"], f"old {i}"), 2)


def full_piece_ms(engine: BaseEngine, sizes: dict, cores: str) -> float:
    """Return the ms of a step that a piece of a prompt fills, alone; or the longest of a prompt that fills none.

    cores: names the prompts, which the prefix cache must not find again.
    """
    times = []
    for i in range(3):
        engine.trace.clear()
        answer(engine, page_prompt(engine, sizes["long"], f"alone {cores} {i}"), 1)
        most = max(step.tokens for step in engine.trace)
        times += [1e3 * step.seconds for step in engine.trace if step.tokens == most]
    return statistics.median(times)


def sweep(engine: BaseEngine, sizes: dict) -> Figures:
    """Return a value for each rate of long prompts, of their first token for each rate above 0."""
    points = []
    for rate in sizes["rates"]:
        short, long = under_load(engine, sizes, rate)
        gaps, first = percentiles(short.values("itl")), percentiles(short.values("ttft"))
        point = {
            "itl_p50_ms": 1e3 * gaps["p50"],
            "itl_p99_ms": 1e3 * gaps["p99"],
            "ttft_short_p90_ms": 1e3 * first["p90"],
            "tokens_per_second": short.throughput,
            "goodput": LoadResult(short.records + long.records, short.seconds).goodput(sizes["objectives"]),
        }
        if rate:
            point["ttft_long_p50_ms"] = 1e3 * percentiles(long.values("ttft"))["p50"]
        points.append(point)
    return curves(points)


def under_load(engine: BaseEngine, sizes: dict, rate: float) -> tuple[LoadResult, LoadResult]:
    """Return the short and the long requests of `sizes["seconds"]` seconds."""
    short, long = [], []

    def ask() -> None:
        number = len(short)
        prompt = page_prompt(engine, sizes["short"], f"short {rate} {number}")
        # The lengths differ: otherwise all clients would ask at the same moment, again and again.
        short.append(add(engine, Job(prompt, Random(number).randint(*sizes["output"]))))

    for _ in range(sizes["clients"]):
        ask()
    start = time.perf_counter()
    end = start + sizes["seconds"]
    while engine.has_unfinished:
        now = time.perf_counter()
        if now < end and rate and now >= start + (len(long) + 0.5) / rate:
            prompt = page_prompt(engine, sizes["long"], f"long {rate} {len(long)}")
            long.append(add(engine, Job(prompt, sizes["long_output"])))
        for request in engine.step():
            if request.finished and len(request.prompt_token_ids) == sizes["short"] and time.perf_counter() < end:
                ask()
    seconds = time.perf_counter() - start
    return tuple(LoadResult([record(one, one.timings.tokens) for one in some], seconds) for some in (short, long))


def derive(sizes: dict, measured: Measured, *_) -> Figures:
    before, replicas, now = (measured[side] for side in LABELS)
    best = [max(pair) for pair in zip(before["goodput"], replicas["goodput"], strict=True)]
    pairs = zip(replicas["itl_p99_ms"], now["itl_p99_ms"], strict=True)
    return {
        "goodput_lead": [mine - other for mine, other in zip(now["goodput"], best, strict=True)],
        "replicas_p99_ratio": [theirs / mine for theirs, mine in pairs],
    }


def report(document: dict) -> dict[str, list[list]]:
    sizes, sides, _ = medians(document)
    rows = [
        ("gap, median, ms", "itl_p50_ms"),
        ("gap, p99, ms", "itl_p99_ms"),
        ("first token of a short prompt, p90, ms", "ttft_short_p90_ms"),
        ("first token of a long prompt, median, ms", "ttft_long_p50_ms"),
        ("tokens per second", "tokens_per_second"),
        ("goodput, requests per second", "goodput"),
    ]
    header, table = [""], [[title] for title, _ in rows]
    for rate in (0, sizes["stated"]):
        load = f"{rate} long per second" if rate else "no long prompts"
        for side, label in LABELS.items():
            header.append(f"{label}, {load}")
            for row, (_, name) in zip(table, rows, strict=True):
                by_rate = dict(zip(sizes["rates"][::-1], sides[side][name][::-1], strict=False))  # None may be for 0.
                row.append(plots.short(by_rate[rate]) if rate in by_rate else "")
    return {"gaps": [header, *table]}


def message_of(document: dict) -> str:
    """Return what is true of the gaps in every repeat, and at which rates."""
    rates, ratio = document["sizes"]["rates"], document["figures"]["replicas_p99_ratio"]
    where = [at for at, least in enumerate(ratio["min"]) if rates[at] and least > 1]
    if not where:
        return "A decode worker has no shorter gaps here than replicas"
    shares = " to ".join(dict.fromkeys(f"{100 / pick(ratio['median'][at] for at in where):.0f}" for pick in (max, min)))
    return f"A decode worker's p99 gap is {shares} % of the replicas', {listed(where, rates)}"


def listed(where: list[int], rates: list[float]) -> str:
    """Say at which rates of long prompts something is true, given their places."""
    if len(where) > 1 and where == [*range(where[0], len(rates))]:
        return f"from {rates[where[0]]:g}/s on"
    return f"at {' and '.join(f'{rates[at]:g}' for at in where)}/s"


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
    rates, lengths = sizes["rates"], " to ".join(map(str, sizes["output"]))
    ahead = [at for at, lead in enumerate(figures["goodput_lead"]["min"]) if lead > 0]
    objectives = ", ".join(f"{name.replace('_', ' ').upper()} {most:g} s" for name, most in sizes["objectives"].items())
    remark = (
        f"{sizes['clients']} clients decode ({sizes['short']} tokens in, {lengths} out); prompts of {sizes['long']:,} "
        f"tokens come at fixed times. All sides have the same cores; a replica and a worker have half of them.\n"
        f"Thin and dashed: the pass that predicts each side's longest gap, alone. "
        f"Goodput: requests per second within {objectives}"
        f"{f'; apart has most {listed(ahead, rates)}' if ahead else ''}."
    )
    panels_of = [
        ("itl_p99_ms", "milliseconds", "p99 of the gaps"),
        ("ttft_long_p50_ms", "milliseconds", "First token, long prompt"),
        ("goodput", "requests per second", "Goodput"),
    ]
    with plots.page(png, document, message_of(document), columns=3, remark=remark) as panels:
        for side, alone in ALONE.items():
            height = sides[BEFORE][alone]["median"]
            plots.predicted(panels[0], [min(rates), max(rates)], {"median": [height] * 2}, "_predicted", side)
        for panel, (name, unit, title) in zip(panels, panels_of, strict=True):
            for side, label in LABELS.items():
                x = rates[len(rates) - len(sides[side][name]["median"]) :]
                plots.line(panel, x, sides[side][name], side, label)
            plots.axes(panel, "long prompts per second", unit, title, rates)
            plots.from_edge_to_edge(panel, left=0)


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        BEFORE: measure_engine,
        REPLICAS: partial(measure_workers, replicas=2),
        NOW: partial(measure_workers, prefill=1, decode=1),
    },
    derive=derive,
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

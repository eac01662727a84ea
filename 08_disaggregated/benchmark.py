"""Which requests wait for a long prompt, when prefill and decode share two cores, and when each has one of its own?

Method. The same load on stage 07 with both cores, and on one prefill and one decode worker with a core each, as Ray
runs them: clients that decode without a pause, each with a new short request when its last one has ended, and prompts
of 1,000 tokens that arrive at fixed times, none to two in a second. All without HTTP and without draft tokens, so that
a step is a token. Waiting times are those at the router, of what arrived in the measured seconds. All pools are full of
old pages when the measurement begins, since memory that is used for the first time is slow.

Expectation. Stage 07 computes a prompt in pieces of its token budget, and every piece is in a step that all others
wait for: their longest gaps are as long as a step with a full piece, which is measured alone (the prediction). A decode
worker never computes a prompt, so its gaps should not depend on the prompts. What it costs: a core that decodes is no
help with prompts, so their first token takes up to twice as long, and 1,000 tokens' K and V, 8.3 MB, must travel.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

import torch

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.bench import plots
from common.bench.engine_load import record
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.metrics import LoadResult, percentiles
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.loader import Loaded
from common.model import ModelConfig
from common.process import freeze_loaded_objects
from common.sampling import SamplingParams
from common.stages import load_engine

BEFORE, NOW = "07_speculative", "08_disaggregated"
SIZES = {
    "clients": 8,
    "short": 32,  # tokens of their prompts
    "output": [32, 96],  # tokens of their answers, from and to
    "long": 1000,  # tokens of the prompts that come in between
    "long_output": 8,
    "rates": [0, 0.5, 1, 2],  # long prompts per second
    "stated": 2,  # the rate at which ratios are stated
    "seconds": 10,
    "pool": 12_000,  # tokens
    "objectives": {"ttft": 0.5, "longest_gap": 0.02},  # seconds
}
QUICK = {"rates": [2], "seconds": 3, "pool": 4000}
PREDICT = {"rates": [0, 2], "seconds": 4, "pool": 4000}
TINY = {"clients": 2, "output": [2, 6], "long": 100, "rates": [0, 2], "seconds": 1, "pool": 2000}


def measure_before(settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load()
    engine = load_engine(BEFORE)(loaded, **options(loaded, sizes))
    fill(engine, sizes)
    return {"full_piece_ms": full_piece_ms(engine, sizes)} | sweep(engine, sizes)


def measure_now(settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load()
    engine = load_engine(NOW)(loaded, workers="ray", load_format=settings.load_format, **options(loaded, sizes))
    try:
        fill(engine, sizes)
        freeze_loaded_objects()  # Ray's, as `serve` does: a visit to all of them would be the longest gap
        alone = max(step.counters.get("handoff_bytes", 0) for step in engine.trace)  # one long prompt after the other
        engine.trace.clear()
        figures = sweep(engine, sizes)
        handed = [step.counters for step in engine.trace if step.counters.get("handoff_bytes", 0) >= alone]
        least = min(step["handoff_bytes"] for step in handed)
        handed = [step for step in handed if step["handoff_bytes"] == least]  # others bring several handoffs at once
        figures["handoff_mb"] = alone / 1e6
        figures["handoff_ms"] = 1e3 * statistics.median(step["handoff_seconds"] for step in handed)
    finally:
        engine.close()
    return figures


def options(loaded: Loaded, sizes: dict) -> dict:
    memory = sizes["pool"] * loaded.config.kv_bytes_per_token(loaded.dtype)
    return {"kv_memory": memory, "draft": "lookup", "num_draft_tokens": 0}


def fill(engine: BaseEngine, sizes: dict) -> None:
    for i in range(2 + sizes["pool"] // sizes["long"]):
        prompt = random_prompt(sizes["long"], engine.config.vocab_size, f"old {i}")
        engine.generate([prompt], SamplingParams(max_tokens=2, ignore_eos=True))


def full_piece_ms(engine: BaseEngine, sizes: dict) -> float:
    """Return the ms of a step that a piece of a prompt fills, alone; or the longest of a prompt that fills none."""
    times = []
    for i in range(3):
        engine.trace.clear()
        prompt = random_prompt(sizes["long"], engine.config.vocab_size, f"alone {i}")
        engine.generate([prompt], SamplingParams(max_tokens=1))
        most = max(step.tokens for step in engine.trace)
        times += [1e3 * step.seconds for step in engine.trace if step.tokens == most]
    return statistics.median(times)


def sweep(engine: BaseEngine, sizes: dict) -> Figures:
    """Return a value for each rate of long prompts. Goodput: requests a second that meet all objectives."""
    figures, most = {}, sizes["objectives"]
    for rate in sizes["rates"]:
        short, long = under_load(engine, sizes, rate)
        gaps, first = percentiles(short.values("itl")), percentiles(short.values("ttft"))
        met = [each.ttft <= most["ttft"] and max(each.itl, default=0) <= most["longest_gap"] for each in short.records]
        point = {
            "itl_p50_ms": 1e3 * gaps["p50"],
            "itl_p99_ms": 1e3 * gaps["p99"],
            "ttft_short_p90_ms": 1e3 * first["p90"],
            "tokens_per_second": short.throughput,
            "goodput": sum(met) / short.seconds,
        }
        if rate:
            point["ttft_long_p50_ms"] = 1e3 * percentiles(long.values("ttft"))["p50"]
        for name, value in point.items():
            figures.setdefault(name, []).append(value)
    return figures


def under_load(engine: BaseEngine, sizes: dict, rate: float) -> tuple[LoadResult, LoadResult]:
    """Return the short and the long requests of `sizes["seconds"]` seconds."""
    vocab_size, short, long = engine.config.vocab_size, [], []

    def ask() -> None:
        number = len(short)
        prompt = random_prompt(sizes["short"], vocab_size, f"short {rate} {number}")
        # Of different lengths, or else all clients would ask at the same moment, again and again.
        length = Random(number).randint(*sizes["output"])
        short.append(engine.add(prompt, SamplingParams(max_tokens=length, ignore_eos=True)))

    for _ in range(sizes["clients"]):
        ask()
    start = time.perf_counter()
    end = start + sizes["seconds"]
    while engine.has_unfinished:
        now = time.perf_counter()
        if now < end and rate and now >= start + (len(long) + 0.5) / rate:
            prompt = random_prompt(sizes["long"], vocab_size, f"long {rate} {len(long)}")
            long.append(engine.add(prompt, SamplingParams(max_tokens=sizes["long_output"], ignore_eos=True)))
        for request in engine.step():
            if request.finished and len(request.prompt_token_ids) == sizes["short"] and time.perf_counter() < end:
                ask()
    seconds = time.perf_counter() - start
    return tuple(LoadResult([record(one, one.timings.tokens) for one in some], seconds) for some in (short, long))


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    before, now = measured[BEFORE], measured[NOW]
    at = sizes["rates"].index(sizes["stated"])
    ttft_long = [side["ttft_long_p50_ms"][at - 1] for side in (before, now)]  # there is none at rate 0
    return {
        "itl_p99_ratio": before["itl_p99_ms"][at] / now["itl_p99_ms"][at],
        "throughput_ratio": now["tokens_per_second"][at] / before["tokens_per_second"][at],
        "ttft_long_ratio": ttft_long[1] / ttft_long[0],
    }


HEADLINE = Headline(
    "p99 of the gaps between tokens, {stated} long prompts a second",
    "ms",
    (BEFORE, NOW),
    lambda sizes, side: side["itl_p99_ms"][sizes["rates"].index(sizes["stated"])],
    more_is_better=False,
)


def report(document: dict) -> dict[str, list[list]]:
    at = document["sizes"]["rates"].index(document["sizes"]["stated"])
    before, now = ({name: each["median"] for name, each in document["sides"][side].items()} for side in (BEFORE, NOW))
    rows = [
        ("gap, median", "itl_p50_ms", "{:.1f} ms"),
        ("gap, p99", "itl_p99_ms", "{:.0f} ms"),
        ("first token of a short prompt, p90", "ttft_short_p90_ms", "{:.0f} ms"),
        ("tokens a second", "tokens_per_second", "{:,.0f}"),
        ("goodput, requests a second", "goodput", "{:.0f}"),
    ]
    table = [[title, *(form.format(s[name][i]) for i in (0, at) for s in (before, now))] for title, name, form in rows]
    long = [f"{side['ttft_long_p50_ms'][at - 1]:.0f} ms" for side in (before, now)]
    header = ["", "stage 07, no long prompts", "stage 08, none", "stage 07, two a second", "stage 08, two"]
    return {"gaps": [header, *table, ["first token of a long prompt", "", "", *long]]}


CLAIMS = {
    "more than a third shorter": lambda document: document["figures"]["itl_p99_ratio"]["min"] > 1.5,
    "about two thirds of stage 07's tokens": lambda document: document["figures"]["throughput_ratio"]["max"] < 0.7,
    "more than twice as long": lambda document: document["figures"]["ttft_long_ratio"]["min"] > 2,
    "less than 10 ms": lambda document: document["sides"][NOW]["handoff_ms"]["max"] < 10,
}


def draw(document: dict, png: Path) -> None:
    sizes, sides = document["sizes"], document["sides"]
    rates, lengths = sizes["rates"], " to ".join(map(str, sizes["output"]))
    shorter = document["figures"]["itl_p99_ratio"]["median"]
    message = f"Long prompts delay decoding less: the p99 gap is {shorter:.1f} times shorter"
    remark = (
        f"{sizes['clients']} clients decode ({sizes['short']} tokens in, {lengths} out); prompts of {sizes['long']:,} "
        f"tokens come at fixed times; the title is of {sizes['stated']} a second.\n"
        "Stage 07 has two cores, stage 08 one a worker. Predicted: a step of stage 07 with a full piece, alone."
    )
    panels_of = [
        ("itl_p99_ms", rates, "milliseconds", "p99 of the gaps"),
        ("ttft_long_p50_ms", rates[1:], "milliseconds", "First token, long prompt"),
        ("tokens_per_second", rates, "tokens a second", "Throughput"),
    ]
    with plots.page(png, document, message, columns=3, remark=remark) as panels:
        piece = sides[BEFORE]["full_piece_ms"]["median"]
        plots.predicted(panels[0], rates[1:], {"median": [piece] * len(rates[1:])}, "predicted")
        for panel, (name, x, unit, title) in zip(panels, panels_of, strict=True):
            for side, label in ((BEFORE, "stage 07"), (NOW, "stage 08")):
                plots.line(panel, x, sides[side][name], side, label)
            plots.axes(panel, "long prompts a second", unit, title)
            panel.set_xticks(rates)
            panel.set_xlim(0, max(rates))
            for line in panel.get_lines():
                line.set_clip_on(False)


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={BEFORE: measure_before, NOW: measure_now},
    sizes={"full": SIZES, "quick": QUICK, "predict": PREDICT, "tiny": TINY},
    derive=derive,
    draw=draw,
    headline=HEADLINE,
    seconds={"full": 420, "quick": 66, "predict": 50},
    report=report,
    claims=CLAIMS,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

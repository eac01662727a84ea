"""How many more requests fit into the same memory, and what does it cost to find their pages?

Method. All in one process per side, without HTTP. 64 requests at once, prompts of 16 to 256 and outputs of 16 to 128
tokens: stage 04 with the memory of eight slots, this stage with as many bytes of pages, and transformers' `generate` on
static batches. After every step the engine says how many tokens' places are reserved and how many are used. Then the
same with pages of 1 to 256 tokens; and the time of a step in which 1 to 64 requests decode, by what it is spent on,
in both stages, and in this one with a backend that gathers the pages first. The floor of a step is the time to read all
weights and K and V, at the rate at which this machine reads the same number of bytes again and again, or the time of
the arithmetic at the rate of a large product, where that is longer. What its calls take is the time of a step with one
request in a model of as many layers whose matrices are tiny.

Expectation. A slot has room for a whole context, so eight slots are eight requests; pages are the budget divided by
what a request has on average, so more than all 64 fit in. With pages only the rest of the last page is lost, half a
page for each request (the prediction). A step with more requests costs less for each, so more of them at once is more
throughput. A kernel that reads pages in place costs what reading slots costs; gathering them first is a loss, and with
one client there is nothing to set against it.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.bench import plots
from common.bench.ceilings import matmul_flops_per_second, read_bytes_per_second
from common.bench.cost_model import decode_bytes, step_floor
from common.bench.engine_load import add, engine_load
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.offline import transformers_static_batches
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.steps import PARTS, step_profile
from common.bench.workloads import mixed_length_jobs
from common.engine import BaseEngine
from common.fused import choose_model
from common.loader import Loaded
from common.loader.weights import empty_model, randomize_weights
from common.model import ModelConfig
from common.stages import load_engine

SIZES = {
    "requests": 64,
    "slots": 8,  # of stage 04; the budget of both is their size
    "group": 16,  # of transformers' static batches
    "page_sizes": [1, 4, 8, 16, 64, 256],
    "batches": [1, 8, 32, 64],  # of the steps that are taken apart
    "bookkeeping_batches": [1, 32, 256],
    "context": 150,
    "read_bytes": [2**18, 2**22, 2**24, 2**25, 2**28],  # one for each level of cache, and memory
}
QUICK = {
    "requests": 24,
    "slots": 4,
    "page_sizes": [],
    "batches": [1],
    "bookkeeping_batches": [1],
    "context": 30,
    "read_bytes": [],
}
TINY = {
    "requests": 3,
    "slots": 1,
    "group": 2,
    "page_sizes": [4, 16],
    "batches": [1, 2],
    "bookkeeping_batches": [1, 2],
    "context": 30,
    "read_bytes": [2**18, 2**20],
}


def measure_slots(settings: Settings, sizes: dict) -> Figures:
    loaded, engine_class = settings.load(), load_engine("04_continuous_batching")
    figures = mixed(engine_class(loaded, max_running=sizes["slots"]), sizes)
    slot = loaded.config.context_length * loaded.config.kv_bytes_per_token(loaded.dtype)
    room = max(sizes["batches"]) * slot  # more than by default
    return figures | profile(engine_class, loaded, sizes["batches"], sizes["context"], kv_memory=room)


def measure_pages(settings: Settings, sizes: dict) -> Figures:
    loaded, engine_class = settings.load(), load_engine("05_paged_attention")
    budget = sizes["slots"] * loaded.config.context_length * loaded.config.kv_bytes_per_token(loaded.dtype)
    options = {"max_running": sizes["requests"], "kv_memory": budget}
    figures = mixed(engine_class(loaded, **options), sizes)
    figures |= profile(engine_class, loaded, sizes["batches"], sizes["context"]) | floors(loaded, sizes)
    figures["calls_ms"] = computed_ms(profile(engine_class, with_tiny_matrices(loaded), [1], sizes["context"]))
    curve = [mixed(engine_class(loaded, **options, page_size=size), sizes) for size in sizes["page_sizes"]]
    for name in ("tokens_per_second", "wasted_percent"):
        figures[f"{name}_by_page_size"] = [point[name] for point in curve]
    gathering = profile(engine_class, loaded, sizes["batches"], sizes["context"], attention="torch")
    figures |= {f"gathering_{name}": values for name, values in gathering.items()}
    steps = profile(engine_class, loaded, sizes["bookkeeping_batches"], sizes["context"])
    return figures | {"bookkeeping_us": [1e3 * milliseconds for milliseconds in steps["step_bookkeeping_ms"]]}


def measure_transformers(settings: Settings, sizes: dict) -> Figures:
    jobs = mixed_length_jobs(sizes["requests"], settings.config().vocab_size)
    return {"tokens_per_second": transformers_static_batches(settings, jobs, sizes["group"])}


def mixed(engine: BaseEngine, sizes: dict) -> Figures:
    """Send all requests at once; return what is reserved and what is used, summed over the steps."""
    jobs = mixed_length_jobs(sizes["requests"], engine.config.vocab_size)
    engine_load(engine, jobs, concurrency=len(jobs))  # warm-up: the first use of memory costs time
    requests = [add(engine, job) for job in jobs]
    reserved, used, running = [], [], []
    while engine.has_unfinished:
        engine.step()
        stats = engine.stats()
        reserved.append(stats["kv_tokens_reserved"])
        used.append(stats["kv_tokens_used"])
        running.append(stats["running"])
    seconds = max(request.timings.finished for request in requests) - requests[0].timings.arrival
    return {
        "tokens_per_second": sum(len(request.token_ids) for request in requests) / seconds,
        "wasted_percent": 100 * (1 - sum(used) / sum(reserved)),
        "most_running": max(running),
        "tokens_per_request": sum(used) / sum(running),
    }


def profile(engine_class: type[BaseEngine], loaded: Loaded, batches: Sequence[int], context: int, **options) -> Figures:
    """Return the milliseconds of a decode step by what they are spent on: for each part one number per batch."""
    engine = engine_class(loaded, max_running=max(batches), token_budget=max(batches) * context, **options)
    points = [step_profile(engine, batch, context) for batch in batches]
    return {f"step_{part}_ms": [point[part] for point in points] for part in (*PARTS, "total")}


def computed_ms(steps: Mapping[str, Sequence[float]]) -> float:
    """Return the milliseconds of a step with one request, of those of `profile`, without bookkeeping."""
    return steps["step_total_ms"][0] - steps["step_bookkeeping_ms"][0]


def with_tiny_matrices(loaded: Loaded) -> Loaded:
    """Return a random model with as many layers, in which a step takes what its calls take."""
    config = replace(loaded.config, vocab_size=256, hidden_size=16, intermediate_size=16, num_heads=1, num_kv_heads=1)
    model = empty_model(config, loaded.device, loaded.dtype)
    randomize_weights(model)
    return replace(loaded, model=choose_model(model, "auto"), config=config)


def floors(loaded: Loaded, sizes: dict) -> Figures:
    """Return the least milliseconds of a step of each batch, and the rates behind it, in bytes and FLOPs a second."""
    config, dtype, device = loaded.config, loaded.dtype, loaded.device
    reading = read_bytes_per_second(device, decode_bytes(config, sizes["context"], dtype))
    arithmetic = matmul_flops_per_second(device, dtype)
    least = [step_floor(config, batch, sizes["context"], dtype, reading, arithmetic) for batch in sizes["batches"]]
    return {
        "floor_ms": [1e3 * seconds for seconds in least],
        "read_bytes_per_second": reading,
        "matmul_flops_per_second": arithmetic,
        "read_bytes_per_second_by_size": [read_bytes_per_second(device, size) for size in sizes["read_bytes"]],
    }


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    slots, pages = measured["04_continuous_batching"], measured["05_paged_attention"]
    tokens_static = measured["transformers"]["tokens_per_second"]
    tokens = pages["tokens_per_request"]
    fit = sizes["slots"] * config.context_length / (tokens + 16 / 2)
    lost = [(size - 1) / 2 for size in sizes["page_sizes"]]  # of the last page, on average
    at = sizes["batches"].index(32) if 32 in sizes["batches"] else -1
    return {
        "predicted_wasted_percent_by_page_size": [100 * rest / (tokens + rest) for rest in lost],
        "requests_that_fit": fit,
        "throughput_ratio": pages["tokens_per_second"] / slots["tokens_per_second"],
        "ratio_vs_transformers_static": pages["tokens_per_second"] / tokens_static,
        "gathering_step_ratio_at_1": pages["gathering_step_total_ms"][0] / slots["step_total_ms"][0],
        "step_ratio_at_1": pages["step_total_ms"][0] / slots["step_total_ms"][0],
        "step_bytes": decode_bytes(config, sizes["context"], dtype),
        "over_floor_at_1": computed_ms(pages) / pages["floor_ms"][0],
        "over_floor_beyond_calls_at_1": (computed_ms(pages) - pages["calls_ms"]) / pages["floor_ms"][0],
        "bookkeeping_percent_at_32": 100 * pages["step_bookkeeping_ms"][at] / pages["step_total_ms"][at],
        "attention_percent_at_32": 100 * pages["step_attention_ms"][at] / pages["step_total_ms"][at],
    }


HEADLINE = Headline(
    "{requests} requests at once in the memory of {slots} slots",
    "output tokens/s",
    ("04_continuous_batching", "05_paged_attention"),
    lambda sizes, side: side["tokens_per_second"],
)


def draw(document: dict, png: Path) -> None:
    draw_memory(document, png)
    draw_cost(document, png.with_stem(f"{png.stem}-cost"))


def draw_memory(document: dict, png: Path) -> None:
    sizes, sides, figures = document["sizes"], document["sides"], document["figures"]
    slots, pages = sides["04_continuous_batching"], sides["05_paged_attention"]
    message = (
        f"In the same memory, pages give {figures['throughput_ratio']['median']:.1f} times the throughput of slots"
    )
    remark = (
        f"{sizes['requests']} requests at once, prompts of 16 to 256 and outputs of 16 to 128 tokens. K and V have the "
        f"memory of {sizes['slots']} slots.\ntransformers: generate on static batches of {sizes['group']}, with all "
        "the memory it wants."
    )
    both, labels = ["04_continuous_batching", "05_paged_attention"], ["stage 04\nslots", "stage 05\npages"]
    with plots.page(png, document, message, columns=3, remark=remark) as (running, wasted, throughput):
        plots.bars(running, both, [slots["most_running"], pages["most_running"]], labels)
        plots.axes(running, "", "requests", "Running at once, at most")
        plots.bars(wasted, both, [slots["wasted_percent"], pages["wasted_percent"]], labels)
        plots.axes(wasted, "", "percent", "Reserved for no token")
        rates = [sides[side]["tokens_per_second"] for side in (*both, "transformers")]
        plots.bars(throughput, [*both, "transformers"], rates, [*labels, "trans-\nformers"])
        plots.axes(throughput, "", "output tokens per second", "Throughput")


def draw_cost(document: dict, png: Path) -> None:
    sizes, sides, figures = document["sizes"], document["sides"], document["figures"]
    slots, pages = sides["04_continuous_batching"], sides["05_paged_attention"]
    share = figures["attention_percent_at_32"]["median"]
    device = {"cpu": "CPU", "cuda": "GPU"}[document["hardware"]["device"]]
    message = f"On this {device}, attention takes {share:.0f} percent of a step with 32 requests"
    remark = (
        f"A step in which that many requests decode, {sizes['context']} tokens behind each: slots read in place, pages "
        "read in place, and pages that are gathered\nfirst (--attention torch). Predicted: half of the last page is "
        "lost. Under the size of a page, the output tokens per second of all 64 requests.\nDashed: the floor, all "
        "weights and K and V read once, or the arithmetic where it takes longer; a step with one request\ntakes "
        f"{figures['over_floor_at_1']['median']:.1f} times its floor, bookkeeping left out, and "
        f"{figures['over_floor_beyond_calls_at_1']['median']:.1f} times without its calls from Python."
    )
    tints = {"model": "#b8c4cc", "attention": "#c8354b", "sampling": "#7b4a9e", "bookkeeping": "#2b2b38"}
    with plots.page(png, document, message, rows=2, columns=2, height=8, remark=remark) as (*steps, by_size):
        profiles = [
            ("A step of stage 04: slots", slots, "step"),
            ("A step of stage 05: pages", pages, "step"),
            ("The same, pages gathered first", pages, "gathering_step"),
        ]
        highest = max(max(side[f"{name}_total_ms"]["median"]) for _, side, name in profiles)
        for panel, (title, side, name) in zip(steps, profiles, strict=True):
            heights = {part: side[f"{name}_{part}_ms"]["median"] for part in tints}
            plots.stack(panel, [str(batch) for batch in sizes["batches"]], heights, tints)
            plots.axes(panel, "requests in the step", "milliseconds", title)
            plots.predicted(panel, range(len(sizes["batches"])), pages["floor_ms"], "the floor")
            panel.set_ylim(top=1.15 * highest)
        plots.doubling(by_size, sizes["page_sizes"])
        rates = pages["tokens_per_second_by_page_size"]["median"]
        labels = [f"{size}\n{rate / 1e3:.1f}k" for size, rate in zip(sizes["page_sizes"], rates, strict=True)]
        by_size.set_xticks(sizes["page_sizes"], labels, fontsize=10)
        plots.line(by_size, sizes["page_sizes"], pages["wasted_percent_by_page_size"], "05_paged_attention", "measured")
        plots.predicted(by_size, sizes["page_sizes"], figures["predicted_wasted_percent_by_page_size"], "predicted")
        plots.axes(by_size, "tokens in a page", "percent", "Reserved for no token")


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={
        "04_continuous_batching": measure_slots,
        "05_paged_attention": measure_pages,
        "transformers": measure_transformers,
    },
    sizes={"full": SIZES, "quick": QUICK, "tiny": TINY},
    derive=derive,
    draw=draw,
    headline=HEADLINE,
    seconds={"full": 420, "quick": 40},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

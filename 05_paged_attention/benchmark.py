"""How many more requests fit into the same memory, and what does it cost to find their pages?

Method. All in one process per side, without HTTP. 64 requests at once, prompts of 16 to 256 and outputs of 16 to 128
tokens: stage 04 with the memory of eight slots, this stage with as many bytes of pages, and transformers' `generate` on
static batches. After every step the engine says how many tokens' places are reserved and how many are used. Then the
same with pages of 1 to 256 tokens; and the time of a step in which 1 to 64 requests decode, by what it is spent on,
in both stages, and in this one with a backend that gathers the pages first. The floor of a step is the time to read all
weights, K and V at the rate of as many bytes read again and again, or that of the arithmetic, where it is longer.

Expectation. Eight slots are eight requests; pages are the budget divided by what a request has on average, so all 64
fit in. With pages half of the last page of each request is lost (the prediction). More requests at once share the cost
of a step. A kernel that reads pages in place costs what reading slots costs; gathering them first is a loss.
"""

import sys
from functools import partial
from pathlib import Path

import numpy
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.ceilings import matmul_flops_per_second, read_bytes_per_second
from common.bench.cost_model import decode_bytes, step_floor
from common.bench.documents import medians, parts
from common.bench.engine_load import add, engine_load
from common.bench.harness import Benchmark, Figures, Measured, curves
from common.bench.offline import transformers_static_batches
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.steps import step_profile
from common.bench.workloads import Job, mixed_lengths, mixed_pages
from common.engine import BaseEngine
from common.errors import counted
from common.loader import Loaded
from common.model import ModelConfig
from common.stages import load_engine

BEFORE, NOW, PEER = "04_continuous_batching", "05_paged_attention", "transformers"
COUNTED = "kv_tokens_reserved", "kv_tokens_used", "running"  # of `stats`
PAGE = 16  # tokens: the engine's default page size
# No stage has one of these colours.
TINTS = {"model": "#dfe4e8", "attention": "#8a97a3", "sampling": "#bcc6ce", "bookkeeping": "#4a5560"}


def measure_slots(settings: Settings, sizes: dict) -> Figures:
    loaded, engine_class = settings.load(sizes.get("context_length")), load_engine(BEFORE)
    figures = mixed(engine_class(loaded, max_running=sizes["slots"]), sizes)
    room = max(sizes["batches"]) * slot_bytes(loaded)  # The largest batch needs a slot for each request.
    return figures | profile(engine_class, loaded, sizes, kv_memory=room)


def slot_bytes(loaded: Loaded) -> int:
    return loaded.config.context_length * loaded.config.kv_bytes_per_token(loaded.dtype)


def measure_pages(settings: Settings, sizes: dict) -> Figures:
    loaded, engine_class = settings.load(sizes.get("context_length")), load_engine(NOW)
    options = {"max_running": sizes["requests"], "kv_memory": sizes["slots"] * slot_bytes(loaded)}
    figures = mixed(engine_class(loaded, **options), sizes) | profile(engine_class, loaded, sizes)
    figures["floor_ms"] = floors(loaded, sizes)
    curve = [mixed(engine_class(loaded, **options, page_size=size), sizes) for size in sizes["page_sizes"]]
    figures["wasted_percent_by_page_size"] = [point["wasted_percent"] for point in curve]
    gathering = profile(engine_class, loaded, sizes, attention="torch")
    return figures | {f"gathering_{name}": values for name, values in gathering.items()}


def measure_transformers(settings: Settings, sizes: dict) -> Figures:
    jobs = jobs_of(sizes, settings.without_weights())
    return {"tokens_per_second": transformers_static_batches(settings, jobs, sizes["group"])}


def jobs_of(sizes: dict, model: BaseEngine | Loaded) -> list[Job]:
    return mixed_pages(model, sizes["requests"], **sizes.get("longest", {}))


def mixed(engine: BaseEngine, sizes: dict) -> Figures:
    """Send all requests at once; return what is reserved and what is used, summed over the steps."""
    jobs = jobs_of(sizes, engine)
    engine_load(engine, jobs, concurrency=len(jobs))  # warm-up: the first use of memory costs time
    requests = [add(engine, job) for job in jobs]
    steps = []
    while engine.has_unfinished:
        engine.step()
        steps.append(engine.stats())
    reserved, used, running = (sum(step[name] for step in steps) for name in COUNTED)
    seconds = max(request.timings.finished for request in requests) - requests[0].timings.arrival
    return {
        "tokens_per_second": sum(len(request.token_ids) for request in requests) / seconds,
        "wasted_percent": 100 * (1 - used / reserved),
        "most_running": max(step["running"] for step in steps),
        "tokens_per_request": used / running,
    }


def profile(engine_class: type[BaseEngine], loaded: Loaded, sizes: dict, **options) -> Figures:
    """Return the milliseconds of a decode step by what they are spent on: for each part one number per batch."""
    batches, context = sizes["batches"], sizes["context"]
    engine = engine_class(loaded, max_running=max(batches), token_budget=max(batches) * context, **options)
    parts_of_step = curves([step_profile(engine, batch, context) for batch in batches])
    return {f"step_{part}_ms": times for part, times in parts_of_step.items()}


def floors(loaded: Loaded, sizes: dict) -> list[float]:
    """Return the least milliseconds of a step of each batch."""
    config, dtype, device = loaded.config, loaded.dtype, loaded.device
    reading = read_bytes_per_second(device, decode_bytes(config, sizes["context"], dtype))
    arithmetic = matmul_flops_per_second(device, dtype)
    least = [step_floor(config, batch, sizes["context"], dtype, reading, arithmetic) for batch in sizes["batches"]]
    return [1e3 * seconds for seconds in least]


def derive(sizes: dict, measured: Measured, config: ModelConfig, *_) -> Figures:
    slots, pages = measured[BEFORE], measured[NOW]
    # A request loses half of its last page, on average.
    tokens, lost = pages["tokens_per_request"], [(size - 1) / 2 for size in sizes["page_sizes"]]
    context = min(config.context_length, sizes.get("context_length", config.context_length))  # tokens of a slot
    running = min(sizes["requests"], sizes["slots"] * context / (tokens + (PAGE - 1) / 2))
    before, now = (partial(numpy.interp, xp=sizes["batches"], fp=side["step_total_ms"]) for side in (slots, pages))
    return {
        "predicted_running": running,
        "predicted_throughput_ratio": (running / now(running)) / (sizes["slots"] / before(sizes["slots"])),
        "predicted_wasted_percent_by_page_size": [100 * rest / (tokens + rest) for rest in lost],
    }


def report(document: dict) -> dict[str, list[list]]:
    sizes, sides, _ = medians(document)
    config, dtype = ModelConfig(**document["model"]), getattr(torch, document["settings"]["dtype"])
    read = decode_bytes(config, sizes["context"], dtype) / 1e6
    floor, step = sides[NOW]["floor_ms"][0], sides[NOW]["step_total_ms"][0]
    shape = [
        ["weights, K and V of one request, MB", "reading them once, ms", "a step, ms", "times as long"],
        [plots.short(read), plots.short(floor), plots.short(step), f"{step / floor:.1f}"],
    ]
    return {"shape": shape}


def draw(document: dict, png: Path) -> None:
    draw_memory(document, png)
    draw_cost(document, png.with_stem(f"{png.stem}-cost"))


def draw_memory(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
    pages, ratio = sides[NOW], document["headline"]["ratio"]["median"]
    message = f"In the same memory, pages give {ratio:.1f} times the throughput of slots"
    remark = (
        f"{sizes['requests']} requests at once, {mixed_lengths(**sizes.get('longest', {}))}, in the memory of "
        f"{counted(sizes['slots'], 'slot')}.\n"
        f"transformers: generate on static batches of {sizes['group']}, with all the memory it wants. Predicted: half "
        "of the last page."
    )
    labels = {BEFORE: "stage 04\nslots", NOW: "stage 05\npages", PEER: "trans-\nformers"}
    with plots.page(png, document, message, columns=3, remark=remark) as (throughput, running, wasted):
        plots.bars(throughput, [*labels], [sides[side]["tokens_per_second"] for side in labels], [*labels.values()])
        plots.axes(throughput, "", "output tokens per second", "Throughput")
        both = [BEFORE, NOW]
        plots.bars(running, both, [sides[side]["most_running"] for side in both], [labels[side] for side in both])
        plots.axes(running, "", "requests", "Running at once, at most")
        plots.doubling(wasted, sizes["page_sizes"])
        plots.line(wasted, sizes["page_sizes"], pages["wasted_percent_by_page_size"], NOW, "measured")
        plots.predicted(wasted, sizes["page_sizes"], figures["predicted_wasted_percent_by_page_size"], "predicted")
        plots.axes(wasted, "tokens in a page", "percent", "Memory reserved but empty")


def draw_cost(document: dict, png: Path) -> None:
    sizes, sides, _ = parts(document)
    slots, pages = sides[BEFORE], sides[NOW]
    times = slots["step_attention_ms"], pages["step_attention_ms"], pages["gathering_step_attention_ms"]
    before, now, copied = (f"{time['median'][-1]:.1f}" for time in times)
    many = sizes["batches"][-1]
    message = f"{many} requests: attention takes {before} ms over slots, {now} over pages, {copied} gathered"
    remark = (
        f"A step in which that many requests decode, {sizes['context']} tokens behind each. Gathered first: "
        "--attention torch.\nDashed, the lower bound: all weights and K and V read once, or the arithmetic where it "
        "takes longer."
    )
    profiles = [
        ("Stage 04: slots", slots, "step"),
        ("Stage 05: pages", pages, "step"),
        ("The same, gathered first", pages, "gathering_step"),
    ]
    highest = max(max(side[f"{name}_total_ms"]["median"]) for _, side, name in profiles)
    with plots.page(png, document, message, columns=3, remark=remark) as steps:
        for panel, (title, side, name) in zip(steps, profiles, strict=True):
            heights = {part: side[f"{name}_{part}_ms"]["median"] for part in TINTS}
            plots.stack(panel, [str(batch) for batch in sizes["batches"]], heights, TINTS)
            plots.predicted(panel, range(len(sizes["batches"])), pages["floor_ms"], "_floor")
            plots.axes(panel, "requests in the step", "milliseconds", title)
            panel.set_ylim(top=1.15 * highest)
        steps[0].legend(reverse=True, loc="upper left")  # for all panels


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={BEFORE: measure_slots, NOW: measure_pages, PEER: measure_transformers},
    derive=derive,
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

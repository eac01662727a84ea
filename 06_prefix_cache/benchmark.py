"""What is it worth not to compute the same beginning twice, and what does looking for it cost?

Method. All in one process per side, without HTTP; stages 05 and 06 with the same settings. Prompts of 1,000 tokens
of the lessons' pages, of which the first 0, 50 or 90 percent are the same in all: the time to first token of one
request after another, and the throughput of many clients. With nothing shared also both stages in one process, prompt
by prompt in turn, to tell a difference of a percent. A conversation, in which every turn sends all turns before it. And
documents of equal length, one of which is asked about at a time, when all of them together are half as large as the
pool, as large, and twice as large: picked at random, and in turn.

Expectation. A prefill is as long as what has to be computed. With 90 percent of a prompt in the cache a tenth remains,
and the fixed cost of a step; looking up a few dozen pages costs nothing that can be seen. A turn of a conversation
costs what it adds, not what it repeats. Under pressure, at random, the pool's share of all documents is found (the
prediction); in turn, the page wanted next is always the one that was used the longest ago, and nothing is ever found.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.description import described
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.workloads import Job, page_prompt
from common.engine import BaseEngine
from common.loader import Loaded
from common.model import ModelConfig
from common.sampling import SamplingParams

BEFORE, NOW = "05_paged_attention", "06_prefix_cache"


def measure(stage: str, settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load()
    figures = shared_prompts(stage, loaded, sizes) | conversation(stage, loaded, sizes)
    if stage == NOW:  # Stage 05 caches nothing, and the first of these measures both stages.
        figures |= alternating_ttft(loaded, sizes) | pressure(loaded, sizes)
    return figures


def new_engine(stage: str, loaded: Loaded, sizes: dict, tokens: int) -> BaseEngine:
    """Return an empty engine that is warm, with memory for `tokens` tokens.

    Memory is slow when it is used for the first time. Only stage 06 keeps what it has computed, so only it would come
    to new memory again and again. So all memory is touched here.
    """
    memory = tokens * loaded.config.kv_bytes_per_token(loaded.dtype)
    engine = engine_of(stage, loaded, token_budget=sizes["token_budget"], kv_memory=memory)
    for pages in (engine.cache.k, engine.cache.v):
        pages.zero_()
    warm_up = page_prompt(loaded, min(sizes["prompt"], tokens // 2), "warm-up")
    engine_load(engine, [Job(warm_up, 8)], concurrency=1)
    return engine


def shared_prompts(stage: str, loaded: Loaded, sizes: dict) -> Figures:
    ttft, throughput = [], []
    for percent in sizes["shared_percent"]:
        jobs = shared_jobs(loaded, sizes, percent, 1 + sizes["one_by_one"], 1)
        result = engine_load(new_engine(stage, loaded, sizes, places(jobs)), jobs, concurrency=1)
        ttft.append(1e3 * statistics.median(record.ttft for record in result.records[1:]))  # the first finds nothing
        jobs = shared_jobs(loaded, sizes, percent, sizes["together"], sizes["output"])
        engine = new_engine(stage, loaded, sizes, places(jobs))
        throughput.append(engine_load(engine, jobs, concurrency=sizes["clients"]).throughput)
    return {"ttft_ms": ttft, "tokens_per_second": throughput}


def places(jobs: Sequence[Job]) -> int:
    """Return how many tokens all jobs take together, with one more page for each, and 1,000 tokens for the warm-up."""
    return 1000 + sum(len(job.prompt) + job.max_tokens + 16 for job in jobs)


def alternating_ttft(loaded: Loaded, sizes: dict) -> Figures:
    """Measure what a lookup costs that finds nothing: both stages in one process, prompt by prompt in turn."""
    tokens = 1000 + sizes["in_turn"] * (sizes["prompt"] + 17)
    engines = [new_engine(stage, loaded, sizes, tokens) for stage in (BEFORE, NOW)]
    times: list[list[float]] = [[], []]
    for i in range(sizes["in_turn"]):
        prompt = page_prompt(loaded, sizes["prompt"], f"alternating {i}")
        for engine, seconds in list(zip(engines, times, strict=True))[:: 1 if i % 2 else -1]:
            [request] = engine.generate([prompt], SamplingParams(max_tokens=1))
            seconds.append(request.timings.time_to_first_token)
    return {"alternating_ttft_ms": [1e3 * statistics.median(seconds) for seconds in times]}


def shared_jobs(loaded: Loaded, sizes: dict, percent: int, count: int, output: int) -> list[Job]:
    shared = sizes["prompt"] * percent // 100
    beginning = page_prompt(loaded, shared, "beginning")
    return [
        Job(beginning + page_prompt(loaded, sizes["prompt"] - shared, f"{percent}/{output}/{i}"), output)
        for i in range(count)
    ]


def conversation(stage: str, loaded: Loaded, sizes: dict) -> Figures:
    """Return the time to first token of each turn of one client."""
    tokens = 1000 + 2 * sizes["turns"] * sizes["turn_tokens"]
    engine, said, ttft = new_engine(stage, loaded, sizes, tokens), [], []
    for turn in range(sizes["turns"]):
        said = said + page_prompt(loaded, sizes["turn_tokens"], f"turn {turn}")
        [request] = engine.generate([said], SamplingParams(max_tokens=sizes["turn_tokens"], ignore_eos=True))
        ttft.append(1e3 * request.timings.time_to_first_token)
        said = request.all_token_ids
    return {"turn_ttft_ms": ttft}


def pressure(loaded: Loaded, sizes: dict) -> Figures:
    """Ask about documents that together are smaller or larger than the pool, picked at random, and in turn."""
    rng, figures = Random("pressure"), {}
    counts = [round(working_set * sizes["documents_that_fit"]) for working_set in sizes["working_sets"]]
    for name, pick in (("random", lambda i, count: rng.randrange(count)), ("in_turn", lambda i, count: i % count)):
        asked = [[pick(i, count) for i in range(count + sizes["questions"])] for count in counts]
        figures[f"{name}_hit_percent"] = [hit_percent(loaded, sizes, *pair) for pair in zip(asked, counts, strict=True)]
    return figures


def hit_percent(loaded: Loaded, sizes: dict, asked: Sequence[int], warm_up: int) -> float:
    """Return the percentage of the asked documents' tokens that is found, without the first `warm_up` documents."""
    length = sizes["document"]
    engine = new_engine(NOW, loaded, sizes, length * sizes["documents_that_fit"])
    jobs = [
        Job(page_prompt(loaded, length, f"document {n}") + page_prompt(loaded, 16, f"question {i}"), 4)
        for i, n in enumerate(asked)
    ]
    engine_load(engine, jobs[:warm_up], concurrency=1)
    before = engine.stats()["prefix_tokens_hit"]
    engine_load(engine, jobs[warm_up:], concurrency=1)
    return 100 * (engine.stats()["prefix_tokens_hit"] - before) / (length * len(jobs[warm_up:]))


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    before, now = measured[BEFORE], measured[NOW]
    figures: Figures = {
        "predicted_ttft_ratio": [100 / (100 - percent) for percent in sizes["shared_percent"]],
        "predicted_hit_percent": [100 * min(1, 1 / working_set) for working_set in sizes["working_sets"]],
    }
    for i, percent in enumerate(sizes["shared_percent"]):
        figures[f"ttft_ratio_at_{percent}"] = before["ttft_ms"][i] / now["ttft_ms"][i]
        figures[f"throughput_ratio_at_{percent}"] = now["tokens_per_second"][i] / before["tokens_per_second"][i]
    alone, looking = now["alternating_ttft_ms"]
    return figures | {"percent_lost_at_0": 100 * (looking / alone - 1)}


HEADLINE = Headline(
    "first token of a prompt of {prompt} tokens, nine tenths of them cached",
    "ms",
    (BEFORE, NOW),
    lambda sizes, side: side["ttft_ms"][-1],
    more_is_better=False,
)


def report(document: dict) -> dict[str, list[list]]:
    sizes, before, now = document["sizes"], document["sides"][BEFORE], document["sides"][NOW]
    rows = [
        [f"{title}, {stage}", *(f"{value:,.0f}{unit}" for value in side[name]["median"])]
        for title, name, unit in (("first token", "ttft_ms", " ms"), ("tokens per second", "tokens_per_second", ""))
        for stage, side in (("stage 05", before), ("stage 06", now))
    ]
    header = [f"shared part of a prompt of {sizes['prompt']:,} tokens"]
    first = [side["ttft_ms"]["median"][-1] for side in (before, now)]
    found = f"first token of a prompt of {sizes['prompt']:,}, {sizes['shared_percent'][-1]} % found"
    times = [first[0] / first[1], document["figures"]["predicted_ttft_ratio"]["median"][-1]]
    return {
        "shape": [
            [f"{found}, stage 05, ms", "stage 06, ms", "times sooner", "predicted"],
            [*map(plots.short, first), *(f"{each:.1f}" for each in times)],
        ],
        "shared": [header + [f"{percent} %" for percent in sizes["shared_percent"]], *rows],
    }


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = document["sizes"], document["sides"], document["figures"]
    most = sizes["shared_percent"][-1]
    times = [plots.short(sides[side]["ttft_ms"]["median"][-1]) for side in (NOW, BEFORE)]
    message = "With {} percent of a prompt cached, the first token takes {} ms in place of {}".format(most, *times)
    remark = (
        f"Prompts of {sizes['prompt']:,} tokens. A turn adds {sizes['turn_tokens']} tokens of the user's and as many "
        f"of the answer.\nDocuments of {sizes['document']} tokens, memory for {sizes['documents_that_fit']} of them. "
        "Predicted: the memory's share of all documents."
    )
    turns = list(range(1, sizes["turns"] + 1))
    with plots.page(png, document, message, columns=3, remark=remark) as panels:
        first, chat, found = panels
        for side, label in ((BEFORE, "stage 05"), (NOW, "stage 06")):
            plots.line(first, sizes["shared_percent"], sides[side]["ttft_ms"], side, label)
            plots.line(chat, turns, sides[side]["turn_ttft_ms"], side, label)
        plots.predicted(found, sizes["working_sets"], figures["predicted_hit_percent"], "predicted")
        plots.line(found, sizes["working_sets"], sides[NOW]["random_hit_percent"], NOW, "at random")
        plots.line(found, sizes["working_sets"], sides[NOW]["in_turn_hit_percent"], NOW, "in turn", dashed=True)
        plots.axes(first, "percent of the prompt shared", "milliseconds", "Time to first token")
        plots.axes(chat, "turn of the conversation", "milliseconds", "First token in a chat")
        plots.axes(found, "size of all documents / memory", "percent", "Share of tokens found")
        for panel, ticks in zip(panels, (sizes["shared_percent"], turns, sizes["working_sets"]), strict=True):
            panel.set_xticks(ticks)
            panel.margins(x=0)  # neither axis nor grid goes through the name at a line's end
            for line in panel.get_lines():
                line.set_clip_on(False)


BENCHMARK = Benchmark(
    **described(__file__),
    description=__doc__,
    sides={stage: partial(measure, stage) for stage in (BEFORE, NOW)},
    derive=derive,
    draw=draw,
    headline=HEADLINE,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

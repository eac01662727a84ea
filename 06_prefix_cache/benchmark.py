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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.documents import parts
from common.bench.engine_load import answer, engine_load, in_turn
from common.bench.harness import Benchmark, Figures, Measured, curves
from common.bench.metrics import LoadResult
from common.bench.run import run_benchmark
from common.bench.settings import Settings, warm_engine
from common.bench.workloads import Job, page_prompt
from common.engine import BaseEngine
from common.loader import Loaded

BEFORE, NOW = "05_paged_attention", "06_prefix_cache"


def measure(stage: str, settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load()
    figures = shared_prompts(stage, loaded, sizes) | conversation(stage, loaded, sizes)
    if stage == NOW:  # Stage 05 caches nothing, and the first of these measures both stages.
        figures |= alternating_ttft(loaded, sizes) | pressure(loaded, sizes)
    return figures


def new_engine(stage: str, loaded: Loaded, sizes: dict, tokens: int) -> BaseEngine:
    """Return an empty engine with memory for `tokens` tokens.

    It is warm: only stage 06 keeps what it has computed, so only it would come to new memory again and again.
    """
    engine = warm_engine(stage, loaded, tokens, token_budget=sizes["token_budget"])
    answer(engine, page_prompt(loaded, min(sizes["prompt"], tokens // 2), "warm-up"), 8)
    return engine


def shared_prompts(stage: str, loaded: Loaded, sizes: dict) -> Figures:
    """Measure for each share of the prompts the first token of one after another, and the throughput of many."""

    def load(percent: int, count: int, output: int, clients: int) -> LoadResult:
        jobs = shared_jobs(loaded, sizes, percent, count, output)
        # All of them together, with one more page for each, and 1,000 tokens for the warm-up.
        tokens = 1000 + sum(len(job.prompt) + job.max_tokens + 16 for job in jobs)
        return engine_load(new_engine(stage, loaded, sizes, tokens), jobs, concurrency=clients)

    points = []
    for percent in sizes["shared_percent"]:
        _, *records = load(percent, 1 + sizes["one_by_one"], 1, 1).records  # The first finds nothing.
        ttft = statistics.median(record.ttft for record in records)
        many = load(percent, sizes["together"], sizes["output"], sizes["clients"])
        points.append({"ttft_ms": 1e3 * ttft, "tokens_per_second": many.throughput})
    return curves(points)


def alternating_ttft(loaded: Loaded, sizes: dict) -> Figures:
    """Measure what a lookup costs that finds nothing: both stages in one process, prompt by prompt in turn."""
    tokens = 1000 + (1 + sizes["in_turn"]) * (sizes["prompt"] + 17)
    engines = {stage: new_engine(stage, loaded, sizes, tokens) for stage in (BEFORE, NOW)}

    def first_token(stage: str, number: int) -> float:
        prompt = page_prompt(loaded, sizes["prompt"], f"alternating {number}")
        return answer(engines[stage], prompt, 1).timings.time_to_first_token

    times = in_turn(engines, sizes["in_turn"], first_token)
    return {"alternating_ttft_ms": [1e3 * statistics.median(times[stage]) for stage in engines]}


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
        request = answer(engine, said, sizes["turn_tokens"])
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


def derive(sizes: dict, measured: Measured, *_) -> Figures:
    return {
        "predicted_ttft_ratio": [100 / (100 - percent) for percent in sizes["shared_percent"]],
        "predicted_hit_percent": [100 * min(1, 1 / working_set) for working_set in sizes["working_sets"]],
    }


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
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
        percents, loads = sizes["shared_percent"], sizes["working_sets"]
        plots.axes(first, "percent of the prompt shared", "milliseconds", "Time to first token", percents)
        plots.axes(chat, "turn of the conversation", "milliseconds", "First token in a chat", turns)
        plots.axes(found, "size of all documents / memory", "percent", "Share of tokens found", loads)
        for panel in panels:
            plots.from_edge_to_edge(panel)


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={stage: partial(measure, stage) for stage in (BEFORE, NOW)},
    derive=derive,
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

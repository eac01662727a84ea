"""The whole course in one picture: all stages under one load.

Method. Every stage's engine in a process of its own, without HTTP, in turn; 1, 8 and 32 clients that ask the same
questions, each the next one when its answer is there (a closed loop). Requests run to their full length. Stage 08 runs
its workers as processes of their own, as it does when it serves.

Expectation. Stages 01 to 03 run one request at a time, so many clients wait and throughput stays; from 04 on they share
each step. 05 holds more requests in the same memory, and 06 computes shared beginnings once: there is memory enough
here, and little is shared, so neither should show much. 07 gains where few requests decode. 08 gives each half of the
work one core, so it should lose throughput, and keep its gaps even.
"""

import statistics
from functools import partial
from pathlib import Path

from common.bench import plots
from common.bench.compare.panels import SPREAD, story
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures, curves
from common.bench.metrics import LoadResult
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.workloads import corpus_jobs
from common.stages import stage_folders

STAGES = [folder.name for folder in stage_folders()]
PANELS = {"tokens_per_second": "Output tokens per second", "ttft_ms": "First token, ms (log scale)"}


def measure(stage: str, settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load(sizes.get("context_length"))
    engine = engine_of(stage, loaded, workers="ray", load_format=settings.load_format)  # Only stage 08 has both.

    def load(clients: int, count: int, seed: int | str, most_tokens: int) -> LoadResult:
        jobs = corpus_jobs(loaded.tokenizer, count, seed=f"course/{seed}", most_tokens=most_tokens)
        return engine_load(engine, jobs, concurrency=clients)

    most, points = max(sizes["clients"]), []
    load(most, most, "warm-up", sizes["warm_up_tokens"])  # It uses all memory, whose first use costs time.
    for clients, count in zip(sizes["clients"], sizes["jobs"], strict=True):
        result = load(clients, count, clients, sizes["most_tokens"])
        times = {f"{name}_ms": 1e3 * statistics.median(result.values(name)) for name in ("ttft", "tpot")}
        points.append({"tokens_per_second": result.throughput} | times)
    return curves(points)


def draw(document: dict, png: Path) -> None:
    """Draw what the most clients get, stage by stage: tokens per second, and how long they wait for the first one."""
    clients, sides = document["sizes"]["compared_clients"], document["sides"]
    at = document["sizes"]["clients"].index(clients)
    rates = [side["tokens_per_second"]["median"][at] for side in sides.values()]
    first, best = plots.short(rates[0]), plots.short(float(f"{max(rates):.1g}"))  # Several stages are about as fast.
    message = f"{first} tokens per second become about {best}: the same model, the same answers"
    remark = (
        f"{clients} clients without HTTP; medians over requests. In 08 one process prefills and one decodes, each on "
        "half of the cores: fewer tokens, steadier gaps."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as panels:
        panels[1].set_xscale("log")
        for panel, (metric, title) in zip(panels, PANELS.items(), strict=True):
            figures = [{key: side[metric][key][at] for key in SPREAD} for side in sides.values()]
            plots.bars(panel, list(sides), figures, list(map(story, sides)), lying=True)
            panel.set_title(title)
        panels[1].set(yticks=[], xticks=[])
        panels[1].tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={stage: partial(measure, stage) for stage in STAGES},
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

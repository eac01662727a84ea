"""How much more does a machine serve when requests share its steps, and what does that cost each of them?

Method. All in one process per side, without HTTP. The sweep: 1 to 64 clients, each with a new request when its last one
has ended, questions of the bundled corpus with answers as long as the right ones, up to a limit; stages 03 and 04. Then
64 requests of mixed lengths at once, through the same model and attention in static batches and in continuous ones. And
eight requests that decode while a long prompt arrives: the longest any of them waits for a token, with the prompt taken
in pieces of the token budget, and in one piece.

Expectation. A decode step reads the weights once, however many requests are in it. So a step with B requests should
take what it takes with one, plus B - 1 times what a token costs in a prefill, those of its prompt included (the
prediction); attention comes on top, since every request has its own past to read. A static batch waits for its slowest
member, so its share of useful work is that of the mean length to the longest. And the gap that a prompt tears is as
long as the step that it is in.
"""

import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.documents import parts
from common.bench.engine_load import add, answer, engine_load
from common.bench.harness import Benchmark, Figures, Measured, curves
from common.bench.metrics import percentiles
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.steps import decoding
from common.bench.timing import free_memory
from common.bench.workloads import Job, corpus_jobs, mixed_lengths, mixed_pages, page_prompt
from common.engine import BaseEngine
from common.loader import Loaded
from common.stages import load_stage_module

BEFORE, NOW = "03_streaming", "04_continuous_batching"
RATE, DONE = "output_tokens_per_second", "mixed_finished_seconds"


def measure_streaming(settings: Settings, sizes: dict) -> Figures:
    return sweep(engine_of(BEFORE, settings.load(sizes.get("context_length"))), sizes)


def measure_continuous(settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load(sizes.get("context_length"))
    engine = slots(loaded, sizes["max_running"], sizes["token_budget"])
    figures = sweep(engine, sizes) | {"prefill_ms_per_token": prefill_ms_per_token(engine, sizes["prefill"])}
    del engine
    free_memory(loaded.device)
    figures |= mixed(slots(loaded, sizes["group"], sizes["token_budget"]), sizes)
    for budget in sizes["budgets"]:
        free_memory(loaded.device)
        found = arrivals(slots(loaded, sizes["decoding"] + 1, budget), sizes)
        figures |= {f"{name}_budget_{budget}": values for name, values in found.items()}
    return figures


def measure_static(settings: Settings, sizes: dict) -> Figures:
    static_batching = load_stage_module(NOW, "static_batching")
    loaded = settings.load(sizes.get("context_length"))
    return mixed(static_batching.StaticEngine(loaded, max_running=sizes["group"]), sizes)


def slots(loaded: Loaded, count: int, token_budget: int) -> BaseEngine:
    """Return this stage's engine, with memory for `count` slots."""
    memory = count * loaded.config.context_length * loaded.config.kv_bytes_per_token(loaded.dtype)
    return engine_of(NOW, loaded, max_running=count, token_budget=token_budget, kv_memory=memory)


def sweep(engine: BaseEngine, sizes: dict) -> Figures:
    """Return a value for each number of clients."""
    points = []
    most = max(sizes["clients"])  # warm-up with all slots: the first use of memory costs time
    engine_load(engine, corpus_jobs(engine.tokenizer, most, most_tokens=sizes["most_tokens"]), concurrency=most)
    for clients in sizes["clients"]:
        count = max(sizes["least_requests"], sizes["requests_each"] * clients)
        jobs = corpus_jobs(engine.tokenizer, count, most_tokens=sizes["most_tokens"])
        engine.trace.clear()
        result = engine_load(engine, jobs, concurrency=clients)
        tokens = sum(step.tokens for step in engine.trace)
        point = {
            "itl_p50_ms": 1e3 * percentiles(result.values("itl"))["p50"],
            RATE: result.throughput,
            "requests_per_step": sum(len(step.works) for step in engine.trace) / len(engine.trace),
            "rows_per_output_token": tokens / sum(job.max_tokens for job in jobs),
        }
        points.append(point)
    return curves(points)


def prefill_ms_per_token(engine: BaseEngine, tokens: int) -> float:
    """Return the ms of one more token in a step, from two steps that differ only in their number of tokens."""
    seconds = {}
    for length in (tokens // 2, tokens) * 3:
        answer(engine, page_prompt(engine, length), 1)
        seconds[length] = min(engine.trace[-1].seconds, seconds.get(length, float("inf")))
    return 1e3 * (seconds[tokens] - seconds[tokens // 2]) / (tokens - tokens // 2)


def mixed(engine: BaseEngine, sizes: dict) -> Figures:
    jobs = mixed_pages(engine, sizes["mixed"], **sizes.get("longest", {}))
    engine_load(engine, jobs, concurrency=len(jobs))  # warm-up
    result = engine_load(engine, jobs, concurrency=len(jobs))
    return {DONE: sorted(record.end - record.start for record in result.records)}


def arrivals(engine: BaseEngine, sizes: dict) -> Figures:
    """Return for each arriving prompt the longest gap between two tokens of the others, and its TTFT, in ms."""
    points = []
    for length in sizes["arriving"]:
        with decoding(engine, sizes["decoding"], prompt_tokens=16, tokens=4) as others:
            before = len(others[0].token_ids)
            arrived = add(engine, Job(page_prompt(engine, length), 1))
            while not arrived.finished:
                engine.step()
        # They share every step, so that their gaps are the same.
        moments = others[0].timings.tokens[before - 1 :]
        gap = max(after - before for before, after in pairwise(moments))
        points.append({"longest_gap_ms": 1e3 * gap, "ttft_ms": 1e3 * arrived.timings.time_to_first_token})
    return curves(points)


def derive(sizes: dict, measured: Measured, *_) -> Figures:
    clients, now = sizes["clients"], measured[NOW]
    token = now["prefill_ms_per_token"]
    rows = now["rows_per_output_token"]  # the token's own row, and its share of the prompt's rows
    added = [(n - 1) * token * each for n, each in zip(clients, rows, strict=True)]  # ms that the others add to a step
    alone, gap = 1e3 / now[RATE][0], now["itl_p50_ms"][0]  # ms for a token of a single client, with prompts and without
    most = sizes["decoding"] + sizes["arriving"][-1]
    longest = [min(budget, most) for budget in sizes["budgets"]]  # tokens in a step
    return {
        "predicted_tokens_per_second": [1e3 * n / (alone + ms) for n, ms in zip(clients, added, strict=True)],
        "predicted_step_ms": [gap + ms for ms in added],
        "predicted_longest_gap_ms": [gap + (tokens - 1) * token for tokens in longest],
    }


def draw(document: dict, png: Path) -> None:
    draw_sweep(document, png)
    draw_batching(document, png.with_stem(f"{png.stem}-batching"))


def draw_sweep(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
    clients, at = sizes["clients"], sizes["compared_clients"]
    before, now = (sides[side][RATE]["median"][clients.index(at)] for side in (BEFORE, NOW))
    message = f"When {at} clients share steps, throughput is {now / before:.1f} times as high"
    remark = (
        "Predicted: each further request adds to a step what its token and its share of its prompt cost in a prefill."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (throughput, gap):
        plots.predicted(throughput, clients, figures["predicted_tokens_per_second"], "predicted")
        for stage, label in ((BEFORE, "stage 03"), (NOW, "stage 04")):
            plots.line(throughput, clients, sides[stage][RATE], stage, label)
            plots.line(gap, clients, sides[stage]["itl_p50_ms"], stage, label)
        plots.axes(throughput, "clients at once", "output tokens per second", "Throughput of all together", clients)
        plots.axes(gap, "clients at once", "ms between two tokens, median", "The price: a longer gap for each", clients)


def draw_batching(document: dict, png: Path) -> None:
    sizes, sides, _ = parts(document)
    now, static = sides[NOW], sides["static"]
    message = "No request waits for the longest answer, nor for the longest prompt"
    remark = (
        f"Left: {sizes['mixed']} requests at once, {mixed_lengths(**sizes.get('longest', {}))}, at most "
        f"{sizes['group']} in a step.\nRight: {sizes['decoding']} requests decode while one prompt arrives; "
        "the longest that one of them waits for its next token."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (finished, gap):
        counts = list(range(1, sizes["mixed"] + 1))
        plots.steps(finished, static[DONE], counts, "static", "static")
        plots.steps(finished, now[DONE], counts, NOW, "continuous")
        plots.axes(finished, "seconds", "requests finished", "The same model, two ways to batch")
        finished.yaxis.get_major_locator().set_params(integer=True)
        *pieces, whole = sizes["budgets"]
        plots.line(gap, sizes["arriving"], now[f"longest_gap_ms_budget_{whole}"], "static", "in one piece")
        for i, budget in enumerate(pieces):
            figure = now[f"longest_gap_ms_budget_{budget}"]
            plots.line(gap, sizes["arriving"], figure, NOW, f"budget {budget}", dashed=i > 0)
        title = "Longest gap of the decoding requests"
        plots.axes(gap, "tokens of the arriving prompt", "milliseconds", title, sizes["arriving"])


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={BEFORE: measure_streaming, NOW: measure_continuous, "static": measure_static},
    derive=derive,
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

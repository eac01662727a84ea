"""What are draft tokens worth, at which batch size, and with which drafter?

Method. All in one process, without HTTP. For each batch size the same questions, as users ask them and as long as the
model answers them, go to stage 06 and to stage 07 with its two drafters, where it chooses how many tokens to draft, and
where it always drafts eight; in turn, forwards and backwards, so that a machine that changes its speed does so for all.
The same with prompts that ask for a copy. At batch size 1 the number of draft tokens is also fixed to each from 0 to 8.

Expectation. A pass over few tokens costs hardly more than over one, so in a small batch draft tokens are nearly free,
and with the acceptance rate a they bring 1 + a + a^2 + ... + a^k tokens a pass. From a and the time of a pass over n
tokens, measured alone, the speed-up can be predicted. In a large batch each token costs its share of arithmetic, and
every rejected one is a loss.

A real model gets its own sizes: it has no draft model, so prompt lookup drafts for it, and copies also share steps.
Reading its weights takes most of a pass, so draft tokens stay nearly free in larger batches. The prediction is the
lesson's formula, g T(B) / T((1 + d) B): with d draft tokens a pass of each request gains g tokens, both counted, and
T(n) is the time of a pass over n tokens, measured alone.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.documents import medians, parts
from common.bench.engine_load import engine_load, in_turn
from common.bench.harness import Benchmark, Figures, Measured, Unavailable, curves
from common.bench.metrics import LoadResult
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.timing import free_memory
from common.bench.workloads import Job, corpus_jobs
from common.checkpoints.corpus import passages
from common.engine import BaseEngine
from common.loader import Loaded, chat_prompt
from common.pass_times import PassTimes

BEFORE, NOW = "06_prefix_cache", "07_speculative"
ENGINES = {
    "stage_06": (BEFORE, {}),
    "draft_model": (NOW, {"draft": "draft"}),
    "lookup": (NOW, {"draft": "lookup"}),
    "always_8": (NOW, {"draft": "draft", "num_draft_tokens": 8}),
}
PASSES = (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 128, 256)  # tokens


def measure(settings: Settings, sizes: dict) -> Figures:
    loaded, figures = settings.load(), {}
    if loaded.tokenizer is None:
        raise Unavailable("what drafters guess is text, and this model has no tokenizer")
    engines = {name: ENGINES[name] for name in sizes["engines"]}
    runs = [compare(loaded, engines, questions(loaded, sizes, batch), batch, sizes) for batch in sizes["batches"]]
    for name in engines:
        figures |= {f"{name}_{figure}": values for figure, values in curves([run[name] for run in runs]).items()}
    if sizes["copies"]:
        copies = [compare(loaded, engines, copying(loaded, sizes), n, sizes) for n in sizes["copying_batches"]]
        figures |= {f"{name}_copying_tokens_per_second": copies[0][name]["tokens_per_second"] for name in engines}
        if len(copies) > 1:
            figures |= copies_in_batches(loaded, sizes, copies)
    if sizes["draft_tokens"]:
        figures |= curve(loaded, sizes)
    # What the headline compares: with a real model, lookup pays for copies and not for questions.
    first = copies[0] if sizes["engines"][1] == "lookup" else runs[0]
    return figures | {"compared": [first[name]["tokens_per_second"] for name in engines]}


def copies_in_batches(loaded: Loaded, sizes: dict, copies: Sequence[Mapping[str, Figures]]) -> Figures:
    """Return lookup's throughput of copies over stage 06 at each batch size, and what the formula says of it."""
    target = make_engine(NOW, loaded, {"draft": "lookup"}).scheduler.speculation.costs.target
    points = []
    for batch, run in zip(sizes["copying_batches"], copies, strict=True):
        mine, theirs = run["lookup"], run["stage_06"]
        predicted = mine["gained"] * target(batch) / target(batch * (1 + mine["drafted"]))
        speedup = mine["tokens_per_second"] / theirs["tokens_per_second"]
        points.append({"copying_speedup": speedup, "predicted_copying_speedup": predicted})
    return curves(points)


def make_engine(stage: str, loaded: Loaded, options: dict) -> BaseEngine:
    free_memory(loaded.device)  # The previous engine's memory must be free first.
    return engine_of(stage, loaded, kv_memory="1G", **options)


def compare(loaded: Loaded, engines: dict, jobs: Sequence[Job], batch: int, sizes: dict) -> dict[str, Figures]:
    """Run the jobs on an empty engine of each kind, in turn."""

    def run(name: str, number: int) -> tuple[LoadResult, Mapping[str, float]]:
        stage, options = engines[name]
        engine = make_engine(stage, loaded, options)
        result = engine_load(engine, jobs if number else jobs[:batch], concurrency=batch)
        return result, engine.stats()

    return {name: summary(results) for name, results in in_turn(engines, sizes["rounds"], run).items()}


def summary(runs: Sequence[tuple[LoadResult, Mapping[str, float]]]) -> Figures:
    results, (*_, stats) = zip(*runs, strict=True)
    records = [record for result in results for record in result.records]
    tokens, gaps = sum(record.output_tokens for record in records), sum((record.itl for record in records), [])
    drafted, accepted = (stats.get(f"{name}_tokens", 0) for name in ("draft", "accepted"))  # of the last run
    passes = sum(record.output_tokens for record in results[-1].records) - accepted  # each gives one token of its own
    return {
        "tokens_per_second": tokens / sum(result.seconds for result in results),
        "itl_ms": 1e3 * statistics.median(gaps),
        # Over all tokens, not over all requests: the short answers are also those that are easy to draft.
        "tpot_ms": 1e3 * sum(gaps) / (tokens - len(records)),
        "acceptance": 100 * accepted / (drafted or 1),
        "drafted": drafted / passes,
        "gained": 1 + accepted / passes,
    }


def questions(loaded: Loaded, sizes: dict, batch: int) -> list[Job]:
    """Return the first questions of one fixed list, more for a larger batch. The model ends its answers itself."""
    jobs = corpus_jobs(loaded.tokenizer, 2 * max(sizes["batches"]), most_tokens=sizes["most_tokens"], ignore_eos=False)
    return jobs[: max(sizes["least_jobs"], 2 * batch)]


def copying(loaded: Loaded, sizes: dict) -> list[Job]:
    """Return texts to be repeated, or rewritten with another name."""
    rng, jobs = Random("copies"), []
    while len(jobs) < sizes["copies"]:
        question, answer = passages.exchange(rng)
        length = len(loaded.tokenizer(answer)["input_ids"])
        if question.startswith(("Repeat", "Rewrite")) and length >= sizes["copy_tokens"]:
            jobs.append(Job(chat_prompt(loaded.tokenizer, question), sizes["most_tokens"], ignore_eos=False))
    return jobs


def curve(loaded: Loaded, sizes: dict) -> Figures:
    """Return the speed-up at batch size 1 for each fixed number of draft tokens, and what arithmetic predicts."""
    engines = {f"{k}": (NOW, {"draft": "draft", "num_draft_tokens": k}) for k in sizes["draft_tokens"]}
    runs = compare(loaded, engines, questions(loaded, sizes, 1)[: sizes["curve_jobs"]], 1, sizes)
    adaptive = make_engine(NOW, loaded, {"draft": "draft"})
    costs, predicted = adaptive.scheduler.speculation.costs, []
    for k in sizes["draft_tokens"]:
        # The rate counts judged tokens only: those behind a rejected token are not judged.
        share = acceptance_rate(runs[f"{k}"]["acceptance"] / 100, k)
        tokens = sum(share**i for i in range(k + 1))
        predicted.append(tokens * costs.target(1) / (costs.target(1 + k) + k * costs.draft(1)))
    return {
        "curve_speedup": [runs["0"]["tpot_ms"] / runs[f"{k}"]["tpot_ms"] for k in sizes["draft_tokens"]],
        "curve_predicted": predicted,
        "pass_ms": [1e3 * costs.target(n) for n in PASSES],
        "draft_pass_ms": [1e3 * costs.draft(n) for n in PASSES],
    }


def acceptance_rate(accepted: float, k: int) -> float:
    """Return the acceptance rate a for which (a + a^2 + ... + a^k) / k is the share of all draft tokens accepted."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(1, k + 1)) < accepted * k else (low, middle)
    return low


def derive(sizes: dict, measured: Measured, *_) -> Figures:
    now, figures = measured[NOW], {}
    for name in sizes["engines"][1:]:
        pairs = zip(now[f"{name}_tokens_per_second"], now["stage_06_tokens_per_second"], strict=True)
        figures[f"{name}_speedup"] = [mine / theirs for mine, theirs in pairs]
        copying, plain = (now[f"{engine}_copying_tokens_per_second"] for engine in (name, "stage_06"))
        figures[f"{name}_speedup_copying"] = copying / plain
    if "always_8" not in sizes["engines"]:
        return figures
    target, draft = (PassTimes(dict(zip(PASSES, now[f"{name}pass_ms"], strict=True))) for name in ("", "draft_"))
    pairs = zip(sizes["batches"], now["always_8_acceptance"], strict=True)
    return figures | {
        "predicted_always_8_speedup": [
            (1 + 8 * percent / 100) * target(batch) / (target(9 * batch) + 8 * draft(batch)) for batch, percent in pairs
        ]
    }


def report(document: dict) -> dict[str, list[list]]:
    _, sides, _ = medians(document)
    now, (_, *drafting) = sides[NOW], ENGINES
    alone = [
        ["one request at a time", *map(label, ENGINES)],
        ["tokens per second, questions", *(f"{now[f'{name}_tokens_per_second'][0]:,.0f}" for name in ENGINES)],
        ["tokens per second, copies", *(f"{now[f'{name}_copying_tokens_per_second']:,.0f}" for name in ENGINES)],
        ["draft tokens accepted", "", *(f"{now[f'{name}_acceptance'][0]:.0f} %" for name in drafting)],
        ["time per output token", *(f"{now[f'{name}_tpot_ms'][0]:.1f} ms" for name in ENGINES)],
        ["time between chunks", *(f"{now[f'{name}_itl_ms'][0]:.1f} ms" for name in ENGINES)],
    ]
    return {"alone": alone}


def label(name: str) -> str:
    return name.replace("_", " ")


def draw_copies(document: dict, png: Path) -> None:
    """Draw what lookup gives a real model, over the batch size."""
    sizes, sides, figures = parts(document)
    now = sides[NOW]
    times = now["copying_speedup"]["median"][0]
    message = f"Where an answer copies its prompt, lookup makes one stream {times:.1f} times as fast"
    remark = "Predicted: from the draft tokens of a pass, the tokens it gains, and the time of a pass over n tokens."
    with plots.page(png, document, message, columns=2, remark=remark) as panels:
        plots.line(panels[0], sizes["batches"], figures["lookup_speedup"], NOW, "lookup")
        plots.predicted(panels[1], sizes["copying_batches"], now["predicted_copying_speedup"], "predicted")
        plots.line(panels[1], sizes["copying_batches"], now["copying_speedup"], NOW, "lookup")
        for panel, name, title in zip(panels, ("batches", "copying_batches"), ("Questions", "Copies"), strict=True):
            panel.axhline(1, color=plots.REFERENCE, linewidth=1)
            panel.set_ylim(top=1.1 * max(now["copying_speedup"]["max"] + now["predicted_copying_speedup"]["max"]))
            plots.doubling(panel, sizes[name])
            plots.axes(panel, "requests at once", "throughput over stage 06", title)


def draw(document: dict, png: Path) -> None:
    if "always_8" not in document["sizes"]["engines"]:
        draw_copies(document, png)
        return
    sizes, sides, figures = parts(document)
    now = sides[NOW]
    stream, copy = figures["draft_model_speedup"]["median"][0], figures["lookup_speedup_copying"]["median"]
    message = f"Speculation makes one stream {stream:.1f} times as fast, and copying {copy:.1f} times"
    remark = (
        f"Questions in the chat template, answers of at most {sizes['most_tokens']} tokens. Stage 06 runs in the "
        "same process.\nPredicted: from the share of draft tokens accepted and from the time of a pass over n tokens, "
        "measured alone."
    )
    tints = {"stage_06": BEFORE, "draft_model": NOW, "lookup": NOW}  # the stage whose colour each one has
    with plots.page(png, document, message, columns=3, remark=remark) as (speedup, lengths, copies):
        speedup.axhline(1, color=plots.REFERENCE, linewidth=1)
        for name in sizes["engines"][1:]:
            figure, dashed = figures[f"{name}_speedup"], name == "lookup"  # It has the draft model's colour.
            plots.line(speedup, sizes["batches"], figure, tints.get(name, name), label(name), dashed=dashed)
        plots.doubling(speedup, sizes["batches"])
        plots.axes(speedup, "requests at once", "throughput over stage 06", "Questions")
        plots.predicted(lengths, sizes["draft_tokens"], now["curve_predicted"], "predicted")
        plots.line(lengths, sizes["draft_tokens"], now["curve_speedup"], NOW, "measured")
        plots.axes(lengths, "draft tokens in a step", "speed over none", "One request", sizes["draft_tokens"])
        heights = [now[f"{name}_copying_tokens_per_second"] for name in tints]
        plots.bars(copies, list(tints.values()), heights, ["stage\n06", "draft\nmodel", "lookup\n"])
        plots.axes(copies, "", "output tokens per second", "Copying")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={NOW: measure},
    derive=derive,
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""What are draft tokens worth, at which batch size, and with which drafter?

Method. All in one process, without HTTP. For each batch size the same questions, as users ask them and as long as the
model answers them, go to stage 06 and to stage 07 with its two drafters, where it chooses how many tokens to draft, and
where it always drafts eight; in turn, forwards and backwards, so that a machine that changes its speed does so for all.
The same with prompts that ask for a copy. At batch size 1 the number of draft tokens is also fixed to each from 0 to 8.

Expectation. A pass over few tokens costs hardly more than over one, so in a small batch draft tokens are nearly free,
and with the acceptance rate a they bring 1 + a + a^2 + ... + a^k tokens a pass. From a and the time of a pass over n
tokens, measured alone, the speed-up can be predicted. In a large batch each token costs its share of arithmetic, and
every rejected one is a loss.

Of a model with random weights no drafter can guess a token. There acceptance is simulated: the target's own greedy
tokens are recorded first, by stage 06 in the same batches, and then each is drafted, wrong with probability 1 - a.
Drafting itself costs nothing there. The prediction is the lesson's formula: (1 + a + ... + a^k) T(B) / T((1 + k) B),
where T(n) is the time of a pass in which n requests decode. Such a pass reads 1.2 GB of weights whatever n is, which
takes 0.1 s on two cores, and a token's arithmetic takes some 8 ms there: with k = 4, one request's pass should take
about a third longer and be worth 3.4 tokens at a = 0.8, and with 16 requests the arithmetic of 80 tokens should
take as long as what it saves.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.description import described
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.metrics import LoadResult
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.steps import decode_seconds
from common.bench.timing import free_memory
from common.bench.workloads import Job, corpus_jobs, random_prompt
from common.checkpoints.corpus import passages
from common.engine import BaseEngine
from common.loader import Loaded, chat_prompt
from common.model import ModelConfig
from common.pass_times import PassTimes
from common.request import Request
from common.sampling import SamplingParams

BEFORE, NOW = "06_prefix_cache", "07_speculative"
ENGINES = {
    "stage_06": (BEFORE, {}),
    "draft_model": (NOW, {"draft": "draft"}),
    "lookup": (NOW, {"draft": "lookup"}),
    "always_8": (NOW, {"draft": "draft", "num_draft_tokens": 8}),
}
DRAFTING = list(ENGINES)[1:]
PASSES = (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 128, 256)  # tokens


GOLDEN = (5**0.5 - 1) / 2  # its multiples, modulo 1, are spread evenly


class SimulatedDrafter:
    """Drafts the tokens that the target is known to give, each wrong with probability 1 - `acceptance`.

    answers: by the tokens of a prompt. (vLLM has a synthetic acceptance rate for the same purpose.) Which drafts are
    wrong, and where, is spread evenly and not drawn: some hundred drafts would be luckier than their rate, or less.
    """

    def __init__(self, answers: Mapping[tuple[int, ...], list[int]], acceptance: float):
        self.answers, self.acceptance, self.drafts = answers, acceptance, 0

    reads_prompts = False

    def prepare(self, chunks: Sequence) -> None:
        """Leave the room that chunks have: all of it will be filled, but behind an answer's end."""

    def draft(self, chunks: Sequence) -> None:
        """Fill the draft of each chunk, as a stage 07's drafter does."""
        for chunk in chunks:
            request = chunk.sequence.request
            known = self.answers[tuple(request.prompt_token_ids)][len(request.token_ids) :][: chunk.room]
            self.drafts += bool(known)
            chance = self.drafts * GOLDEN % 1  # the first i tokens are right with probability acceptance^i
            chunk.draft.token_ids = [token ^ (self.acceptance**i <= chance) for i, token in enumerate(known, 1)]


def simulated(settings: Settings, sizes: dict) -> Figures:
    """Return tokens a second of stage 06, and of stage 07 with each acceptance rate; and the times of passes."""
    loaded, figures = settings.load(), {}
    vocab_size, k = loaded.config.vocab_size, sizes["fixed"]
    params = SamplingParams(max_tokens=sizes["most_tokens"], ignore_eos=True)

    def run(name: str, engine: BaseEngine, batch: int) -> list[Request]:
        count = max(sizes["least_jobs"], batch)
        prompts = [random_prompt(sizes["prompt"], vocab_size, f"simulated {i}") for i in range(count)]
        requests = engine.generate(prompts, params)  # of which the engine runs `batch` at once
        seconds = max(request.timings.finished for request in requests) - requests[0].timings.arrival
        stats, point = engine.stats(), {"tokens_per_second": count * sizes["most_tokens"] / seconds}
        point["acceptance"] = 100 * stats.get("accepted_tokens", 0) / (stats.get("draft_tokens", 0) or 1)
        for figure, value in point.items():
            figures.setdefault(f"{name}_{figure}", []).append(value)
        return requests

    make_engine(BEFORE, loaded, {}).generate([[1, 2]], replace(params, max_tokens=4))  # warm-up
    for batch in sizes["batches"]:
        recorded = run("stage_06", make_engine(BEFORE, loaded, {"max_running": batch}), batch)
        answers = {tuple(request.prompt_token_ids): request.token_ids for request in recorded}
        for acceptance in sizes["acceptance"]:
            options = {"max_running": batch, "draft": "lookup", "num_draft_tokens": k}
            engine = make_engine(NOW, loaded, options)
            engine.drafter = SimulatedDrafter(answers, acceptance)
            run(simulated_name(acceptance), engine, batch)
    engine = make_engine(BEFORE, loaded, {"max_running": (1 + k) * max(sizes["batches"])})
    passes = [1e3 * decode_seconds(engine, tokens, sizes["prompt"], steps=5) for tokens in pass_sizes(sizes)]
    return figures | {"pass_ms": passes}


def simulated_name(acceptance: float) -> str:
    return f"simulated_{100 * acceptance:.0f}"


def pass_sizes(sizes: dict) -> list[int]:
    """Return the tokens of the passes of all batches, with and without draft tokens."""
    return sorted({tokens for batch in sizes["batches"] for tokens in (batch, (1 + sizes["fixed"]) * batch)})


def measure(settings: Settings, sizes: dict) -> Figures:
    if "acceptance" in sizes:
        return simulated(settings, sizes)
    loaded, figures = settings.load(), {}
    engines = {name: ENGINES[name] for name in sizes["engines"]}
    runs = [in_turn(loaded, engines, questions(loaded, sizes, batch), batch, sizes) for batch in sizes["batches"]]
    for name in engines:
        for figure in ("tokens_per_second", "itl_ms", "tpot_ms", "acceptance"):
            figures[f"{name}_{figure}"] = [run[name][figure] for run in runs]
    if sizes["copies"]:
        copies = in_turn(loaded, engines, copying(loaded, sizes), 1, sizes)
        figures |= {f"{name}_copying_tokens_per_second": copies[name]["tokens_per_second"] for name in engines}
    if sizes["draft_tokens"]:
        figures |= curve(loaded, sizes)
    return figures


def make_engine(stage: str, loaded: Loaded, options: dict) -> BaseEngine:
    free_memory(loaded.device)  # of the engine before it
    return engine_of(stage, loaded, kv_memory="1G", **options)


def in_turn(loaded: Loaded, engines: dict, jobs: Sequence[Job], batch: int, sizes: dict) -> dict[str, Figures]:
    """Run the jobs on an empty engine of each kind, in turn."""
    results: dict[str, list[LoadResult]] = {name: [] for name in engines}
    stats: dict[str, Mapping[str, float]] = {}
    for number in range(1 + sizes["rounds"]):
        for name in list(engines)[:: 1 if number % 2 else -1]:
            stage, options = engines[name]
            engine = make_engine(stage, loaded, options)
            result = engine_load(engine, jobs[:batch] if number == 0 else jobs, concurrency=batch)
            if number:  # the first is a warm-up
                results[name].append(result)
                stats[name] = engine.stats()
    return {name: summary(results[name], stats[name]) for name in engines}


def summary(results: Sequence[LoadResult], stats: Mapping[str, float]) -> Figures:
    tokens = sum(record.output_tokens for result in results for record in result.records)
    gaps = [gap for result in results for gap in result.values("itl")]
    records = [record for result in results for record in result.records]
    return {
        "tokens_per_second": tokens / sum(result.seconds for result in results),
        "itl_ms": 1e3 * statistics.median(gaps),
        # Over all tokens, not over all requests: the short answers are also those that are easy to draft.
        "tpot_ms": 1e3 * sum(gaps) / sum(record.output_tokens - 1 for record in records),
        "acceptance": 100 * stats.get("accepted_tokens", 0) / (stats.get("draft_tokens", 0) or 1),
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
    runs = in_turn(loaded, engines, questions(loaded, sizes, 1)[: sizes["curve_jobs"]], 1, sizes)
    adaptive = make_engine(NOW, loaded, {"draft": "draft"})
    costs, predicted = adaptive.scheduler.speculation.costs, []
    for k in sizes["draft_tokens"]:
        # Of the judged ones: those behind a rejected one are not judged.
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


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    now, figures = measured[NOW], {}
    if "acceptance" in sizes:
        return derive_simulated(sizes, now)
    for name in DRAFTING:
        pairs = zip(now[f"{name}_tokens_per_second"], now["stage_06_tokens_per_second"], strict=True)
        figures[f"{name}_speedup"] = [mine / theirs for mine, theirs in pairs]
        copies = (now[f"{engine}_copying_tokens_per_second"] for engine in (name, "stage_06"))
        figures[f"{name}_speedup_copying"] = next(copies) / next(copies)
    target, draft = (PassTimes(dict(zip(PASSES, now[f"{name}pass_ms"], strict=True))) for name in ("", "draft_"))
    pairs = zip(sizes["batches"], now["always_8_acceptance"], strict=True)
    return figures | {
        "predicted_always_8_speedup": [
            (1 + 8 * percent / 100) * target(batch) / (target(9 * batch) + 8 * draft(batch)) for batch, percent in pairs
        ]
    }


def derive_simulated(sizes: dict, now: Figures) -> Figures:
    """Return throughput over stage 06, and what the formula says of it."""
    seconds, figures, k = dict(zip(pass_sizes(sizes), now["pass_ms"], strict=True)), {}, sizes["fixed"]
    for acceptance in sizes["acceptance"]:
        name = simulated_name(acceptance)
        pairs = zip(now[f"{name}_tokens_per_second"], now["stage_06_tokens_per_second"], strict=True)
        figures[f"{name}_speedup"] = [mine / theirs for mine, theirs in pairs]
        gained = sum(acceptance**i for i in range(k + 1))
        times = [seconds[batch] / seconds[(1 + k) * batch] for batch in sizes["batches"]]
        figures[f"predicted_{name}_speedup"] = [gained * each for each in times]
    return figures


def headline(sizes: dict, side: Figures) -> dict[str, float]:
    drafting = simulated_name(sizes["acceptance"][-1]) if "acceptance" in sizes else "draft_model"
    return {name: side[f"{name}_tokens_per_second"][0] for name in ("stage_06", drafting)}


HEADLINE = Headline("questions, one request at a time", "output tokens/s", (NOW,), headline)


def report(document: dict) -> dict[str, list[list]]:
    if "acceptance" in document["sizes"]:
        return {"simulated": report_simulated(document["sizes"], document["figures"])}
    now = {name: each["median"] for name, each in document["sides"][NOW].items()}
    alone = [
        ["one request at a time", *map(label, ENGINES)],
        ["tokens per second, questions", *(f"{now[f'{name}_tokens_per_second'][0]:,.0f}" for name in ENGINES)],
        ["tokens per second, copies", *(f"{now[f'{name}_copying_tokens_per_second']:,.0f}" for name in ENGINES)],
        ["draft tokens accepted", "", *(f"{now[f'{name}_acceptance'][0]:.0f} %" for name in DRAFTING)],
        ["time per output token", *(f"{now[f'{name}_tpot_ms'][0]:.1f} ms" for name in ENGINES)],
        ["time between chunks", *(f"{now[f'{name}_itl_ms'][0]:.1f} ms" for name in ENGINES)],
    ]
    batches = [["throughput over stage 06, by requests at once", *document["sizes"]["batches"]]]
    for name in DRAFTING:
        batches.append([label(name), *(f"{ratio:.2f}" for ratio in document["figures"][f"{name}_speedup"]["median"])])
    return {"alone": alone, "batches": batches}


def report_simulated(sizes: dict, figures: dict) -> list[list]:
    rows = [["throughput over stage 06, by requests at once", *sizes["batches"]]]
    for acceptance in sizes["acceptance"]:
        for title, kind in (("measured", ""), ("predicted", "predicted_")):
            speedups = figures[f"{kind}{simulated_name(acceptance)}_speedup"]["median"]
            rows.append([f"a = {acceptance} (simulated), {title}", *(f"{speedup:.2f}" for speedup in speedups)])
    return rows


def label(name: str) -> str:
    return name.replace("_", " ")


def draw_simulated(document: dict, png: Path) -> None:
    sizes, figures = document["sizes"], document["figures"]
    batches, likely = sizes["batches"], max(sizes["acceptance"])
    first = figures[f"{simulated_name(likely)}_speedup"]["median"][0]
    message = f"Right with probability {likely}, draft tokens make one stream {first:.1f} times as fast"
    remark = (
        f"Simulated acceptance: the target's own tokens, recorded first, are drafted, {sizes['fixed']} in a step, each "
        "wrong with probability 1 - a, at no cost.\nPredicted: (1 + a + a^2 + ...) T(B) / T((1 + k) B), from the times "
        "of passes that decode, measured alone."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (speedup, passes):
        speedup.axhline(1, color=plots.REFERENCE, linewidth=1)
        for acceptance, side in zip(sizes["acceptance"], (BEFORE, NOW), strict=False):
            name = simulated_name(acceptance)
            plots.predicted(speedup, batches, figures[f"predicted_{name}_speedup"], "_predicted")
            plots.line(speedup, batches, figures[f"{name}_speedup"], side, f"a = {acceptance}")
        plots.doubling(speedup, batches)
        plots.axes(speedup, "requests at once; dashed: predicted", "throughput over stage 06", "Speed-up")
        tokens = pass_sizes(sizes)
        plots.line(passes, tokens, document["sides"][NOW]["pass_ms"], NOW, "measured")
        passes.axhline(document["sides"][NOW]["pass_ms"]["median"][0], color=plots.REFERENCE, linewidth=1)
        plots.axes(passes, "tokens in a pass", "milliseconds", "What a pass takes")


def draw(document: dict, png: Path) -> None:
    if "acceptance" in document["sizes"]:
        draw_simulated(document, png)
        return
    sizes, now, figures = document["sizes"], document["sides"][NOW], document["figures"]
    stream, copy = figures["draft_model_speedup"]["median"][0], figures["lookup_speedup_copying"]["median"]
    message = f"Speculation makes one stream {stream:.1f} times as fast, and copying {copy:.1f} times"
    remark = (
        f"Questions in the chat template, answers of at most {sizes['most_tokens']} tokens. Stage 06 runs in the "
        "same process.\nPredicted: from the share of draft tokens accepted and from the time of a pass over n tokens, "
        "measured alone."
    )
    tints = {"stage_06": BEFORE, "draft_model": NOW, "lookup": NOW}  # whose colour each has
    with plots.page(png, document, message, columns=3, remark=remark) as (speedup, lengths, copies):
        speedup.axhline(1, color=plots.REFERENCE, linewidth=1)
        for name in DRAFTING:
            figure, dashed = figures[f"{name}_speedup"], name == "lookup"  # which has the stage's colour, too
            plots.line(speedup, sizes["batches"], figure, tints.get(name, name), label(name), dashed=dashed)
        plots.doubling(speedup, sizes["batches"])
        plots.axes(speedup, "requests at once", "throughput over stage 06", "Questions")
        plots.predicted(lengths, sizes["draft_tokens"], now["curve_predicted"], "predicted")
        plots.line(lengths, sizes["draft_tokens"], now["curve_speedup"], NOW, "measured")
        lengths.set_xticks(sizes["draft_tokens"])
        plots.axes(lengths, "draft tokens in a step", "speed over none", "One request")
        heights = [now[f"{name}_copying_tokens_per_second"] for name in tints]
        plots.bars(copies, list(tints.values()), heights, ["stage\n06", "draft\nmodel", "lookup\n"])
        plots.axes(copies, "", "output tokens per second", "Copying")


BENCHMARK = Benchmark(
    **described(__file__),
    description=__doc__,
    sides={NOW: measure},
    derive=derive,
    draw=draw,
    headline=HEADLINE,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

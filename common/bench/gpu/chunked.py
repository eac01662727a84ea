"""How long do those who decode wait while a long prompt arrives? A small token budget against a large one.

Method. Eight requests decode; one long prompt arrives; the longest time between two tokens of the others until it has
its first token, and that time itself, each the median of several arrivals. Stage 04, which brought chunked prefill, and
stage 06, which has pages and a kernel for them; each with a budget in which the prompt is one piece, and with one that
cuts it up. What the others wait for usually, with no prompt there, is the line at the bottom.

Expectation. In one piece the gap is as long as the prefill: 2 FLOPs for each parameter and token at the rate of a large
matrix product (the prediction). Cut up, a gap is as long as a piece, whatever the prompt. On a GPU a piece should be so
large that its arithmetic takes longer than reading the weights, some 300 tokens.
"""

import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.harness import spread
from common.bench.predict import step_flops
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.sampling import SamplingParams

from .run import Run, free_memory

STAGES = {"04_continuous_batching": "Stage 04: slots", "06_prefix_cache": "Stage 06: pages"}
SIZES: dict[str, Any] = {
    "model": "Qwen3-8B",
    "decoding": 8,
    "arriving": [1024, 2048, 4096, 8192],  # tokens of the prompt
    "budgets": [512, 16_384],  # small and large
    "repeats": 3,
    "context_length": 10_240,  # of the model's own only so much, since stage 04 has a slot of that size for everybody
}
TINY = SIZES | {
    "model": "tiny",
    "decoding": 2,
    "arriving": [32, 128],
    "budgets": [16, 256],
    "repeats": 2,
    "context_length": 512,
}


def measure(run: Run) -> None:
    sizes = run.sizes
    loaded = run.load(sizes["model"])
    loaded.config = replace(loaded.config, context_length=sizes["context_length"])
    _, flops_per_second = run.ceilings()
    run.keep(
        predicted_ms=[1e3 * step_flops(loaded.config, length) / flops_per_second for length in sizes["arriving"]],
    )
    kv_memory = 2 * sizes["context_length"] * sizes["decoding"] * loaded.config.kv_bytes_per_token(loaded.dtype)
    sides: dict[str, dict[str, Any]] = {stage: {} for stage in STAGES}
    for stage in STAGES:
        for budget in sizes["budgets"]:
            engine = run.engine(
                stage, loaded, max_running=sizes["decoding"] + 1, token_budget=budget, kv_memory=kv_memory
            )
            arrivals(engine, sizes, "warm-up")
            rounds = [arrivals(engine, sizes, number) for number in range(sizes["repeats"])]
            figures = {name: spread([one[name] for one in rounds]) for name in rounds[0]}
            sides[stage][str(budget)] = figures
            run.keep(sides=sides)
            longest = figures["gap_ms"]["median"][-1]
            run.say(f"{stage}, budget {budget}: {sizes['arriving'][-1]} tokens arrive, a gap of {longest:.0f} ms")
            del engine
            free_memory(run.device)
    small, large = (sides["06_prefix_cache"][str(budget)]["gap_ms"]["median"][-1] for budget in sizes["budgets"])
    run.headline(**{"gap in one piece over gap in pieces": large / small})


def arrivals(engine: BaseEngine, sizes: dict[str, Any], number: int | str) -> dict[str, list[float]]:
    """For each length of the arriving prompt, in ms: the longest gap of the others, their usual one, and its TTFT."""
    figures: dict[str, list[float]] = {"gap_ms": [], "usual_gap_ms": [], "ttft_ms": []}
    vocab_size, endless = engine.config.vocab_size, SamplingParams(max_tokens=None, ignore_eos=True)
    for length in sizes["arriving"]:
        others = [
            engine.add(random_prompt(16, vocab_size, f"{number} {length} {i}"), endless)
            for i in range(sizes["decoding"])
        ]
        while not all(len(other.token_ids) > 12 for other in others):
            engine.step()
        usual = gaps(others[0].timings.tokens[4:])
        before = len(others[0].token_ids)
        prompt = random_prompt(length, vocab_size, f"{number} {length}")  # which no prefix cache has seen
        arrived = engine.add(prompt, SamplingParams(max_tokens=1))
        while not arrived.finished:
            engine.step()
        engine.step()  # if steps overlap, the others' token of that step comes with the next
        # They share every step, so that their gaps are the same.
        figures["gap_ms"].append(max(gaps(others[0].timings.tokens[before - 1 :])))
        figures["usual_gap_ms"].append(statistics.median(usual))
        figures["ttft_ms"].append(1e3 * arrived.timings.time_to_first_token)
        for other in others:
            engine.abort(other.request_id)
    return figures


def gaps(moments: list[float]) -> list[float]:
    """Milliseconds from one token to the next."""
    return [1e3 * (after - before) for before, after in pairwise(moments)]


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    sizes, figures = document["sizes"], document["figures"]
    arriving, (small, large) = sizes["arriving"], sizes["budgets"]
    newest = figures["sides"]["06_prefix_cache"]
    whole, pieces = (newest[str(budget)]["gap_ms"]["median"][-1] for budget in (large, small))
    message = f"{arriving[-1]:,} tokens arrive: in pieces, the others wait {pieces:.0f} ms and not {whole:.0f}"
    remark = (
        f"{sizes['decoding']} requests decode while one prompt arrives: the longest that one waits for its next token, "
        f"medians of {sizes['repeats']} arrivals.\nPredicted: the arithmetic of the prompt at the rate of a large "
        "matrix product on this device."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as panels:
        for panel, (stage, title) in zip(panels, STAGES.items(), strict=True):
            side = figures["sides"][stage]
            plots.doubling(panel, arriving)
            plots.predicted(panel, arriving, {"median": figures["predicted_ms"]}, "predicted")
            plots.line(panel, arriving, side[str(large)]["gap_ms"], "static", "in one piece")
            plots.line(panel, arriving, side[str(small)]["gap_ms"], stage, f"in pieces\nof {small}")
            plots.line(panel, arriving, side[str(small)]["usual_gap_ms"], stage, "no prompt", dashed=True)
            plots.logarithmic(panel)
            plots.axes(panel, "tokens of the arriving prompt", "milliseconds", title)
        limits = [limit for panel in panels for limit in panel.get_ylim()]
        for panel in panels:
            panel.set_ylim(min(limits), max(limits))

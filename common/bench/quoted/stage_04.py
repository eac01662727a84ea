"""Figures of lesson 04."""

import torch

from . import stage_03
from .passages import Claim, Given, Once, Passage, Quote
from .sources import Results, by, config
from .tasks import build_it


def declared() -> list[Passage]:
    return [*build_it("04"), *stage_03.problem(), *measured(), *when_it_loses()]


def measured() -> list[Passage]:
    results = Results("04_continuous_batching")
    clients, figures, static = results.sizes.clients, results.figures, results.sides["static"]
    sides = results.sides["03_streaming"], results.sides["04_continuous_batching"]
    rate = [by(clients, each.output_tokens_per_second) for each in sides]
    rate.append(by(clients, figures.predicted_tokens_per_second))
    gap = [by(clients, each.itl_p50_ms) for each in sides]
    median = [by(clients, each.e2el_p50_seconds)[32] for each in sides]
    batch = by(clients, sides[1].requests_per_step)
    delay = {budget: longest_gap(results, budget) for budget in (4096, 256, 64)}
    rows = [
        Quote(
            f"| {count} | {{:,.0f}} | {{:,.0f}} | {{:,.0f}} | {{:.1f}} ms | {{:.1f}} ms |",
            *(each[count] for each in (*rate, *gap)),
        )
        for count in (1, 8, 32, 64)
    ]
    return [
        Claim("Measured on two CPU cores, in float32, without HTTP, medians of three repeats", results.as_stated),
        *rows,
        Quote("With 32 clients that is {:.1f} times stage 03's throughput", figures.throughput_ratio_at_32),
        Quote("the median answer is complete after {:.2f} seconds instead of {:.1f}", *reversed(median)),
        Claim("That is half of the prediction", rate[1][32] / rate[2][32], 0.45, 0.6),
        Quote("a step holds {:.1f} requests with 32 clients, and {:,.0f} with 64", batch[32], batch[64]),
        Quote(
            "On requests of mixed lengths, {} at a time, continuous batching gives {:.1f} times the throughput of "
            "static batches, where {:,.0f} percent of all tokens run are padding",
            results.sizes.group,
            figures.continuous_over_static,
            static.mixed_padding_percent,
        ),
        Quote(
            "A prompt of {:,} tokens that arrives while eight requests decode delays them by {:,.0f} ms when it runs "
            "in one piece, by {:,.0f} ms under a token budget of 256, and by {:,.0f} ms under one of 64.",
            results.sizes.arriving[-1],
            *delay.values(),
        ),
        Claim("while eight requests decode", results.sizes.decoding, 8, 8),
        Quote("{:,.0f} tokens a second instead of {:,.0f}.", rate[1][1], rate[0][1]),
        Claim("scheduling and masking cost something", rate[0][1] / rate[1][1], 1.02),
        Quote(
            "A budget of 64 makes it {:,.0f} ms instead of {:,.0f}. (With 256 it is {:,.0f}",
            *(first_token(results, budget) for budget in (64, 4096, 256)),
        ),
        Claim("comes hardly later", first_token(results, 64) / first_token(results, 4096), 0.95, 1.05),
        Claim("even less than in one piece", first_token(results, 4096) / first_token(results, 256), 1.02),
    ]


def longest_gap(results: Results, budget: int) -> float:
    """Return milliseconds beside the longest prompt that arrives."""
    return vars(results.sides["04_continuous_batching"])[f"longest_gap_ms_budget_{budget}"][-1]


def first_token(results: Results, budget: int) -> float:
    return vars(results.sides["04_continuous_batching"])[f"ttft_ms_budget_{budget}"][-1]


def when_it_loses() -> list[Passage]:
    target, qwen = config("target"), config("configs/Qwen3-0.6B")
    slot = target.context_length * target.kv_bytes_per_token(torch.float32)
    large = qwen.context_length * qwen.kv_bytes_per_token(torch.bfloat16)
    used = 100 * 100 / target.context_length
    return [
        Quote("a whole context of {:,} tokens, {:.1f} MB", target.context_length, slot / 1e6),
        Quote("32 slots take {:.2f} GB", 32 * slot / 1e9),
        Quote("Qwen3-0.6B, {:,} tokens, takes {:.1f} GB in bfloat16", qwen.context_length, large / 1e9),
        Quote("its answer of 100 tokens use {:.1f} percent of their slot", used),
        Quote("about the other {:.1f}.", 100 - used),
        Quote("With a budget of 256 and two decodes, C gets {} tokens a step", 256 - 2),
        Claim("is done after eight", -(-2000 // 254), 8, 8),
        Once(
            "slot_attention.py: no benchmark repeats it", "On a CPU a call costs as much as reading about 300 tokens."
        ),
        Once(
            "an exercise's answer, counted with the change that it asks for",
            "With 12 requests in a step on average (prompts of 5 to 200 tokens, outputs of 5 to 120), the lowest slot "
            "makes 2.4 calls per step, and the one that has been free longest 5.9.",
        ),
        Given("for the reader", "Time: about 15 minutes to read, 90 to do."),
        Given("an estimate by its tokens", "this step would take a hundred times as long"),
    ]

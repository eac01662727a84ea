"""Figures of lesson 06."""

from .passages import Claim, Given, Passage, Quote
from .sources import STATED, Results, by
from .tasks import build_it

NAMES = "05_paged_attention", "06_prefix_cache"


def declared() -> list[Passage]:
    results = Results("06_prefix_cache")
    return [
        *build_it("06"),
        *measured(results),
        *when_it_loses(results),
        Given("for the reader", "15 minutes to read, 75 to do."),
    ]


def measured(results: Results) -> list[Passage]:
    sizes, figures = results.sizes, results.figures
    before, now = (results.sides[name] for name in NAMES)
    turns = [each.turn_ttft_ms[-1] for each in (now, before)]
    same_work = max(before.ttft_ms) / min(before.ttft_ms)
    return [
        Claim(f"Measured {STATED}", results.as_stated),
        Quote("What does it cost to look for {} pages and find none?", -(-sizes.prompt // 16) - 1),
        Quote("{:,.0f} percent of a prompt of {:,} tokens is cached", sizes.shared_percent[-1], sizes.prompt),
        Quote("| shared part of a prompt of {:,} tokens | {} % | {} % | {} % |", sizes.prompt, *sizes.shared_percent),
        Quote("| first token, stage 05 | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *before.ttft_ms),
        Quote("| first token, stage 06 | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *now.ttft_ms),
        Quote("| tokens a second, stage 05 | {:,.0f} | {:,.0f} | {:,.0f} |", *before.tokens_per_second),
        Quote("| tokens a second, stage 06 | {:,.0f} | {:,.0f} | {:,.0f} |", *now.tokens_per_second),
        Quote(
            "At 90 percent the first token comes {:.1f} times sooner, and throughput is {:.1f} times stage 05's,",
            figures.ttft_ratio_at_90,
            figures.throughput_ratio_at_90,
        ),
        Claim("Not ten times sooner", figures.ttft_ratio_at_90, 2, 9.6),
        Claim("the same work in all three columns", same_work, 1, 1.5),
        Quote("In the eighth turn of a chat, the first token comes after {:,.0f} ms instead of {:,.0f}", *turns),
        Claim("In the eighth turn", sizes.turns, 8, 8),
    ]


def when_it_loses(results: Results) -> list[Passage]:
    sizes, now = results.sizes, results.sides["06_prefix_cache"]
    at_random, in_turn = (by(sizes.working_sets, each)[2] for each in (now.random_hit_percent, now.in_turn_hit_percent))
    return [
        Quote("the difference is {:.1f} percent of the time to first token", results.figures.percent_lost_at_0),
        Claim("too little to measure here", results.figures.percent_lost_at_0, -2, 2),
        Quote("picked at random, {:,.0f} percent of the tokens are found; in turn, none", at_random),
        Claim("in turn, none", in_turn, 0, 0),
        Quote("each find {} tokens, {} pages, with 16.", 200 // 16 * 16, 200 // 16),
    ]

"""Figures of lesson 07."""

from common.stages import load_stage_module

from .passages import Claim, Given, Passage, Quote
from .sources import STATED, Results, by, config
from .tasks import build_it, tasks

PASSES = load_stage_module("07", "benchmark").PASSES  # tokens
P, Q = (0.6, 0.3, 0.1), (0.3, 0.6, 0.1)  # of three words: the target's distribution and the drafter's


def declared() -> list[Passage]:
    results = Results("07_speculative")
    return [*build_it("07"), *rejection(), *formula(), *measured(results), *curve(results), *when_it_loses(results)]


def rejection() -> list[Passage]:
    accepted = [min(p, q) for p, q in zip(P, Q, strict=True)]
    share = sum(accepted)
    wrong = [each + (1 - share) * p for each, p in zip(accepted, P, strict=True)]
    return [
        Quote("p = ({}, {}, {}) and q = ({}, {}, {}).", *P, *Q),
        Quote("the positive part of p - q, ({:.1f}, 0, 0)", P[0] - Q[0]),
        Quote("with probability {:.1f} + {:.1f} = {:.1f}, the", accepted[0], 1 - share, accepted[0] + 1 - share),
        Quote("the second with {:.1f} x 0.5 = {:.1f}, and the third with {:.1f}.", Q[1], accepted[1], accepted[2]),
        Quote("**acceptance rate** is {:.1f} + {:.1f} + {:.1f} = {:,.0f} percent.", *accepted, 100 * share),
        Quote("{:.1f}, {:.1f} and {:.1f} come from accepted tokens, and {:.1f} is drawn", *accepted, 1 - share),
        Quote("from p: {:.2f}, {:.2f} and {:.2f} instead of {:.1f}, {:.1f} and {:.1f}.", *wrong, *P),
        Given("for the reader", "Time: about 30 minutes to read, 90 to do, in two sittings"),
    ]


def formula() -> list[Passage]:
    high, low, cost = [0.8**i for i in range(5)], [0.3**i for i in range(5)], 1.6 + 4 * 0.15
    return [
        Quote("For a = 0.8 and k = 4 that is 1 + {:.1f} + {:.2f} + {:.3f} + {:.4f} = {:.2f}", *high[1:], sum(high)),
        Given("the example's costs", "takes 1.6 times as long as one over 1, and each draft token 0.15 of it"),
        Given("the example's pass", "If the pass over 5 tokens"),
        Quote("1.6 + 4 x 0.15 = {:.1f} times as long: {:.2f} / {:.1f} =", cost, sum(high), cost),
        Quote("= {:.2f} times as fast.", sum(high) / cost),
        Quote("For a = 0.3 it is {:.2f} / {:.1f} = {:.2f}: slower", sum(low), cost, sum(low) / cost),
        Quote("{} of them in 07a", sum(task.sitting.startswith("07a") for task in tasks("07"))),
        Given("AdaptiveSpeculation's LEAST_GAIN", "a gain of 5 percent"),
    ]


def measured(results: Results) -> list[Passage]:
    sizes, figures, now = results.sizes, results.figures, results.sides["07_speculative"]
    passes = by(PASSES, now.pass_ms)
    cells = " {:.2f} |" * len(sizes.batches)
    milliseconds = " {:.1f} ms |" * len(sizes.batches)
    pairs = zip(figures.draft_model_speedup, figures.always_8_speedup, strict=True)
    return [
        Claim(f"Measured {STATED}", results.as_stated),
        Quote("A client alone on stage 06 waits {:.1f} ms for each token", now.stage_06_tpot_ms[0]),
        Quote("a pass over 8 tokens takes only {:.1f} times as long as one over a single", passes[8] / passes[1]),
        Quote("has {} layers where the target has {}.", config("draft").num_layers, config("target").num_layers),
        Quote("| requests at once |" + " {} |" * len(sizes.batches), *sizes.batches),
        Quote("| draft model, tokens a second over stage 06 |" + cells, *figures.draft_model_speedup),
        Quote("| prompt lookup |" + cells, *figures.lookup_speedup),
        Quote("| always 8 draft tokens |" + cells, *figures.always_8_speedup),
        Quote("| time per output token, stage 06 |" + milliseconds, *now.stage_06_tpot_ms),
        Quote("| time per output token, draft model |" + milliseconds, *now.draft_model_tpot_ms),
        Quote(
            "With one request the draft model makes the stream {:.1f} times as fast.", figures.draft_model_speedup[0]
        ),
        Claim("the draft model makes the stream", figures.draft_model_speedup[0], 1.15),
        Claim("lookup makes it", figures.lookup_speedup_copying, 1.15),
        Quote("lookup makes it {:.1f} times as fast without any model", figures.lookup_speedup_copying),
        Quote("up to {:.1f} times the throughput of always drafting 8", max(ours / always for ours, always in pairs)),
    ]


def curve(results: Results) -> list[Passage]:
    now = results.sides["07_speculative"]
    speedup, predicted, accepted = (
        by(results.sizes.draft_tokens, values)
        for values in (now.curve_speedup, now.curve_predicted, now.curve_acceptance)
    )
    some, best = (1, 3, 8), max(speedup.values())
    return [
        Quote("the curve over k rises from {:.2f} at k = 1 to {:.2f} at k = 3, stays", speedup[1], speedup[3]),
        Quote("by {:.0f} percent at k = 8 ({:.2f}), where", 100 * (1 - speedup[8] / speedup[3]), speedup[8]),
        Quote("where arithmetic says {:.2f}, {:.2f} and {:.2f}", *(predicted[k] for k in some)),
        Claim("the curve over k rises", speedup[3], best, best),
        Claim("stays there up to k = 5", min(speedup[4], speedup[5]) / best, 0.97),
        Claim("then falls, step by step", speedup[5] > speedup[6] > speedup[7] > speedup[8]),
        Quote(
            "The target accepts {:,.0f} percent of first draft tokens, but of eight only {:,.0f} percent",
            accepted[1],
            accepted[8],
        ),
    ]


def when_it_loses(results: Results) -> list[Passage]:
    figures, now = results.figures, results.sides["07_speculative"]
    always, adaptive = (
        by(results.sizes.batches, values) for values in (figures.always_8_speedup, figures.draft_model_speedup)
    )
    passes = by(PASSES, now.pass_ms)
    many = [speedup for batch, speedup in adaptive.items() if batch >= 4]
    return [
        Quote("always drafting 8 pays for one request alone ({:.2f})", always[1]),
        Claim("pays for one request alone", always[1], 1.05),
        Claim("pays for one request alone", max(always[batch] for batch in always if batch > 1), 0, 1),
        Quote("these questions, it gives {:.2f} to {:.2f}", min(figures.lookup_speedup), max(figures.lookup_speedup)),
        Quote("With 32 requests it keeps {:,.0f} percent of stage 06's throughput", 100 * always[32]),
        Quote("a pass over 256 tokens takes {:.1f} times as long as one over 32", passes[256] / passes[32]),
        Quote("keeps {:.2f} to {:.2f} of that throughput", min(many), max(many)),
        Claim("falls to 0 in time", min(many), 0.95),
        Quote("16 tokens take {:.1f} times as long as 8", passes[16] / passes[8]),
        Claim("The draft model cannot copy numbers.", figures.draft_model_speedup_copying, 0, 0.99),
        Claim("Where an answer repeats the prompt, always drafting 8", figures.always_8_speedup_copying, 0, 0.9),
        Quote(
            "always drafting 8 gives {:.2f} of stage 06's speed, and the adaptive number {:.2f}",
            figures.always_8_speedup_copying,
            figures.draft_model_speedup_copying,
        ),
        Quote(
            "a chunk every {:.1f} ms instead of a token every {:.1f} ms",
            now.draft_model_itl_ms[0],
            now.stage_06_itl_ms[0],
        ),
    ]

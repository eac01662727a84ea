"""Figures in the questions of `course.py predict`: what a guess may begin with."""

import numpy
import torch

from ..cost_model import block_parameters, head_parameters, parameters
from .passages import Passage, Quote
from .sources import Results, by, config
from .stage_01 import tokens_run
from .stage_07 import PASSES

STAGE_04, STAGE_05 = "04_continuous_batching", "05_paged_attention"


def naive() -> list[Passage]:
    target = config("target")
    pairs = 2 * target.num_layers * target.num_heads * target.head_dim
    million = [2 * each(target) / 1e6 for each in (block_parameters, head_parameters)]
    return [Quote("{:.1f} million x S + {:,} x S^2 + {:.1f} million", million[0], pairs, million[1])]


def kv_cache() -> list[Passage]:
    results, target = Results("02_kv_cache"), config("target")
    before, now = (by(results.sizes.lengths, each.ms_per_token) for each in list(results.sides.values())[:2])
    read = parameters(target) * torch.float32.itemsize
    return [
        Quote("stage 01 runs {:,} tokens and stage 02 runs {}.", tokens_run(32, 256), 32 + 255),
        Quote(
            "one more token after 512 takes {:,.0f} ms without the cache and {:.1f} ms with it", before[512], now[512]
        ),
        Quote("reads {:.1f} MB of weights", read / 1e6),
        Quote("K and V of each token before it: {:,} bytes", target.kv_bytes_per_token(torch.float32)),
        Quote("{} layers, {} K/V heads of dimension {}, 4 bytes", target.num_layers, target.num_kv_heads, 64),
    ]


def continuous_batching() -> list[Passage]:
    results = Results(STAGE_04)
    side = results.sides[STAGE_04]
    share = 5 * round(by(results.sizes.clients, side.itl_p50_ms)[1] / side.prefill_ms_per_token / 5)
    return [
        Quote("Each token more in a step takes about 1/{} of", share),
        Quote("a token more in a step takes about 1/{} of the time", share),
        Quote("takes a step with one request, and 1/{} of that", share),
    ]


def paged_attention() -> list[Passage]:
    results, target = Results(STAGE_05), config("target")
    slot = target.context_length * target.kv_bytes_per_token(torch.float32)
    step = results.sides[STAGE_05].step_total_ms
    return [
        Quote("slot: {:,} tokens, {:.1f} MB", target.context_length, slot / 1e6),
        Quote("a request has {:.0f} tokens on average", (16 + 256) / 2 + (16 + 128) / 2 / 2),
        Quote("with one request takes {:.0f} ms, and one with 24", step[0]),
        Quote("one with 24 takes about {:.0f}.", numpy.interp(24, results.sizes.batches, step)),
    ]


def speculative() -> list[Passage]:
    results = Results("07_speculative")
    now = results.sides["07_speculative"]
    accepted = by(results.sizes.draft_tokens, now.curve_acceptance)
    taken = {tokens: numpy.interp(tokens, PASSES, now.pass_ms) for tokens in (1, 2, 3, 4, 5, 9, 16, 36, 144)}
    relative = [taken[tokens] / taken[1] for tokens in (2, 3, 5, 9)]
    several = [taken[tokens] for tokens in (1, 9, 36, 144)]
    return [
        Quote("the target accepts about {:.0f} percent", 5 * round(accepted[1] / 5)),
        Quote("a pass over 2, 3, 5, 9 tokens takes {:.1f}, {:.1f}, {:.1f}, {:.1f} on the course's", *relative),
        Quote("A pass of the draft model takes {:.2f}", now.draft_pass_ms[0] / taken[1]),
        Quote("Of 8 draft tokens {:.0f} percent are accepted", accepted[8]),
        Quote("a pass over 1, 9, 36, 144 tokens takes {:.1f}, {:.1f}, {:.0f}, {:.0f} ms", *several),
        Quote("over 4 and 16 it takes {:.1f} and {:.1f}.", taken[4], taken[16]),
    ]


def disaggregated() -> list[Passage]:
    results, token = Results("08_disaggregated"), config("target").kv_bytes_per_token(torch.float32)
    before = results.sides["07_speculative"]
    return [
        Quote("the usual gap is {:.1f} ms.", before.itl_p50_ms[0]),
        Quote("up to 256 tokens, {:.2f} ms each", before.full_piece_ms / 256),
        Quote("at {:,} bytes a token", token),
    ]


DOCUMENTS = {
    f"common/learn/predictions/stage_{number}.py": declared
    for number, declared in {
        "01": naive,
        "02": kv_cache,
        "04": continuous_batching,
        "05": paged_attention,
        "07": speculative,
        "08": disaggregated,
    }.items()
}

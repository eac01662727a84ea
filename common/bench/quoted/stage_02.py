"""Figures of lesson 02."""

import torch

from common.model import ModelConfig

from ..cost_model import parameters
from .passages import Claim, Given, Once, Passage, Quote
from .sources import STATED, Results, by, config
from .stage_01 import tokens_run
from .tasks import build_it


def declared() -> list[Passage]:
    return [*build_it("02"), *problem(), *arithmetic(), *measured()]


def problem() -> list[Passage]:
    """Return what it says of stage 01, which was measured beside stage 02."""
    results = Results("02_kv_cache")
    token = by(results.sizes.lengths, results.sides["01_naive"].ms_per_token)
    answer = by(results.sizes.answers, results.sides["01_naive"].seconds)
    growth = answer[512] / answer[256]
    return [
        Quote("an answer of 256 tokens in {:.1f} seconds and one of 512 in {:.1f}", answer[256], answer[512]),
        Quote("twice the length, {:.1f} times the time", growth),
        Quote("One more token costs {:,.0f} ms after 64 tokens and {:,.0f} ms after 2,048.", token[64], token[2048]),
    ]


def arithmetic() -> list[Passage]:
    target, tiny, qwen = config("target"), config("configs/TinyLlama-1.1B"), config("configs/Qwen2.5-14B")
    naive, cached = tokens_run(32, 256), 32 + 255
    return [
        Quote("3 + 1 + 1 + 1 = {} tokens, not {}.", 3 + 3, tokens_run(3, 4)),
        Quote("With p = 32 and n = 256 it runs 32 + 255 = {} instead of {:,}", cached, naive),
        Quote("{:,} / {} = {:,.0f} times fewer tokens, it is not {:,.0f} times", naive, cached, *[naive / cached] * 2),
        Quote(
            "bundled model in float32: 2 x {} x {} x {} x 4 = {:,} bytes",
            *factors(target),
            target.kv_bytes_per_token(torch.float32),
        ),
        Quote(
            "TinyLlama-1.1B in float32: 2 x {} x {} x {} x 4 = {:,} bytes",
            *factors(tiny),
            tiny.kv_bytes_per_token(torch.float32),
        ),
        Quote("A sequence of 50 tokens takes {:.2f} MB", 50 * tiny.kv_bytes_per_token(torch.float32) / 1e6),
        Quote(
            "Qwen2.5-14B in bfloat16: 2 x {} x {} x {} x 2 = {:,} bytes",
            *factors(qwen),
            qwen.kv_bytes_per_token(torch.bfloat16),
        ),
        Quote("A context of 32,768 tokens takes {:.1f} GB", qwen.kv_bytes_per_token(torch.bfloat16) * 32_768 / 1e9),
        Quote("Half: {:,} bytes per token", target.kv_bytes_per_token(torch.bfloat16)),
        Once(
            "with the changes that exercises ask for",
            "Only four of the contract suite's 16 prompts get another answer.",
            "no answer changed, neither of 18 tokens nor of 200",
        ),
        Given("of that blog post", '"22 MB at 50 tokens"'),
        Given("for the reader", "Time: about 15 minutes to read, 75 to do."),
    ]


def factors(model: ModelConfig) -> tuple[int, int, int]:
    return model.num_layers, model.num_kv_heads, model.head_dim


def measured() -> list[Passage]:
    results = Results("02_kv_cache")
    sizes, figures = results.sizes, results.figures
    sides = [results.sides[name] for name in ("01_naive", "02_kv_cache", "transformers")]
    token = [by(sizes.lengths, each.ms_per_token) for each in sides]
    answer = [by(sizes.answers, each.seconds) for each in sides]
    target = config("target")
    read, weights = target.kv_bytes_per_token(torch.float32) * 2048, parameters(target) * torch.float32.itemsize
    ours, theirs = figures.decode_tokens_per_second, figures.transformers_decode_tokens_per_second
    slower = token[1][2048] / token[1][64]
    by_bytes = (weights + read) / (weights + read * 64 / 2048)
    return [
        Claim(f"Measured {STATED}", results.as_stated),
        Quote("| one more token after 64 | {:.1f} ms | {:.1f} ms | {:.1f} ms |", *(each[64] for each in token)),
        Quote("| one more token after 2,048 | {:,.0f} ms | {:.1f} ms | {:.1f} ms |", *(each[2048] for each in token)),
        Quote("| an answer of 256 tokens | {:.2f} s | {:.2f} s | {:.2f} s |", *(each[256] for each in answer)),
        Quote("| an answer of 512 tokens | {:.1f} s | {:.2f} s | {:.2f} s |", *(each[512] for each in answer)),
        Quote(
            "An answer of 256 tokens arrives {:.1f} times sooner, one of 512 tokens {:.1f} times sooner",
            figures.speedup_at_256,
            answer[0][512] / answer[1][512],
        ),
        Claim("the gap keeps growing", answer[0][512] / answer[1][512] / figures.speedup_at_256, 1.2),
        Quote(
            "64 tokens to 2,048, a token of stage 01 takes {:.0f} times as long, and one of stage 02 {:.1f} times",
            token[0][2048] / token[0][64],
            slower,
        ),
        Quote("{:.1f} MB at 2,048 tokens, beside {:,.0f} MB of weights", read / 1e6, weights / 1e6),
        Quote("By these bytes it would be {:.1f} times", by_bytes),
        Claim("reads its bytes more slowly", slower / by_bytes, 1.05),
        Quote("Stage 02 decodes {:.1f} times as many tokens per second", figures.decode_ratio_vs_transformers),
        Quote("({:,.0f} against {:,.0f}, the median of the ratios)", ours, theirs),
        Claim("match the formula exactly", sides[1].cache_bytes == figures.predicted_cache_bytes),
    ]

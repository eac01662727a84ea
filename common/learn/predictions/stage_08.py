"""Stage 08: prompts and decoding on workers of their own no longer delay each other, and pages travel."""

from common.bench.run import run_benchmark

from . import Found, Question, benchmark_of

BEFORE, NOW = "07_speculative", "08_disaggregated"
BENCHMARK = benchmark_of(__file__, [BEFORE, NOW], seconds=40, quick={"seconds": 4}, tiny={"rates": [1]})


def over_usual(found: Found, side: str) -> float:
    """Return the p99 of the gaps over their median."""
    return found.sides[side]["itl_p99_ms"][-1] / found.sides[side]["itl_p50_ms"][-1]


def handoff_mb(found: Found) -> float:
    pages = -(-found.sizes["long"] // 16)
    return pages * 16 * found.config.kv_bytes_per_token(found.dtype) / 1e6


LOAD = "{clients} clients decode, and each second a prompt of {long} tokens arrives. "
GAP = "How many times as long as the usual gap between two tokens is the p99, the gap that one in a hundred exceeds?"
QUESTIONS = [
    Question(
        "together",
        "p99 of the gaps in stage 07",
        LOAD + "In stage 07 both share each step. " + GAP,
        "On the course's machine the usual gap is 1.5 ms. A piece of a prompt has up to 256 tokens, 0.05 ms each.",
        "times the median",
        lambda found: found.sides[BEFORE]["full_piece_ms"] / found.sides[BEFORE]["itl_p50_ms"][-1],
        lambda found: over_usual(found, BEFORE),
        why_less="Few of the gaps fall into a step with a full piece of a prompt.",
        why_more="The full piece was timed alone, and here decoding requests share its step.",
    ),
    Question(
        "apart",
        "p99 of the gaps in stage 08",
        "The same load, with one worker for prompts and one for decoding. " + GAP,
        "The worker that decodes computes no prompts.",
        "times the median",
        lambda found: 1.0,
        lambda found: over_usual(found, NOW),
        why_more="What is left is mostly the gap in which a request's pages travel to the worker that decodes.",
    ),
    Question(
        "handoff",
        "Bytes of one handoff",
        "How many megabytes (a million bytes each) travel for a prompt of {long} tokens?",
        "Whole pages of 16 tokens travel, at 8,192 bytes a token.",
        "MB",
        handoff_mb,
        lambda found: found.sides[NOW]["handoff_mb"],
    ),
    Question(
        "first",
        "First token of a long prompt",
        "How many times as long as in stage 07 does a long prompt take to its first token?",
        "Stage 07 computes on all cores, and each worker of stage 08 has half of them.",
        "times",
        lambda found: 2.0,
        lambda found: found.sides[NOW]["ttft_long_p50_ms"][0] / found.sides[BEFORE]["ttft_long_p50_ms"][0],
        why_less="In stage 07 the prompt shares its steps with decoding requests, and two cores gain less than twice.",
        why_more="Prompts wait for each other at one worker, and short ones pass the long one.",
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

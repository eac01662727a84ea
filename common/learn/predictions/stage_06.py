"""Stage 06: a prefix that is in memory is not computed again, as long as it has not been evicted."""

from collections.abc import Callable

from common.bench.run import run_benchmark

from . import Found, Question, benchmark_of

BEFORE, NOW = "05_paged_attention", "06_prefix_cache"
BENCHMARK = benchmark_of(
    __file__,
    [BEFORE, NOW],
    seconds=30,
    quick={"shared_percent": [50, 75, 90], "working_sets": [2], "questions": 40},
    tiny={"shared_percent": [50, 90], "working_sets": [2]},
)


def sooner(found: Found) -> list[float]:
    before, now = (found.sides[side]["ttft_ms"] for side in (BEFORE, NOW))
    return [was / ms for was, ms in zip(before, now, strict=True)]


def hits(order: str) -> Callable[[Found], float]:
    return lambda found: found.sides[NOW][f"{order}_hit_percent"][0]


UNDER_PRESSURE = (
    "{documents_that_fit} documents fit into the memory. Twice as many are asked about, {how}. What percentage of "
    "their tokens is found in memory?"
)
QUESTIONS = [
    Question(
        "sooner",
        "First token of a prompt in memory",
        "Part of a prompt of {prompt} tokens is in memory. How many times sooner than in stage 05 does the first token "
        "come?",
        "A prefill takes as long as what it has to compute.",
        "times",
        lambda found: [100 / (100 - percent) for percent in found.sizes["shared_percent"]],
        sooner,
        lambda sizes: sizes["shared_percent"],
        "percent in memory",
        why_less="A step has a fixed cost, only whole pages are found, and new tokens still attend to the cached ones.",
        why_more="Attention grows with the square of the prompt, so the part left out costs more than its share.",
    ),
    Question(
        "random",
        "Found, asked at random",
        UNDER_PRESSURE.replace("{how}", "one at a time, each time one at random"),
        "The least recently used pages are evicted.",
        "percent",
        lambda found: 100 * min(1, 1 / found.sizes["working_sets"][0]),
        hits("random"),
        why_less="Questions and answers take memory too, and a few dozen draws differ by chance.",
        why_more="A few dozen questions differ by chance from the average of many.",
    ),
    Question(
        "in_turn",
        "Found, asked in turn",
        UNDER_PRESSURE.replace("{how}", "one after the other, again and again"),
        "The least recently used pages are evicted.",
        "percent",
        lambda found: 0.0 if found.sizes["working_sets"][0] > 1 else 100.0,
        hits("in_turn"),
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

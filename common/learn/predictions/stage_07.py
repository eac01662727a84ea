"""Stage 07: draft tokens share a pass with the token before them, and some are accepted."""

from collections.abc import Callable

from common.bench.run import run_benchmark
from common.stages import load_stage_module

from . import Found, Question, benchmark_of

NOW = "07_speculative"
DRAFTED = 8  # tokens, always
BENCHMARK = benchmark_of(
    __file__,
    [NOW],
    seconds=32,
    quick={
        "engines": ["stage_06", "always_8"],
        "batches": [1, 4, 16],
        "least_jobs": 20,
        "most_tokens": 64,
        "draft_tokens": [0, 1, 2, 4, 8],
        "curve_jobs": 20,
        "rounds": 1,
    },
    tiny={"engines": ["stage_06", "always_8"], "copies": 0, "draft_tokens": [0, 1, 2]},
)


def tokens_of_a_pass(found: Found) -> list[float]:
    """Return 1 + a + ... + a^k for each k, with the rate a at which single draft tokens are accepted."""
    counts, accepted = found.sizes["draft_tokens"], found.sides[NOW]["curve_acceptance"]
    rate = accepted[counts.index(1)] / 100
    return [sum(rate**i for i in range(k + 1)) for k in counts[1:]]


def measured_tokens(found: Found) -> list[float]:
    pairs = zip(found.sizes["draft_tokens"][1:], found.sides[NOW]["curve_acceptance"][1:], strict=True)
    return [1 + k * percent / 100 for k, percent in pairs]


def pass_times(found: Found, figure: str) -> Callable[[int], float]:
    """Return the seconds of a pass by its number of tokens, as stage 07 estimates them."""
    sizes = load_stage_module(NOW, "benchmark").PASSES
    times = load_stage_module(NOW, "adaptive_speculation").PassTimes
    return times({size: ms / 1e3 for size, ms in zip(sizes, found.sides[NOW][figure], strict=True)})


def always_eight(found: Found) -> list[float]:
    """Return the speed-up by passes alone: more tokens a pass, over a longer pass and the draft model's passes."""
    target, draft = pass_times(found, "pass_ms"), pass_times(found, "draft_pass_ms")
    speedups = []
    for batch, percent in zip(found.sizes["batches"], found.sides[NOW]["always_8_acceptance"], strict=True):
        seconds = target(batch * (1 + DRAFTED)) + DRAFTED * draft(batch)
        speedups.append((1 + DRAFTED * percent / 100) * target(batch) / seconds)
    return speedups


def measured_eight(found: Found) -> list[float]:
    before, now = (found.sides[NOW][f"{name}_tokens_per_second"] for name in ("stage_06", "always_8"))
    return [mine / theirs for mine, theirs in zip(now, before, strict=True)]


QUESTIONS = [
    Question(
        "tokens",
        "Tokens gained by a pass",
        "One request gets k draft tokens in each step. How many tokens does a pass gain on average, the target's own "
        "included?",
        "Of single draft tokens (k = 1) the target accepts about 85 percent. A draft token counts only if all before "
        "it are accepted.",
        "tokens",
        tokens_of_a_pass,
        measured_tokens,
        lambda sizes: sizes["draft_tokens"][1:],
        "draft tokens per step",
        why_less="A token far ahead is harder to draft: it often stands behind a mistake.",
        why_more="Where the first draft token is right, the text is easy, and the next ones are right more often.",
    ),
    Question(
        "speedup",
        "Speed-up of one request",
        "How many times as fast as without draft tokens does the same request get its tokens?",
        "With a pass over one token as 1, a pass over 2, 3, 5, 9 tokens takes 1.1, 1.1, 1.3, 2.0 on the course's "
        "machine. A pass of the draft model takes 0.24, and it runs k of them.",
        "times",
        lambda found: found.sides[NOW]["curve_predicted"][1:],
        lambda found: found.sides[NOW]["curve_speedup"][1:],
        lambda sizes: sizes["draft_tokens"][1:],
        "draft tokens per step",
        why_less="The draft model has to read the prompt too, and drafts add sampling and bookkeeping to each step.",
    ),
    Question(
        "batch",
        "Speed-up, always 8 draft tokens",
        "Now several requests share each step, and each always gets 8 draft tokens. How many times stage 06's tokens a "
        "second do they get? (Below 1, drafting no longer pays.)",
        "Of 8 draft tokens 53 percent are accepted. On the course's machine a pass over 1, 9, 36, 144 tokens takes "
        "0.6, 1.2, 3, 8 ms; over 4 and 16 it takes 0.7 and 2.1.",
        "times",
        always_eight,
        measured_eight,
        lambda sizes: sizes["batches"],
        "requests at once",
        why_less="Requests that end leave the batch, and prompts, sampling and bookkeeping take time as well.",
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""Stage 04: requests share each step, and a long prompt runs in pieces."""

from common.bench.run import run_benchmark

from . import Found, Question, benchmark_of, over_first

NOW = "04_continuous_batching"
BENCHMARK = benchmark_of(
    __file__,
    [NOW],
    seconds=18,
    quick={
        "clients": [1, 4, 16, 32],
        "requests_each": 2,
        "most_tokens": 64,
        "prefill": 256,
        "arriving": [1024],
        "budgets": [64, 128, 256, 4096],
    },
    tiny={"clients": [1, 2], "arriving": [32], "budgets": [8, 16, 64]},
)


def step_ms(found: Found, rows: float) -> float:
    """Return milliseconds of a step over `rows` tokens, from a step over one and the cost of a token in a prefill."""
    return found.sides[NOW]["itl_p50_ms"][0] + (rows - 1) * found.sides[NOW]["prefill_ms_per_token"]


def shared_steps(found: Found) -> list[float]:
    """Return milliseconds of a step with each number of clients, their shares of prompts included."""
    rows = found.sides[NOW]["rows_per_output_token"]
    return [step_ms(found, 1 + (n - 1) * each) for n, each in zip(found.sizes["clients"], rows, strict=True)]


def throughput(found: Found) -> list[float]:
    return over_first([n / ms for n, ms in zip(found.sizes["clients"], shared_steps(found), strict=True)])


def gaps(found: Found) -> list[float]:
    """Return the percentages of the longest gap with each budget but the last, which takes the prompt in one piece."""
    *pieces, _ = found.sizes["budgets"]
    whole = step_ms(found, found.sizes["decoding"] + found.sizes["arriving"][0])
    return [100 * step_ms(found, budget) / whole for budget in pieces]


def measured_gaps(found: Found) -> list[float]:
    *pieces, whole = (found.sides[NOW][f"longest_gap_ms_budget_{each}"][0] for each in found.sizes["budgets"])
    return [100 * piece / whole for piece in pieces]


QUESTIONS = [
    Question(
        "throughput",
        "Tokens a second of all clients",
        "How many times as many tokens a second as one client do several clients get together?",
        "A step reads the weights once, however many requests it has. Each token more in a step takes about 1/25 of "
        "the time of a step with one request. Each output token brings about one token of its prompt.",
        "times",
        throughput,
        lambda found: over_first(found.sides[NOW]["output_tokens_per_second"]),
        lambda sizes: sizes["clients"][1:],
        "clients at once",
        why_less="Arithmetic leaves out attention to each request's own past, and that steps are not always full.",
    ),
    Question(
        "gap",
        "Time between two tokens of one client",
        "How many times as long as alone does a client wait from one of its tokens to the next?",
        "The same: a token more in a step takes about 1/25 of the time of a step with one request.",
        "times",
        lambda found: over_first(shared_steps(found)),
        lambda found: over_first(found.sides[NOW]["itl_p50_ms"]),
        lambda sizes: sizes["clients"][1:],
        "clients at once",
        why_less="The median gap is that of steps in which fewer prompts run than on average.",
        why_more="Arithmetic leaves out attention to each request's own past, and sampling for each request.",
    ),
    Question(
        "pieces",
        "The longest gap, prompt in pieces",
        "{decoding} requests decode, and a prompt of {arriving[0]} tokens arrives. In one piece it delays them all by "
        "one long step. What percentage of that gap is left if a step has a token budget?",
        "A step as long as the budget takes a step with one request, and 1/25 of that for each token more.",
        "percent",
        gaps,
        measured_gaps,
        lambda sizes: sizes["budgets"][:-1],
        "tokens of the budget",
        why_less="In one long step, attention takes more of the time than in a short prompt's step.",
        why_more="Each piece attends to all pieces before it, so the last one takes the longest.",
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

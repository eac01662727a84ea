"""Stage 05: pages on demand hold more requests in the same memory."""

from dataclasses import replace

from common.bench.harness import Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings

from . import Found, Question, benchmark_of

BEFORE, NOW = "04_continuous_batching", "05_paged_attention"
WHOLE = benchmark_of(
    __file__,
    [BEFORE, NOW],
    seconds=36,
    quick={"requests": 32, "slots": 1, "page_sizes": [16, 64, 256], "batches": [1, 24], "context": 150},
    tiny={"requests": 2, "page_sizes": [16], "batches": [1]},
)
PAGE = 16  # tokens, of the engine unless it is told otherwise
ENOUGH = 12  # requests that tell the throughput of a stage that runs them one by one
MEAN = (16 + 256) / 2 + (16 + 128) / 2 / 2  # tokens of a request, halfway through its output


def one_by_one(settings: Settings, sizes: dict) -> Figures:
    return WHOLE.sides[BEFORE](settings, sizes | {"requests": min(ENOUGH, sizes["requests"])})


BENCHMARK = replace(WHOLE, sides={BEFORE: one_by_one, NOW: WHOLE.sides[NOW]})


def fit(found: Found) -> float:
    """Return how many requests of the mean size have room, with half a page lost for each."""
    places = found.sizes["slots"] * found.config.context_length
    return min(found.sizes["requests"], places / (MEAN + PAGE / 2))


def wasted(found: Found) -> list[float]:
    lost = [(size - 1) / 2 for size in found.sizes["page_sizes"]]  # of the last page, on average
    return [100 * rest / (MEAN + rest) for rest in lost]


def throughput(found: Found) -> float:
    """Return the ratio of requests in a step, over that of the step's milliseconds, by steps measured alone."""
    requests = fit(found) / found.sizes["slots"]
    return requests * found.sides[BEFORE]["step_total_ms"][0] / found.sides[NOW]["step_total_ms"][-1]


QUESTIONS = [
    Question(
        "fit",
        "Requests that run at once",
        "{requests} requests arrive together, into the memory of {slots} slot: 4,096 tokens, 33.6 MB. Stage 04 runs "
        "one at a time. How many does stage 05 run at once, at most?",
        "Prompts have 16 to 256 tokens and outputs 16 to 128, each length equally often. A page has 16 tokens.",
        "requests",
        fit,
        lambda found: found.sides[NOW]["most_running"],
        why_less="Fewer requests are left than would fit, or the running ones grow into the room of the next.",
        why_more="Most requests run together early, when they hold little more than their prompts.",
    ),
    Question(
        "waste",
        "Reserved for no token",
        "What percentage of the places that requests hold is empty, by the size of a page?",
        "Halfway through its output a request has 172 tokens on average. Its last page is full only by chance.",
        "percent",
        wasted,
        lambda found: found.sides[NOW]["wasted_percent_by_page_size"],
        lambda sizes: sizes["page_sizes"],
        "tokens in a page",
        why_less="Long requests run for more steps than short ones, and of them the rest of a page is a smaller share.",
        why_more="A prompt gets all its pages before its last piece runs, and they stay empty until then.",
    ),
    Question(
        "throughput",
        "Tokens a second in the same memory",
        "How many times as many tokens a second as stage 04 does stage 05 give?",
        "On the course's machine a step with one request takes 1 ms, and one with 24 takes about 3.",
        "times",
        throughput,
        lambda found: found.sides[NOW]["tokens_per_second"] / found.sides[BEFORE]["tokens_per_second"],
        why_less="Steps also run prompts, and towards the end fewer requests are left to share a step.",
        why_more="More requests ran at once than arithmetic expects.",
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

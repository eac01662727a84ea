"""Stage 02: with K and V kept, each token runs once."""

from common.bench.cost_model import decode_bytes, step_flops
from common.bench.run import run_benchmark

from . import Found, Question, benchmark_of, over_first

BEFORE, NOW = "01_naive", "02_kv_cache"
BENCHMARK = benchmark_of(
    __file__,
    [BEFORE, NOW],
    seconds=24,
    quick={
        "lengths": [64, 512, 1024, 2048],
        "rounds": 2,
        "answers": [256],
        "compared_answer": 256,
        "cache_tokens": [2048],
    },
)


def whole_answer_ratio(found: Found) -> float:
    """Return FLOPs without a cache over bytes with it, at the rates measured at `calibration_length` tokens."""
    sizes, config, dtype, length = found.sizes, found.config, found.dtype, found.sizes["calibration_length"]
    before, now = (found.sides[side]["ms_per_token"][sizes["lengths"].index(length)] for side in (BEFORE, NOW))
    past = range(sizes["prompt"], sizes["prompt"] + sizes["compared_answer"])
    without = before * sum(step_flops(config, tokens) for tokens in past) / step_flops(config, length)
    cached = now * sum(decode_bytes(config, tokens, dtype) for tokens in past) / decode_bytes(config, length, dtype)
    return without / cached


QUESTIONS = [
    Question(
        "sooner",
        "A whole answer comes sooner",
        "How many times sooner than in stage 01 is an answer of {compared_answer} tokens complete?",
        "After a prompt of {prompt}, stage 01 runs 40,832 tokens and stage 02 runs 287. On the course's machine, one "
        "more token after 512 takes 31 ms without the cache and 1.6 ms with it.",
        "times",
        whole_answer_ratio,
        lambda found: found.sides[BEFORE]["seconds"][-1] / found.sides[NOW]["seconds"][-1],
        why_more="Arithmetic leaves out the fixed cost of a step, which short sequences without a cache mostly pay.",
    ),
    Question(
        "step",
        "One more token, with the cache",
        "How many times as long as after {lengths[0]} tokens does one more token take?",
        "A step reads 27.4 MB of weights, and K and V of each token before it: 8,192 bytes.",
        "times",
        lambda found: over_first(
            [decode_bytes(found.config, length, found.dtype) for length in found.sizes["lengths"]]
        ),
        lambda found: over_first(found.sides[NOW]["ms_per_token"]),
        lambda sizes: sizes["lengths"][1:],
        "tokens in the sequence",
        why_less="In so small a model, much of a step is the fixed cost of its operations.",
        why_more="Attention over many tokens reads its bytes more slowly than the matrix products do.",
    ),
    Question(
        "memory",
        "Memory of one request",
        "How many megabytes (a million bytes each) of K and V does a request of {cache_tokens[0]} tokens hold?",
        "Per token: K and V, 8 layers, 2 K/V heads of dimension 64, 4 bytes a number.",
        "MB",
        lambda found: found.sizes["cache_tokens"][0] * found.config.kv_bytes_per_token(found.dtype) / 1e6,
        lambda found: found.sides[NOW]["cache_bytes"][0] / 1e6,
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""Figures of lesson 03, and what lesson 04 says of its stage."""

from .passages import Claim, Given, Once, Passage, Quote
from .sources import Results, by, code
from .tasks import build_it


def declared() -> list[Passage]:
    results = Results("03_streaming")
    sizes, figures = results.sizes, results.figures
    sides = results.sides["02_kv_cache"], results.sides["03_streaming"]
    first = [by(sizes.answers, each.alone_first_text_seconds) for each in sides]
    whole = [by(sizes.answers, each.alone_whole_answer_seconds) for each in sides]
    latency = [by(sizes.clients, each.e2el_p50_seconds) for each in sides]
    rate = [by(sizes.clients, each.output_tokens_per_second) for each in sides]
    gap = by(sizes.clients, sides[1].itl_p50_ms)
    queued = by(sizes.clients, sides[1].ttft_p50_seconds)
    return [
        *build_it("03"),
        Quote("Over HTTP, stage 02 writes an answer of 256 tokens in {:.2f} seconds", whole[0][256]),
        Claim("Measured over HTTP on two CPU cores, in float32, medians of three repeats", results.as_stated),
        Quote("| first text of an answer of 8 tokens | {:,.0f} ms | {:,.0f} ms |", *(1e3 * each[8] for each in first)),
        Quote(
            "| first text of an answer of 256 tokens | {:,.0f} ms | {:,.0f} ms |", *(1e3 * each[256] for each in first)
        ),
        Quote(
            "| last text of an answer of 256 tokens | {:,.0f} ms | {:,.0f} ms |", *(1e3 * each[256] for each in whole)
        ),
        Quote("| median latency, 1 client | {:.2f} s | {:.2f} s |", *(each[1] for each in latency)),
        Quote("| median latency, 64 clients | {:.1f} s | {:.1f} s |", *(each[64] for each in latency)),
        Quote("| throughput, 1 client | {:,.0f} tokens/s | {:,.0f} tokens/s |", *(each[1] for each in rate)),
        Quote("| throughput, 64 clients | {:,.0f} tokens/s | {:,.0f} tokens/s |", *(each[64] for each in rate)),
        Quote(
            "the first text arrives after {:,.0f} ms however long the answer is: {:,.0f} times sooner at 256 tokens",
            1e3 * first[1][256],
            figures.first_text_speedup_at_longest_answer,
        ),
        Claim("however long the answer is", max(first[1].values()) / min(first[1].values()), 1, 1.4),
        Claim("throughput does not grow", rate[1][64] / rate[1][1], 0, 1.05),
        Claim("in proportion to the clients", latency[1][64] / latency[1][8] / 8, 0.8, 2.5),
        Quote("the last text of 256 tokens comes {:.0f} percent later", 100 * (whole[1][256] / whole[0][256] - 1)),
        Quote(
            "gets a token every {:,.0f} ms, but at 64 clients it first waits {:,.0f} seconds in the queue",
            gap[64],
            queued[64],
        ),
        Quote("the machine reaches {:,.0f} percent of the arithmetic rate", used(results)),
        Given("for the reader", "Time: about 15 minutes to read, 75 to do."),
        Claim("its 90 lines", code("common/detokenizer.py"), 80, 100),
        Given("in graceful.py", "gives the running ones five seconds"),
        Once("a megabyte is tokenized in no benchmark", "A megabyte takes about two seconds"),
        Quote("At {:.1f} ms per token, 1,000 tokens that are left take {:.1f} seconds.", *[gap[1]] * 2),
    ]


def problem() -> list[Passage]:
    """Return what lesson 04 says of this stage."""
    results = Results("03_streaming")
    rate = by(results.sizes.clients, results.sides["03_streaming"].output_tokens_per_second)
    most = by(results.sizes.clients, results.sides["03_streaming"].e2el_p90_seconds)[64]
    return [
        Quote("64 clients hardly faster than one: {:,.0f} tokens a second, and {:,.0f}", rate[64], rate[1]),
        Claim("64 clients hardly faster than one", rate[64] / rate[1], 0, 1.05),
        Quote("The last of 64 waits {:.0f} seconds", most),
        Quote("the machine reaches only {:,.0f} percent of its arithmetic rate", used(results)),
    ]


def used(results: Results) -> float:
    return by(results.sizes.clients, results.figures.utilisation_percent_03_streaming)[64]

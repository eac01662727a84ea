"""Figures of lesson 08, and of the table in its kv_transport.py."""

import torch

from .passages import Claim, Given, Once, Passage, Quote
from .sources import MACHINE, STATED, Results, by, config, read
from .tasks import build_it

FOLDER = "08_disaggregated"


def declared() -> list[Passage]:
    results = Results(FOLDER)
    return [*build_it("08"), *handoff(results), *measured(results), *ratios(results), *soaks()]


def handoff(results: Results) -> list[Passage]:
    sizes, now = results.sizes, results.sides[FOLDER]
    token = config("target").kv_bytes_per_token(torch.float32)
    pages = -(-sizes.long // 16)
    megabytes = pages * 16 * token / 1e6
    return [
        Quote("a handoff of {:,} tokens, at {:,} bytes a token?", sizes.long, token),
        Quote("{:,} tokens take {} pages of 16: {:.2f} MB, which", sizes.long, pages, megabytes),
        Quote("which TCP should move in about {:,.0f} ms", transport_ms()["tcp"]),
        Quote(
            "A handoff of {:,} tokens is {:.2f} MB as predicted and takes {:.1f} ms, {:.1f} GB/s",
            sizes.long,
            now.handoff_mb,
            now.handoff_ms,
            now.handoff_gb_per_second,
        ),
        Claim("as predicted", now.handoff_mb / megabytes, 0.999, 1.001),
        Claim("41 tokens take three pages", -(-41 // 16), 3, 3),
        Once(
            "measured with the router alone",
            "With 1,000 requests in flight the router takes 0.06 ms for a report of 64 tokens",
        ),
        Given("for the reader", "Time: about 40 minutes to read, 120 to do, in three sittings"),
    ]


def transport_ms() -> dict[str, float]:
    """Return milliseconds for the pages of a long prompt by each way to move them."""
    document = read(f"{FOLDER}/results/transports/{MACHINE}.json")
    return {name: by(document["pages"], values)[63] for name, values in document["ms"].items()}


def transports() -> list[Passage]:
    """Return what kv_transport.py says."""
    taken, document = transport_ms(), read(f"{FOLDER}/results/transports/{MACHINE}.json")
    return [
        Quote(
            "for 63 pages of the bundled model, {:.1f} MB (a prompt of 1,000 tokens)", 63 * document["page_bytes"] / 1e6
        ),
        Quote("shared memory, announced by a socket {:.1f}", taken["shared memory"]),
        Quote("TCP, sent from the pages {:.1f}", taken["tcp"]),
        Quote("gloo (torch.distributed) {:.1f}", taken["gloo"]),
        Quote("Ray's object store {:.1f}", taken["object store of Ray"]),
    ]


def measured(results: Results) -> list[Passage]:
    sizes, before, now = results.sizes, results.sides["07_speculative"], results.sides[FOLDER]

    def columns(name: str) -> list[float]:
        return [by(sizes.rates, vars(side)[name])[rate] for rate in (0, sizes.stated) for side in (before, now)]

    longest = [by(sizes.rates[1:], side.ttft_long_p50_ms)[sizes.stated] for side in (before, now)]
    usual, delayed = columns("itl_p50_ms")[0], columns("itl_p99_ms")[2]
    goodput, bound = columns("goodput"), 1e3 * sizes.objectives["longest_gap"]
    return [
        Claim(f"Measured {STATED}", results.as_stated),
        Claim("two per second", sizes.stated, 2, 2),
        Quote("eight clients ask for {} to {} tokens again and again", *sizes.output),
        Quote("a first token within {} s and gaps of at most {:.0f} ms", sizes.objectives["ttft"], bound),
        Quote("a gap of usually {:.1f} ms becomes {:,.0f} ms", usual, delayed),
        Quote("| gap, median | {:.1f} ms | {:.1f} ms | {:.1f} ms | {:.1f} ms |", *columns("itl_p50_ms")),
        Quote("| gap, p99 | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *columns("itl_p99_ms")),
        Quote("| longest gap | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *columns("itl_worst_ms")),
        Quote(
            "| first token of a short prompt | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |",
            *columns("ttft_short_p50_ms"),
        ),
        Quote("| the same, p90 | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms | {:,.0f} ms |", *columns("ttft_short_p90_ms")),
        Quote("| tokens a second | {:,.0f} | {:,.0f} | {:,.0f} | {:,.0f} |", *columns("tokens_per_second")),
        Quote("| goodput, requests a second | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", *goodput),
        Quote("| first token of a long prompt | | | {:,.0f} ms | {:,.0f} ms |", *longest),
    ]


def ratios(results: Results) -> list[Passage]:
    figures, least, most = results.figures, results.least, results.most
    sizes, before, now = results.sizes, results.sides["07_speculative"], results.sides[FOLDER]
    predicted = by(sizes.rates, figures.predicted_gap_ms)[sizes.stated]
    goodput = [by(sizes.rates, side.goodput)[sizes.stated] for side in (before, now)]
    p99, p99_before = by(sizes.rates, now.itl_p99_ms), by(sizes.rates, before.itl_p99_ms)
    return [
        Quote(
            "the p99 gap is {:.1f} times shorter ({:.1f} to {:.1f} in the repeats)",
            *(each.itl_p99_ratio for each in (figures, least, most)),
        ),
        Claim("times shorter", least.itl_p99_ratio, 1.2),
        Quote("{:.0f} ms where it was {:.0f} without them", p99[sizes.stated], p99[0]),
        Quote("With one the p99 gap is {:.1f} ms in stage 07 and {:.1f} in stage 08", p99_before[1], p99[1]),
        Claim("fewer than one gap in a hundred has a prompt's piece", p99_before[1] / p99[1], 0, 0.98),
        Quote("The prediction for stage 07, {:,.0f} ms for a full piece alone", predicted),
        Quote(
            "the decoding clients get {:.2f} times stage 07's tokens a second (median of the repeats' ratios; "
            "{:.2f} to {:.2f})",
            *(each.throughput_ratio_without_prompts for each in (figures, least, most)),
        ),
        Claim("it does not add computing power", figures.throughput_ratio_without_prompts, 0, 1.05),
        Quote("the p99 gap is {:,.0f} ms against {:,.0f};", p99[0], before.itl_p99_ms[0]),
        Quote("the median gap is {:.1f} ms, not {:.1f}", now.itl_p50_ms[0], before.itl_p50_ms[0]),
        Quote(
            "they get {:.2f} times ({:.2f} to {:.2f}), and the prompts pay",
            *(each.throughput_ratio for each in (figures, least, most)),
        ),
        Quote(
            "a long one's first token takes {:.1f} times as long, and a short one's {:.1f} times (p90 {:.1f} times: it "
            "waits for a piece of a long one)",
            figures.ttft_long_ratio,
            figures.ttft_short_ratio,
            figures.ttft_short_p90_ratio,
        ),
        Quote("the higher goodput, {:.1f} requests a second against {:.1f}", *goodput),
        Claim("the higher goodput", goodput[0] / goodput[1], 1.02),
        Claim("the prompts pay", min(figures.ttft_long_ratio, figures.ttft_short_ratio), 1.2),
    ]


def soaks() -> list[Passage]:
    kills, bursts = (read(f"{FOLDER}/results/soak/{MACHINE}-{name}.json") for name in ("kills", "bursts"))
    return [
        Quote("{} workers of a server were ended under load", kills["kills"]),
        Claim("eight by stopping them", kills["killed"]["decode, stopped"], 8, 8),
        Quote("Of {:,} answers none failed", kills["requests"]),
        Claim("none failed and none differed", kills["failed"] + kills["different"], 0, 0),
        Quote("{} times a request began again", kills["resumed"]),
        Quote(
            "The longest wait for a next token was {:.1f} seconds: only a deadline, here {} s",
            kills["longest_gap_seconds"],
            kills["hang_seconds"],
        ),
        Quote("{:,} requests in {:,.0f} minutes", bursts["sent"], bursts["seconds"] / 60),
        Given("the soak's sizes", "every eighth with 900 tokens"),
        Claim("all were answered", bursts["answered"], bursts["sent"], bursts["sent"]),
    ]

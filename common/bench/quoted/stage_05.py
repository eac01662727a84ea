"""Figures of lesson 05."""

import torch

from .passages import Claim, Given, Once, Passage, Quote
from .sources import STATED, Results, by, config
from .tasks import build_it


def declared() -> list[Passage]:
    results = Results("05_paged_attention")
    return [*build_it("05"), *arithmetic(results), *measured(results), *cost(results)]


def arithmetic(results: Results) -> list[Passage]:
    target, sizes = config("target"), results.sizes
    slot = target.context_length * target.kv_bytes_per_token(torch.float32)
    places, tokens = sizes.slots * target.context_length, results.sides["05_paged_attention"].tokens_per_request
    waste = by(sizes.page_sizes, results.figures.predicted_wasted_percent_by_page_size)[16]
    empty = (16 - 1) / 2  # of a last page
    return [
        Quote("a whole context: {:,} tokens, {:.1f} MB", target.context_length, slot / 1e6),
        Quote("its answer of 100 tokens fill {:.1f} percent of it", 100 * 100 / target.context_length),
        Quote("A budget of {:,.0f} MB for K and V holds eight slots", sizes.slots * slot / 1e6),
        Claim("holds eight slots", sizes.slots, 8, 8),
        Quote("while {:,.0f} percent of the memory is empty", int(100 - 100 * 100 / target.context_length)),
        Quote("13 // 4 = {} of the page table, which is page {}", 13 // 4, [7, 2, 9, 4][13 // 4]),
        Quote("at place 13 % 4 = {}: index 4 * 4 + 1 = {} of the pool", 13 % 4, 4 * 4 + 13 % 4),
        Quote("{} requests arrive at once, with prompts of 16 to 256", sizes.requests),
        Quote("of eight slots, {:,.0f} MB. How many", sizes.slots * slot / 1e6),
        Given("in workloads.py", "with prompts of 16 to 256 and outputs of 16 to 128 tokens"),
        Quote("a request's average size, {:.1f} tokens", tokens),
        Quote("{:.1f} of 16 places on average", empty),
        Quote("{:,} / ({:.1f} + {:.1f}) = {:,.0f}, so all", places, tokens, empty, places / (tokens + empty)),
        Claim("so all 64 fit", places / (tokens + empty), sizes.requests),
        Claim("the first end before the last begin", results.sides["05_paged_attention"].most_running, 1, 63),
        Quote("{:.1f} / ({:.1f} + {:.1f}) = {:.1f} percent.", empty, tokens, empty, waste),
        Given("in predictions/stage_05.py", "of 32 requests in one slot's memory"),
        Given("for the reader", "Time: about 20 minutes to read, 90 to do."),
    ]


def measured(results: Results) -> list[Passage]:
    figures, least = results.figures, results.least
    names = "04_continuous_batching", "05_paged_attention", "transformers"
    slots, pages, peer = (results.sides[name] for name in names)
    waste = by(results.sizes.page_sizes, pages.wasted_percent_by_page_size)
    predicted = by(results.sizes.page_sizes, figures.predicted_wasted_percent_by_page_size)
    return [
        Claim(f"Measured {STATED}", results.as_stated),
        Quote("transformers, batches of {} |", results.sizes.group),
        Quote(
            "| requests at once, at most | {} | {} | {} |", slots.most_running, pages.most_running, results.sizes.group
        ),
        Quote("| reserved for no token | {:.1f} % | {:.1f} % | |", slots.wasted_percent, pages.wasted_percent),
        Quote(
            "| output tokens a second | {:,.0f} | {:,.0f} | {:,.0f} |",
            *(each.tokens_per_second for each in (slots, pages, peer)),
        ),
        Quote(
            "Pages give {:.1f} times the throughput of slots in the same memory, and {:.1f} times that of",
            figures.throughput_ratio,
            figures.ratio_vs_transformers_static,
        ),
        Quote(
            "({:.1f} and {:.1f} times in the worst of three repeats",
            least.throughput_ratio,
            least.ratio_vs_transformers_static,
        ),
        Claim("Pages give", least.throughput_ratio, 1.1),
        Claim("The waste slightly exceeds the prediction", waste[16] - predicted[16], 0.05, 1),
        Quote("Pages of eight tokens cut it to {:.1f} percent.", waste[8]),
        Quote("at 256 tokens per page, {:,.0f} percent of the memory holds nothing", waste[256]),
    ]


def cost(results: Results) -> list[Passage]:
    """Return what it says of the time of a step."""
    figures, sizes = results.figures, results.sizes
    pages = vars(results.sides["05_paged_attention"])
    parts = ("model", "attention", "sampling", "bookkeeping")
    at_32 = [by(sizes.batches, pages[f"step_{part}_ms"])[32] for part in parts]
    bookkeeping = by(sizes.bookkeeping_batches, pages["bookkeeping_us"])
    return [
        Quote(
            "With 32 requests and {} tokens behind each, a step spends {:.1f} ms in the model's matrices, {:.1f} ms in "
            "attention, {:.1f} in sampling, and {:.1f}, or {:,.0f} percent, in all bookkeeping",
            sizes.context,
            *at_32,
            figures.bookkeeping_percent_at_32,
        ),
        Quote(
            "Bookkeeping takes {:.2f} ms with one request and {:.1f} ms with 256.",
            bookkeeping[1] / 1e3,
            bookkeeping[256] / 1e3,
        ),
        Quote(
            "all weights, K and V, {:.1f} MB for one request, read once, at the {:.1f} GB/s",
            figures.step_bytes / 1e6,
            pages["read_bytes_per_second"] / 1e9,
        ),
        Quote("a step with one request takes {:.1f} times its floor", figures.over_floor_at_1),
        Quote("Its calls alone, from Python, take {:.2f} ms", pages["calls_ms"]),
        Quote("what is left is {:.1f} times the floor", figures.over_floor_beyond_calls_at_1),
        Quote("a step takes {:.2f} times as long as stage 04's", figures.gathering_step_ratio_at_1),
        Claim("a step takes", figures.gathering_step_ratio_at_1, 1.03),
        Claim("a one-request step is even shorter than stage 04's", figures.step_ratio_at_1, 0, 0.98),
        Once(
            "an exercise's answer, counted with the change that it asks for",
            "40 requests of up to 60 prompt tokens and 60 output tokens were preempted 46 times instead of 28, and "
            "5,523 tokens were run instead of 4,921.",
        ),
    ]

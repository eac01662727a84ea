"""How long a pass of a model takes, by the number of tokens in it. Measured once, when an engine starts.

From these times a stage that speculates chooses how many draft tokens pay.
"""

import time
import weakref
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .attention import PagedBatch
from .model import Transformer

CONTEXT = 128  # tokens of each text
# Tokens. Some sizes, such as 10, are the largest of a kernel or a graph: one token more may cost much more.
SIZES = (1, 2, 4, 8, 10, 11, 16, 17, 32, 33, 64, 128, 256, 512)
LONG = 0.1  # seconds; longer passes are not measured, but estimated from the two longest measured ones
TIMES = 5  # runs of each size, at most; the fastest counts, since disturbances only make a pass longer
ENOUGH = 0.02  # seconds for one size: a disturbance is only a small part of a long pass


class PassTimes:
    """Seconds of a pass over n tokens, on straight lines between the sizes that were measured: at least two."""

    def __init__(self, seconds: dict[int, float]):
        self.sizes, self.seconds = list(seconds), list(seconds.values())

    def __call__(self, tokens: int) -> float:
        right = min(max(bisect_left(self.sizes, tokens), 1), len(self.sizes) - 1)
        (a, b), (x, y) = self.sizes[right - 1 : right + 1], self.seconds[right - 1 : right + 1]
        return x + (y - x) * (tokens - a) / (b - a)


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass over n tokens. draft: None for a drafter without a model."""

    target: PassTimes
    draft: PassTimes | None

    def drafting(self, requests: int) -> float:
        """Return the seconds of one pass of the draft model over a token of each of `requests` requests."""
        return self.draft(requests) if self.draft else 0.0

    def step(self, counts: list[int]) -> float:
        """Return the seconds of a step in which the requests have these numbers of draft tokens."""
        passes = (sum(count >= depth for count in counts) for depth in range(1, max(counts) + 1))
        return self.target(len(counts) + sum(counts)) + sum(map(self.drafting, passes))


_known: weakref.WeakKeyDictionary[Transformer, PassTimes] = weakref.WeakKeyDictionary()


def measured_costs(model: Transformer, cache: Any, drafter: Any) -> Costs:
    """Measure a target with its KVCache, and the `model` of a drafter with its `cache`, if it has one."""
    draft = pass_times(drafter.model, drafter.cache) if hasattr(drafter, "model") else None
    return Costs(pass_times(model, cache), draft)


@torch.inference_mode()
def pass_times(model: Transformer, cache: Any) -> PassTimes:
    """Measure passes over SIZES tokens, one of each request, the choice of their next tokens included.

    cache: a stage's KVCache that no request uses yet; its first page is written to. A model is measured once in a
    process.
    """
    if model not in _known:
        seconds: dict[int, float] = {}
        for size in SIZES:
            last = list(seconds)[-2:]
            # The line through neighbours such as 10 and 11 says nothing of larger sizes: they must not be the last two.
            if len(last) == 2 and last[1] > 1.3 * last[0] and seconds[last[1]] >= LONG:
                break
            run = decode_pass(model, cache, size)
            run()  # the first of a size is slower
            seconds[size] = fastest(run)
        _known[model] = PassTimes(seconds)
    return _known[model]


def decode_pass(model: Transformer, cache: Any, requests: int) -> Callable[[], object]:
    """Return a pass over one token of each request; their texts of CONTEXT tokens lie in the same pages."""
    num_pages, page_size = cache.k.shape[1:3]
    # A model with graphs takes the longest sequence of its engine, which may be shorter than the checkpoint's.
    longest = getattr(model, "most_tokens", model.config.context_length)
    length = min(CONTEXT, longest, num_pages * page_size)
    table = list(range(-(-length // page_size)))
    ids = torch.zeros(requests, dtype=torch.int64, device=cache.k.device)
    paged = PagedBatch.pack([1] * requests, [length] * requests, [table] * requests, ids, page_size)

    def run() -> list[int]:
        hidden = model(ids, ids, cache.bind(paged))
        return model.logits(hidden).argmax(-1).tolist()  # The host has the list only when a GPU is done.

    return run


def fastest(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several runs, fewer of long ones."""
    taken = [timed(run)]
    while len(taken) < TIMES and sum(taken) < ENOUGH:
        taken.append(timed(run))
    return min(taken)


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

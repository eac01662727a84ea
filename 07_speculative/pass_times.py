"""NEW in 07: how long a pass of a model takes, by the number of tokens in it. Measured once, when an engine starts."""

import time
import weakref
from collections.abc import Callable

import torch

from common.attention import PagedBatch
from common.model import Transformer

from .adaptive_speculation import Costs, PassTimes
from .drafter import Drafter, DraftModel
from .kv_cache import KVCache

CONTEXT = 128  # tokens of each text
# Tokens. Kernels and graphs end at some sizes, such as 10: one token more may cost much more.
SIZES = (1, 2, 4, 8, 10, 11, 16, 17, 32, 33, 64, 128, 256, 512)
LONG = 0.1  # seconds; passes longer than that are not measured, but estimated from the two longest that were
TIMES = 5  # each; the fastest counts, since whatever disturbs a pass makes it longer

_known: weakref.WeakKeyDictionary[Transformer, PassTimes] = weakref.WeakKeyDictionary()


def measured_costs(model: Transformer, cache: KVCache, drafter: Drafter) -> Costs:
    """Measure a target with that cache, and a drafter."""
    draft = pass_times(drafter.model, drafter.cache) if isinstance(drafter, DraftModel) else None
    return Costs(pass_times(model, cache), draft)


@torch.inference_mode()
def pass_times(model: Transformer, cache: KVCache) -> PassTimes:
    """Measure passes over SIZES tokens, each of another request, up to the token that each has chosen.

    cache: a KVCache that no request uses yet; its first page is written to. A model is measured once in a process.
    """
    if model not in _known:
        seconds: dict[int, float] = {}
        for size in SIZES:
            last = list(seconds)[-2:]
            # A line through neighbours such as 10 and 11 says nothing about larger sizes: they are not the last two.
            if len(last) == 2 and last[1] > 1.3 * last[0] and seconds[last[1]] >= LONG:
                break
            run = decode_pass(model, cache, size)
            run()  # the first of a size is slower
            seconds[size] = min(timed(run) for _ in range(TIMES))
        _known[model] = PassTimes(seconds)
    return _known[model]


def decode_pass(model: Transformer, cache: KVCache, requests: int) -> Callable[[], object]:
    """Return a pass over one token of each request; their texts of CONTEXT tokens lie in the same pages."""
    num_pages, page_size = cache.k.shape[1:3]
    pages = min(-(-CONTEXT // page_size), num_pages)
    ids = torch.zeros(requests, dtype=torch.int64, device=cache.k.device)
    paged = PagedBatch.pack(
        [1] * requests, [pages * page_size] * requests, [list(range(pages))] * requests, ids, page_size
    )

    def run() -> list[int]:
        hidden = model(ids, ids, cache.bind(paged))
        return model.logits(hidden).argmax(-1).tolist()  # a GPU is done when the list is here

    return run


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

"""Where the time of a decode step goes: attention, the rest of the model, sampling, bookkeeping.

For stages 04 and later, whose engines have a cache with a `bind`. Bookkeeping is what remains: the scheduler, the
tensors of the batch, the trace. Functions are timed from outside, so that the engine that is read is the engine that
runs.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from common.engine import BaseEngine

from .engine_load import decoding
from .timing import synchronize

PARTS = ("attention", "model", "sampling", "bookkeeping")


class Stopwatch:
    """Adds up the seconds that functions take, by name."""

    def __init__(self, device: torch.device):
        self.seconds: dict[str, float] = defaultdict(float)
        self.device = device

    def timed(self, name: str, function: Callable) -> Callable:
        def wrapper(*arguments, **options):
            synchronize(self.device)
            start = time.perf_counter()
            result = function(*arguments, **options)
            synchronize(self.device)
            self.seconds[name] += time.perf_counter() - start
            return result

        return wrapper


def step_profile(engine: BaseEngine, requests: int, context: int, steps: int = 20) -> dict[str, float]:
    """Milliseconds of each part of a step in which `requests` requests decode, about `context` tokens behind each.

    The median over the steps; "total" is the whole step. The engine is empty before and after, and changed in between.
    Its token budget should take all prompts in one step, or the first requests have more tokens behind them.
    """
    watch = Stopwatch(engine.device)
    bind = engine.cache.bind
    patches = [
        (engine.cache, "bind", lambda batch: watch.timed("attention", bind(batch))),
        (engine.model, "forward", watch.timed("forward", engine.model.forward)),
        (engine.model, "logits", watch.timed("sampling", engine.model.logits)),
        (engine, "draw", watch.timed("sampling", engine.draw)),
        (engine, "append_tokens", watch.timed("sampling", engine.append_tokens)),
    ]
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in patches]
    records = []
    with decoding(engine, requests, context - steps // 2, tokens=0):
        try:
            for owner, name, timed in patches:
                setattr(owner, name, timed)
            for _ in range(steps):
                watch.seconds.clear()
                engine.step()
                records.append({**watch.seconds, "total": engine.trace[-1].seconds})
        finally:
            for owner, name, original in originals:
                delattr(owner, name) if original is None else setattr(owner, name, original)
    for record in records:
        record["model"] = record.pop("forward") - record["attention"]
        record["bookkeeping"] = record["total"] - sum(record[part] for part in ("attention", "model", "sampling"))
    return {name: 1e3 * statistics.median(record[name] for record in records) for name in (*PARTS, "total")}

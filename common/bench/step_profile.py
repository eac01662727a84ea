"""Where the time of a decode step goes: attention, the rest of the model, sampling, bookkeeping.

For stages 04 and later, whose engines have a cache with a `bind`. Bookkeeping is what remains: the scheduler, the
tensors of the batch, the trace. Functions are timed from outside, so
that the engine that is read is the engine that runs.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

from common.engine import BaseEngine
from common.sampling import SamplingParams

from .workloads import random_prompt

PARTS = ("attention", "model", "sampling", "bookkeeping")


class Stopwatch:
    """Adds up the seconds that functions take, by name."""

    def __init__(self, synchronize: Callable[[], None]):
        self.seconds: dict[str, float] = defaultdict(float)
        self.synchronize = synchronize  # waits for a GPU, which works on while Python goes ahead

    def timed(self, name: str, function: Callable) -> Callable:
        def wrapper(*arguments, **options):
            self.synchronize()
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.synchronize()
            self.seconds[name] += time.perf_counter() - start
            return result

        return wrapper


def step_profile(engine: BaseEngine, requests: int, context: int, steps: int = 20) -> dict[str, float]:
    """Milliseconds of each part of a step in which so many requests decode, about `context` tokens behind each.

    The median over the steps; "total" is the whole step. The engine is empty before and after, and changed in between.
    Its token budget must be large enough for all prompts in one step, or else some would have ended before the last
    one begins: ValueError.
    """
    watch = Stopwatch(synchronizer(engine))
    bind = engine.cache.bind
    patches = [
        (engine.cache, "bind", lambda batch: watch.timed("attention", bind(batch))),
        (engine.model, "forward", watch.timed("forward", engine.model.forward)),
        (engine.model, "logits", watch.timed("sampling", engine.model.logits)),
        (engine, "draw", watch.timed("sampling", engine.draw)),
        (engine, "append_tokens", watch.timed("sampling", engine.append_tokens)),
    ]
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in patches]
    endless = SamplingParams(max_tokens=steps + 2, ignore_eos=True)
    for i in range(requests):
        engine.add(random_prompt(context - steps // 2, engine.config.vocab_size, i), endless)
    records = []
    try:
        if len(engine.step()) < requests:
            raise ValueError(f"the prompts of {requests} requests do not fit into one step of this engine")
        for owner, name, timed in patches:
            setattr(owner, name, timed)
        for _ in range(steps):
            watch.seconds.clear()
            engine.step()
            records.append({**watch.seconds, "total": engine.trace[-1].seconds})
    finally:
        for owner, name, original in originals:
            delattr(owner, name) if original is None else setattr(owner, name, original)
        for request_id in list(engine.requests):
            engine.abort(request_id)
    for record in records:
        record["model"] = record.pop("forward") - record["attention"]
        record["bookkeeping"] = record["total"] - sum(record[part] for part in ("attention", "model", "sampling"))
    return {name: 1e3 * statistics.median(record[name] for record in records) for name in (*PARTS, "total")}


def synchronizer(engine: BaseEngine) -> Callable[[], None]:
    if engine.device.type != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize

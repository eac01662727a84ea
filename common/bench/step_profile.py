"""Where the time of a decode step goes: attention, the rest of the model, sampling, bookkeeping.

For stages 04 and later. Bookkeeping is what remains: the scheduler, the tensors of the batch, the trace.
"""

import statistics

from common.engine import BaseEngine
from common.inspector.step_clock import StepClock

from .engine_load import decoding

PARTS = ("attention", "model", "sampling", "bookkeeping")


def step_profile(engine: BaseEngine, requests: int, context: int, steps: int = 20) -> dict[str, float]:
    """Return milliseconds of each part of a step in which `requests` requests decode, `context` tokens behind each.

    The median over the steps; "total" is the whole step. The engine is empty before and after, and changed in between.
    Its token budget should take all prompts in one step, or the first requests have more tokens behind them.
    """
    clock, records = StepClock(engine), []
    with decoding(engine, requests, context - steps // 2, tokens=0), clock.running():
        for _ in range(steps):
            engine.step()
            total = engine.trace[-1].seconds
            records.append(clock.take(total) | {"total": total})
    return {name: 1e3 * statistics.median(record[name] for record in records) for name in (*PARTS, "total")}

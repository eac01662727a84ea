"""Steps of an engine in which requests only decode: how long they take, and what takes it."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from common.engine import BaseEngine
from common.request import Request
from common.sampling import SamplingParams
from common.step_clock import StepClock

from .workloads import page_prompt

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
PARTS = ("attention", "model", "sampling", "bookkeeping")


@contextmanager
def decoding(
    engine: BaseEngine, requests: int, prompt_tokens: int, params: SamplingParams = ENDLESS, tokens: int = 2
) -> Iterator[list[Request]]:
    """Run `requests` requests until each has more than `tokens` output tokens; abort them when the block ends.

    The prompts are always the same, so that a prefix cache may find them again.
    """
    prompts = [page_prompt(engine, prompt_tokens, f"decode {i}") for i in range(requests)]
    added = [engine.add(prompt, params) for prompt in prompts]
    try:
        while not all(len(request.token_ids) > tokens for request in added):
            engine.step()
        yield added
    finally:
        for request in added:
            engine.abort(request.request_id)


def decode_seconds(engine: BaseEngine, requests: int, prompt_tokens: int, warm_up: int = 2, steps: int = 20) -> float:
    """Return the median seconds of `steps` steps in which `requests` requests decode, behind `warm_up` tokens each."""
    with decoding(engine, requests, prompt_tokens, tokens=warm_up):
        for _ in range(steps):
            engine.step()
    return statistics.median(step.seconds for step in list(engine.trace)[-steps:])


def step_profile(engine: BaseEngine, requests: int, context: int, steps: int = 20) -> dict[str, float]:
    """Return milliseconds of each part of a step in which `requests` requests decode, `context` tokens behind each.

    The median over the steps; "total" is the whole step. Bookkeeping is what remains: the scheduler, the tensors of the
    batch, the trace. The engine, of stage 04 or later, is empty before and after, and changed in between. Its token
    budget should take all prompts in one step, or the first requests have more tokens behind them.
    """
    clock, records = StepClock(engine), []
    with decoding(engine, requests, context - steps // 2, tokens=0), clock.running():
        for _ in range(steps):
            engine.step()
            total = engine.trace[-1].seconds
            records.append(clock.take(total) | {"total": total})
    return {name: 1e3 * statistics.median(record[name] for record in records) for name in (*PARTS, "total")}

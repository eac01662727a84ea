"""Requests that come and are aborted at any moment, for engines whose memory must then be free."""

import random

from common.engine import BaseEngine
from common.sampling import SamplingParams


def abort_at_random(engine: BaseEngine, prompts: list[list[int]], seed: int) -> None:
    """Add, abort and step 60 times, then abort what is left; the engine's books balance after each step."""
    rng = random.Random(seed)
    for _ in range(60):
        action = rng.random()
        if action < 0.5:
            engine.add(rng.choice(prompts), SamplingParams(max_tokens=40))
        elif action < 0.8 and engine.requests:
            engine.abort(rng.choice(list(engine.requests)))
        engine.step()
        engine.check()
    for request_id in list(engine.requests):
        engine.abort(request_id)
    engine.check()

"""How fast this machine runs stage 05, as one JSON line: the seconds until an engine is ready, and those of a step."""

import time

STARTED = time.monotonic()

import json  # noqa: E402 (the clock starts before anything is imported)
import statistics  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402

from common.acceleration.accelerate import make_engine  # noqa: E402
from common.engine import BaseEngine  # noqa: E402
from common.loader import load_model  # noqa: E402
from common.sampling import SamplingParams  # noqa: E402
from common.stages import load_engine  # noqa: E402

REQUESTS, PROMPT, TOKENS, WARM_UP = 8, 64, 64, 8
MOST_SECONDS = 20


def measure() -> dict:
    loaded = load_model()
    engine = make_engine(load_engine("05"), loaded, kv_memory="64M")
    ready = time.monotonic() - STARTED
    return {
        "requests": REQUESTS,
        "step_ms": 1e3 * statistics.median(step_seconds(engine, loaded.config.vocab_size)),
        "ready_seconds": ready,
        "device": loaded.device.type,
        "cuda": torch.version.cuda,
    }


def step_seconds(engine: BaseEngine, vocab_size: int) -> list[float]:
    """Return the seconds of steps in which all of REQUESTS requests decode, without the first WARM_UP.

    Exit with a sentence if there are none after MOST_SECONDS.
    """
    for number in range(REQUESTS):
        prompt = [(number * PROMPT + place) % vocab_size for place in range(PROMPT)]
        engine.add(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    give_up = time.monotonic() + MOST_SECONDS
    while engine.has_unfinished and time.monotonic() < give_up:
        engine.step()
    steps = [step for step in engine.trace if [work.phase for work in step.works] == ["decode"] * REQUESTS]
    if len(steps) <= WARM_UP:
        sys.exit(f"{len(steps)} steps took {MOST_SECONDS} s: end what keeps the cores busy, and try again")
    return [step.seconds for step in steps[WARM_UP:]]


if __name__ == "__main__":
    print(json.dumps(measure()))

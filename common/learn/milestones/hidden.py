"""Checks for grading: what every stage promises, on requests that a seed of the instructor's draws.

They are written as milestones are. The public ones have examples of their own; code that knows those fails here.
"""

import os
import random

from common.sampling import SamplingParams

from . import milestone
from .runner import SEED
from .stage_under_test import STORIES, drain, expect, expect_rows, expect_tokens


def draw(stage, check: str) -> tuple[random.Random, list[list[int]]]:
    """Return a source of numbers of the instructor's seed, and eight prompts of 3 to 90 tokens."""
    rng = random.Random(f"{os.environ[SEED]} {check}")
    texts = [f"{rng.choice(STORIES)} {rng.randrange(10**6)}, " * 9 for _ in range(8)]
    return rng, [stage.loaded.tokenizer(text)["input_ids"][: rng.randint(3, 90)] for text in texts]


@milestone("", seconds=90)
def test_hidden_prompts(stage):
    """Requests that come and are aborted at any time get the model's likeliest tokens, and leave nothing behind."""
    rng, prompts = draw(stage, "prompts")
    engine, requests = stage.make_engine(), []
    for prompt in prompts:
        requests.append(engine.add(prompt, SamplingParams(max_tokens=rng.randint(8, 24), ignore_eos=True)))
        for _ in range(rng.randint(0, 3)):
            engine.step()
    for request in rng.sample(requests, 3):
        engine.abort(request.request_id)
        engine.step()
    drain(engine)
    expect_tokens(stage, engine, [one for one in requests if one.finish_reason == "length"])
    left = {name: engine.stats()[name] for name in ("unfinished", "kv_tokens_used")}
    expect(not any(left.values()), f"with nothing left to do, the engine's stats say {left}")


@milestone("", seconds=90)
def test_hidden_seeds(stage):
    """A request with a seed gets the same tokens alone and in company."""
    rng, prompts = draw(stage, "seeds")
    params = [SamplingParams(temperature=0.8, max_tokens=12, seed=rng.randrange(2**32)) for _ in prompts]
    together = stage.make_engine().generate(prompts, params)
    for prompt, one, done in zip(prompts[:4], params, together, strict=False):
        [alone] = stage.make_engine().generate([prompt], [one])
        expect_rows(f"seed {one.seed}, in company and alone", done.token_ids, alone.token_ids)

"""Lesson 01: the check of its exercise."""

from . import exercise
from .pictures import timeline
from .stage_under_test import drain, endless, expect, expect_tokens, letters


@exercise(
    2,
    hint="`self.requests` is in order of arrival, and `schedule` takes the first. Where must it stand after its step?",
    second_hint="If it has not ended, move it behind the others: self.requests[id] = self.requests.pop(id).",
)
def requests_take_turns(stage):
    """Each step serves the request that has waited longest for a token, and no token changes."""
    engine, prompts = stage.make_engine(), stage.prompts(4, 8)
    requests = [engine.add(prompt, endless(5)) for prompt in prompts[:3]]
    for _ in range(9):
        engine.step()
    counts = [len(request.token_ids) for request in requests]
    picture = timeline(engine.trace, letters([request.request_id for request in requests]))
    expect(counts == [3, 3, 3], f"after nine steps A, B and C have {counts} tokens, not three each", picture)
    requests.append(engine.add(prompts[3], endless(1)))
    for _ in range(4):
        engine.step()
    picture = timeline(engine.trace, letters([request.request_id for request in requests]))
    expect(requests[3].finished, "D arrived before step 10, and has no token after step 13", picture)
    drain(engine)
    right = [*stage.right_tokens(prompts[:3], 5), *stage.right_tokens(prompts[3:], 1)]
    expect_tokens(stage, engine, requests, right)

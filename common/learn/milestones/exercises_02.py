"""Lesson 02: the check of its exercise."""

from common.stages import load_engine

from . import exercise
from .stage_under_test import endless, expect, expect_tokens

LEAST = 64  # places


@exercise(
    2,
    hint="`attend` knows when the new tokens no longer fit. Copy what is held then, for all layers at once.",
    second_hint="Make room for max(needed, 2 * capacity) tokens: a prompt may need more than twice what is there.",
)
def a_cache_that_grows(stage):
    """A cache has at most 64 places or twice the tokens it holds, and each token is copied once on average."""
    for prompt_tokens, max_tokens in ((60, 210), (200, 4)):
        engine, [prompt] = stage.make_engine(), stage.prompts(1, prompt_tokens)
        request, copied, room = engine.add(prompt, endless(max_tokens)), 0, 0
        for held in range(prompt_tokens, prompt_tokens + max_tokens - 1):
            engine.step()
            before, room = room, engine.stats()["kv_tokens_reserved"]
            most = max(LEAST, 2 * held)
            expect(held <= room <= most, f"{held} tokens are held in {room} places: {held} to {most} are allowed")
            copied += held - 1 if before not in (0, room) else 0
        expect(copied < 2 * held, f"{copied} tokens were copied to hold {held}: each time the cache must double")
        engine.step()
        right = load_engine("03")(stage.loaded).generate([prompt], endless(max_tokens))  # 01 would take long
        expect_tokens(stage, engine, [request], [right[0].token_ids])

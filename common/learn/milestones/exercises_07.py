"""Lesson 07: the check of its exercise."""

from common.loader.draft import load_draft_model

from . import exercise
from .paged import decoding
from .stage_under_test import endless, expect, expect_rows, expect_tokens


@exercise(
    2,
    hint="Both drafters fill `chunk.draft` of the chunks that they are given. Which chunks does the draft model get?",
    second_hint="Give `DraftModel` a PromptLookup: let it draft first, then pass on the chunks whose draft is empty.",
)
def look_up_first(stage):
    """What lookup finds is drafted without the draft model; where it finds nothing, the draft model drafts."""
    ran: list[int] = []  # tokens in each pass of the draft model
    model = load_draft_model("auto", stage.loaded).model  # the engine's own: it is loaded once
    model.register_forward_hook(lambda module, inputs, output: ran.append(len(inputs[0])))
    engine = stage.make_engine(num_draft_tokens=4, attention="torch")
    ran.clear()
    for name, prompt in {"A": [5, 6, 7, 8, 9, 5, 6], "B": [15, 16, 17, 18, 19, 20, 21]}.items():
        decoding(stage, engine.scheduler, name, prompt)  # with 7 as the newest token
    a, b = engine.scheduler.schedule()
    engine.drafter.draft([a, b])
    expect_rows("draft tokens of A, which has had 5 6 7 before", a.draft.token_ids, [8, 9, 5, 6])
    expect(len(b.draft.token_ids) == 4, f"lookup finds nothing in B, and it got {len(b.draft.token_ids)} draft tokens")
    expect(sum(ran) == 8 + 3, f"the draft model ran {sum(ran)} tokens: 11 are B's 8 tokens and 3 that it has drafted")
    engine, prompts = stage.make_engine(num_draft_tokens=4, attention="torch"), stage.prompts(3, 12)
    requests = engine.generate([prompt * (1 + i) for i, prompt in enumerate(prompts)], endless(16))
    right = stage.right_tokens([request.prompt_token_ids for request in requests], 16)
    expect_tokens(stage, engine, requests, right)

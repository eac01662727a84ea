"""Stage 07a: the engine drafts, verifies, and counts what became of the draft tokens."""

from . import milestone
from .pictures import timeline
from .stage_under_test import drain, endless, expect, expect_tokens, letters


@milestone(
    "Engine.step, Engine.schedule, Engine.run, Engine.commit, Engine.stats",
    expected="With draft tokens the tokens are those of stage 02, in fewer steps; also where pages run short. The "
    "counters `drafted` and `accepted` of the step's record say how many draft tokens ran, and were accepted.",
    hint="schedule: draft, then sort chunks by num_tokens > 1. run: verify(logits, requests, drafts).",
    second_hint="commit: append the tokens, count_accepted, cache_full_pages, then retire.",
)
def more_tokens_in_fewer_steps(stage):
    prompts = [*stage.prompts(3, 24), stage.loaded.tokenizer("one two three four five one two three four")["input_ids"]]
    right = stage.right_tokens(prompts, 24)
    token_bytes = stage.token_bytes + 1024  # the bundled draft model's K and V too
    for draft, memory in (("auto", None), ("lookup", None), ("auto", 8 * 16 * token_bytes)):
        engine = stage.make_engine(num_draft_tokens=4, draft=draft, attention="torch", kv_memory=memory or "64M")
        timed: list[list[int]] = []
        engine.scheduler.speculation.record_step_time = lambda seconds, counts, timed=timed: timed.append(counts)
        requests = [engine.add(prompt, endless(24)) for prompt in prompts]
        names = letters(engine.requests)
        drain(engine)
        expect_tokens(stage, engine, requests, right)
        engine.check()
        stats, steps = engine.stats(), list(engine.trace)
        drafted, accepted = (sum(step.counters.get(name, 0) for step in steps) for name in ("drafted", "accepted"))
        said = [stats.get("draft_tokens"), stats.get("accepted_tokens")]
        counters = f"the trace's counters `drafted` and `accepted` add up to {drafted} and {accepted}"
        expect(said == [drafted, accepted], f"{counters}, and stats() says {said[0]} and {said[1]}")
        long = [[work.tokens > 1 for work in step.works] for step in steps]
        expect(all(step == sorted(step) for step in long), "chunks of one token come first in every step")
        decodes = sum(all(work.phase == "decode" for work in step.works) for step in steps)
        said = f"{decodes} steps ran no prompt, and `record_step_time` was called {len(timed)} times"
        expect(len(timed) == decodes, said)
        if memory is None:
            texts = [(request.all_token_ids, request.num_tokens) for request in requests]
            pages = {tuple(text[:end]) for text, count in texts for end in range(16, count, 16)}
            size = engine.scheduler.allocator.tree.size
            said = f"{len(pages)} full pages were computed, and the tree has {size} when all have ended"
            expect(size == len(pages), said)
        expect(0 < accepted <= drafted, f"draft={draft}: {accepted} of {drafted} draft tokens were accepted")
        if draft == "auto" and memory is None:
            expect(len(steps) < 24, f"24 tokens took {len(steps)} steps", timeline(steps[:12], names))
    expect(stats["preemptions"] > 0, "nothing was preempted in a pool of 8 pages")

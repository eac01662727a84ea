"""Stage 05: the whole engine, short of pages, and what it says of them."""

from . import Failed, milestone
from .paged import owners
from .pictures import bars
from .stage_under_test import drain, endless, expect, expect_error, expect_rows, expect_tokens, letters


@milestone(
    "Scheduler.schedule, Engine.schedule, Engine.run",
    expected="Ten requests in a pool of 8 pages are preempted again and again; all end, with the tokens of stage 02. "
    'The trace counts it: record.counters["preemptions"].',
    hint="Extend all decodes before you build chunks of prompts; a preempted sequence has no chunk in this step.",
    second_hint="Iterate over list(self.running.values()): `_extend` may change `running` meanwhile.",
)
def short_of_pages_and_no_token_changed(stage):
    prompts = [prompt[: 12 + 3 * i] for i, prompt in enumerate(stage.prompts(10, 40))]
    engine = stage.make_engine(kv_memory=8 * 16 * stage.token_bytes, attention="torch")
    requests = [engine.add(prompt, endless(24)) for prompt in prompts]
    drain(engine)
    expect_tokens(stage, engine, requests, stage.right_tokens(prompts, 24))
    expect(engine.scheduler.preemptions > 0, "nothing was preempted, so the pool of 8 pages was never used up")
    expect(all(step.works for step in engine.trace), "`Engine.schedule` must record what runs: record.work(...)")
    late = [[work.phase != "decode" for work in step.works] for step in engine.trace]
    expect(all(step == sorted(step) for step in late), "requests that decode come before prompts in every step")
    counted = engine.trace[-1].counters.get("preemptions")
    expect(counted == engine.scheduler.preemptions, f"the trace's counter `preemptions` is {counted}")


@milestone(
    "Scheduler.check, Engine.stats",
    expected="`stats` counts the tokens that have pages, and `preemptions`; less than one page for each request is "
    "reserved for no token.",
    hint="kv_tokens_reserved is the sum of the tables' capacities, kv_tokens_used that of `computed`.",
    second_hint="`check`: 0 <= computed < num_tokens, and computed <= capacity < num_tokens + page_size.",
)
def the_books_balance(stage):
    engine = stage.make_engine(kv_memory=64 * 16 * stage.token_bytes, attention="torch")
    for prompt in [stage.prompts(1, 15)[0], *stage.prompts(10, 50)[1:]]:  # the first fills its page in the second step
        engine.add(prompt, endless(40))
    for step in range(1, 4):
        engine.step()
        try:
            engine.check()
        except AssertionError as error:
            said = f"`check` finds fault with books that are right, after step {step}: {error or 'AssertionError'}"
            raise Failed(said, owners(engine.scheduler)) from None
    stats, running = engine.stats(), engine.scheduler.running
    used = sum(sequence.computed for sequence in running.values())
    pages = sum(len(sequence.page_table.pages) for sequence in running.values())
    wanted = {"running": len(running), "waiting": 10 - len(running), "preemptions": 0, "kv_tokens_capacity": 1024}
    wanted |= {"kv_tokens_used": used, "kv_tokens_reserved": 16 * pages}
    wanted |= {"kv_bytes_reserved": 16 * pages * stage.token_bytes}
    waste = {"slots of stage 04": 1 - used / (512 * len(running)), "your pages": 1 - used / (16 * pages)}
    expect(16 * pages - used < 16 * len(running), "more than a page for each request is empty", bars(waste, 1.0))
    expect_rows("stats", [stats.get(name) for name in wanted], list(wanted.values()), name=list(wanted))
    names = list(letters(running))
    for wrong in ("computed", "pages"):
        sequence = running[names[0]]
        saved = sequence.computed
        if wrong == "computed":
            sequence.computed = sequence.request.num_tokens
        else:
            engine.scheduler.allocator.extend(sequence.page_table, sequence.request.num_tokens + 40)
        expect_error(AssertionError, engine.scheduler.check, f"`check`, with wrong {wrong} in a sequence,")
        sequence.computed = saved

"""Lesson 08: the check of its exercise."""

from ...errors import InvalidInput
from . import exercise
from .pictures import rows
from .stage_under_test import endless, expect, expect_error, expect_tokens
from .workers import make_fleet_engine


@exercise(
    2,
    hint="Handle.open says whether one more request may go there, and both functions that choose ask it.",
    second_hint="Give Handle an attribute: each life of a worker has a new Handle, so a new process gets orders again.",
)
def a_worker_is_drained(stage):
    """A worker that is drained ends what it holds and gets nothing new; the last of its kind stays open."""
    engine = make_fleet_engine(stage, prefill=1, decode=2)
    expect(hasattr(engine, "drain"), "the engine has no method `drain(number)`")
    prompts = stage.prompts(8, 20)
    requests = [engine.add(prompt, endless(12)) for prompt in prompts[:4]]
    worker = engine.handles[2]
    for _ in range(40):
        if worker.held:
            break
        engine.step()
    expect(worker.held, "after 40 steps decode worker 2 holds nothing")
    before = set(worker.held)
    engine.drain(2)
    requests += [engine.add(prompt, endless(12)) for prompt in prompts[4:]]
    while engine.has_unfinished:
        engine.step()
        new = set(worker.held) - before
        held = {one.number: len(one.held) for one in engine.handles}
        picture = rows({"worker": held, "requests": held.values()})
        expect(not new, f"worker 2 was drained when it held {sorted(before)}, and got {sorted(new)}", picture)
    expect_tokens(stage, engine, requests, stage.right_tokens(prompts, 12))
    expect(not engine.stats()["requests_resumed"], "a request began again: what the worker held it must end")
    expect_error(InvalidInput, lambda: engine.drain(1), "`drain(1)`, of the last decode worker,")

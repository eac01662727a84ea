"""Lesson 05: the check of its exercise."""

from . import exercise
from .paged import decoding, make_scheduler, owners
from .pictures import timeline
from .stage_under_test import drain, endless, expect, expect_rows, expect_tokens, letters, make_request


@exercise(
    3,
    hint="A request that returns its pages must not run in this step. Has it got its chunk already when another asks?",
    second_hint="Extend all decodes before you build the first chunk. Queue what you preempt by its timings.arrival.",
)
def the_cheapest_gives_way(stage):
    """When no page is free, the request with the fewest tokens computed returns its pages, never the oldest."""
    scheduler = make_scheduler(stage, pages=11, page_size=16)
    for name, tokens in {"A": 16, "B": 14, "C": 30, "D": 112}.items():
        decoding(stage, scheduler, name, tokens)
    scheduler.waiting.append(make_request("F", 3))
    before, chunks = owners(scheduler), scheduler.schedule()
    picture = f"before\n{before}\nafter `schedule`\n{owners(scheduler)}"
    said = "A and D need a page: B has 14 tokens computed, then C has the fewest, with 30"
    left = f"in your `running` are {', '.join(scheduler.running)}, and wanted are A, D"
    expect(list(scheduler.running) == ["A", "D"], f"{said}; {left}", picture)
    ran = [chunk.sequence.request.request_id for chunk in chunks]
    expect(ran == ["A", "D"], f"{', '.join(ran)} have chunks, and B and C have given their pages back", picture)
    expect_rows("the queue, in order of arrival", [request.request_id for request in scheduler.waiting], "BCF")

    prompts = [*stage.prompts(3, 20), stage.prompts(4, 150)[3]]
    engine = stage.make_engine(kv_memory=24 * 16 * stage.token_bytes, attention="torch")
    requests = [engine.add(prompt, endless(60)) for prompt in prompts]
    drain(engine)
    expect_tokens(stage, engine, requests, stage.right_tokens(prompts, 60))
    names, last = letters([request.request_id for request in requests]), requests[3].request_id
    ran = sum(work.tokens for step in engine.trace for work in step.works if work.request_id == last)
    picture = timeline([step for step in engine.trace if any(work.phase == "prefill" for work in step.works)], names)
    expect(ran == 209, f"D, with a prompt of 150 tokens, ran {ran}, not 209: cheaper ones were there", picture)

"""What a page is told, without a browser: the updates of a watched engine, and its pace."""

import asyncio
import json
import time

import pytest

from common.acceleration.accelerate import overlapped
from common.inspector.feed import MAX_BEHIND, Page, Tape
from common.inspector.pace import Pace
from common.inspector.screenshots import SCENES
from common.inspector.watched import Watched
from common.sampling import SamplingParams
from common.stages import load_engine
from tests.helpers.engine_options import endless

OPTIONS = {"07": {"num_draft_tokens": 3}, "08": {"kv_memory": "16M", "num_draft_tokens": 3}}
PROMPTS = ["The capital of France is", "Count from 1 to 30.", "What is 2+2?"]


def watched_engine(stage: str, loaded) -> Watched:
    stage, *around = stage.split("+")
    engine_class = overlapped(load_engine(stage)) if around else load_engine(stage)
    engine = engine_class(loaded, **OPTIONS.get(stage, {}))
    engine.hooks.append(watched := Watched(engine))
    watched.open_reader(Tape(""))
    return watched


def updates(watched: Watched) -> list[dict]:
    """Run the engine to its end, and return what its page was told."""
    while watched.engine.has_unfinished:
        watched.engine.advance()
    watched.look_soon()
    watched.engine.advance()
    [tape] = watched.readers
    return [json.loads(line) for line in tape.lines[1:]]


@pytest.mark.parametrize("stage", [*SCENES, "06+overlap"])
def test_updates_add_up_to_what_the_engine_has_done(loaded, stage):
    """And its tokens are those of an engine that is not watched."""
    params = endless(9)
    plain = load_engine(stage[:2])(loaded, **OPTIONS.get(stage, {})).generate(PROMPTS, params)
    watched = watched_engine(stage, loaded)
    requests = [watched.engine.add(prompt, params) for prompt in PROMPTS]
    told = updates(watched)
    rows = [row for update in told for row in update["requests"]]
    for number, (request, expected) in enumerate(zip(requests, plain, strict=True)):
        mine = [row for row in rows if row["n"] == number]
        text = ""
        for start, piece in (row["text"] for row in mine if "text" in row):
            text = text[:start] + piece
        assert text == request.text == expected.text
        assert [token_id for row in mine for token_id, _ in row.get("tokens", [])] == expected.token_ids
        assert mine[-1]["finish"] == "length"
    works = [tuple(work) for update in told for step in update["steps"] for work in step["works"]]
    numbers = {request.request_id: number for number, request in enumerate(requests)}
    done = [(numbers[one.request_id], one.phase, one.tokens) for record in watched.engine.trace for one in record.works]
    assert works == done
    assert told[-1]["running"] == told[-1]["waiting"] == []


def test_nothing_is_read_while_no_page_is_open(loaded, monkeypatch):
    engine = load_engine("05")(loaded)
    engine.hooks.append(watched := Watched(engine))
    monkeypatch.setattr(watched.view, "update", lambda *_: pytest.fail("the view was read for no page"))
    monkeypatch.setattr(watched.clock, "running", lambda: pytest.fail("the clock runs for no page"))
    engine.add(PROMPTS[0], SamplingParams(max_tokens=4))
    while engine.has_unfinished:
        engine.advance()


def test_a_finished_request_is_told_once_and_forgotten(loaded):
    """A page may be open for weeks."""
    watched = watched_engine("05", loaded)
    for _ in range(3):
        aborted, _ = (watched.engine.add(PROMPTS[1], SamplingParams(max_tokens=3)) for _ in range(2))
        watched.engine.advance()
        watched.engine.abort(aborted.request_id)
        told = updates(watched)
    assert not watched._known.requests
    rows = [row for update in told for row in update["requests"]]
    assert sorted(row["n"] for row in rows if "finish" in row) == sorted(row["n"] for row in rows if "id" in row)
    assert sum("id" in row for row in rows) == 6


def test_a_page_is_told_each_second_however_long_a_look_takes(loaded, monkeypatch):
    """The longer the pause after a look, the more the next one has to tell: without a bound both would grow."""
    monkeypatch.setattr("common.inspector.watched.MAX_SHARE", 1e-9)
    watched = watched_engine("05", loaded)
    watched.engine.add(PROMPTS[0], SamplingParams(max_tokens=4))
    watched.engine.advance()
    assert watched._next_look < time.perf_counter() + 1.1


def test_the_pace_permits_what_was_asked_for():
    pace = Pace()
    for _ in range(2):
        pace.ask("step")
    assert [pace.permit() for _ in range(3)] == [True, True, False]
    pace.ask("resume")
    pace.limit(0.001)
    assert [pace.permit(), pace.permit()] == [True, False]


def test_a_page_that_does_not_keep_up_is_dropped():
    async def slow() -> tuple[bool, list]:
        page = Page()
        for number in range(MAX_BEHIND + 1):
            page.tell(str(number))
        await asyncio.sleep(0)
        return page.dropped, [update async for update in page.updates()]

    assert asyncio.run(slow()) == (True, [])

"""What a page is told, without a browser: the stream of updates, the pace, which page may control, the document."""

import json

import pytest

from common.inspector import document
from common.inspector.feed import MOST_BEHIND, Feed
from common.inspector.load import Titles
from common.inspector.pace import Pace
from common.inspector.scenes import SCENES, Tape
from common.inspector.watched import Watched
from common.sampling import SamplingParams
from common.stages import load_engine

OPTIONS = {"07": {"num_draft_tokens": 3}, "08": {"kv_memory": "16M"}}


def watched_engine(stage: str, loaded) -> Watched:
    watched = Watched(load_engine(stage)(loaded, **OPTIONS.get(stage, {})))
    watched.feed = Tape()
    return watched


@pytest.mark.parametrize("stage", SCENES)
def test_updates_add_up_to_what_the_engine_has_done(loaded, stage):
    watched = watched_engine(stage, loaded)
    prompts = ["The capital of France is", "Count from 1 to 30.", "What is 2+2?"]
    requests = [watched.add(prompt, SamplingParams(max_tokens=9, ignore_eos=True)) for prompt in prompts]
    while watched.has_unfinished:
        watched.step()
    watched.look_soon()
    watched.step()
    updates = [json.loads(line) for line in watched.feed.lines]
    rows = [row for update in updates for row in update["requests"]]
    for number, request in enumerate(requests):
        mine = [row for row in rows if row["n"] == number]
        text = ""
        for start, piece in (row["text"] for row in mine if "text" in row):
            text = text[:start] + piece
        assert text == request.text
        assert [token_id for row in mine for token_id, _ in row.get("tokens", [])] == request.token_ids
        assert mine[-1]["finish"] == "length"
    works = [tuple(work) for update in updates for step in update["steps"] for work in step["works"]]
    numbers = {request.request_id: number for number, request in enumerate(requests)}
    done = [(numbers[one.request_id], one.phase, one.tokens) for record in watched.trace for one in record.works]
    assert works == done
    assert updates[-1]["running"] == updates[-1]["waiting"] == []


def test_engines_that_share_a_model_leave_it_as_it_was(loaded):
    """Two stages side by side share one: what is measured at one engine is not heard at the other."""
    before = dict(vars(loaded.model))
    first, second = watched_engine("05", loaded), watched_engine("06", loaded)
    for watched in (first, second):
        watched.probes.attach()
    second.add("The capital of France is", SamplingParams(max_tokens=4, ignore_eos=True))
    second.probes.engine.step()
    heard = second.probes.take(1.0)["parts"]
    assert all(heard[part] > 0 for part in ("attention", "model", "sampling", "bookkeeping"))
    assert first.probes.take(1.0) == {}
    for watched in (first, second):
        watched.probes.detach()
        assert watched.probes.engine.model is loaded.model and "run" not in vars(watched.probes.engine)
    assert vars(loaded.model) == before


def test_nothing_is_read_while_no_page_is_open(loaded, monkeypatch):
    watched = Watched(load_engine("05")(loaded))
    monkeypatch.setattr(watched.view, "update", lambda *_: pytest.fail("the view was read for no page"))
    monkeypatch.setattr(watched.probes, "attach", lambda: pytest.fail("the probes listen for no page"))
    watched.add("The capital of France is", SamplingParams(max_tokens=4))
    while watched.has_unfinished:
        watched.step()


def test_tokens_are_those_of_an_engine_that_is_not_watched(loaded):
    prompts, params = ["The capital of France is", "Count from 1 to 30."], SamplingParams(max_tokens=12)
    plain = load_engine("07")(loaded, num_draft_tokens=3).generate(prompts, params)
    watched = watched_engine("07", loaded)
    requests = [watched.add(prompt, params) for prompt in prompts]
    while watched.has_unfinished:
        watched.step()
    assert [request.token_ids for request in requests] == [request.token_ids for request in plain]


def test_a_finished_request_is_told_once_and_forgotten(loaded):
    """A page may be open for weeks."""
    watched = Watched(load_engine("05")(loaded))
    watched.feed = Tape()
    for _ in range(3):
        aborted, whole = (watched.add("Count from 1 to 30.", SamplingParams(max_tokens=3)) for _ in range(2))
        watched.step()
        watched.abort(aborted.request_id)
        while watched.has_unfinished:
            watched.step()
        watched.look_soon()
        watched.step()
    assert not watched._known.requests
    rows = [row for line in watched.feed.lines for row in json.loads(line)["requests"]]
    assert sorted(row["n"] for row in rows if "finish" in row) == sorted(row["n"] for row in rows if "id" in row)
    assert sum("id" in row for row in rows) == 6


def test_a_request_is_aborted_once_before_the_next_step(loaded):
    """The page aborts any client's request. The client's stream learns of it from the step, so it is told once."""
    watched = watched_engine("05", loaded)
    first, second = (watched.add("Count from 1 to 30.", SamplingParams(max_tokens=9)) for _ in range(2))
    watched.pace.pause()
    for request_id in (first.request_id, first.request_id, "unknown"):
        watched.abort_soon(request_id)
    assert watched.step() == [first] and first.finish_reason == "abort" and not second.finished
    assert watched.step() == []


def test_a_preempted_request_is_named_in_its_step(loaded):
    watched = Watched(load_engine("05")(loaded, kv_memory="2M"))
    watched.feed = Tape()
    for _ in range(4):
        watched.add("Once upon a time", SamplingParams(max_tokens=120, ignore_eos=True))
    while watched.has_unfinished:
        watched.step()
    named = [step.get("preempted", []) for line in watched.feed.lines for step in json.loads(line)["steps"]]
    assert sum(map(len, named)) == watched.stats()["preemptions"] > 0


def test_a_paused_engine_takes_the_steps_that_are_asked_for():
    pace = Pace()
    assert pace.permit()
    pace.pause()
    assert not pace.permit()
    pace.one()
    pace.one()
    assert [pace.permit() for _ in range(3)] == [True, True, False]
    pace.resume()
    assert pace.permit()


def test_a_limited_engine_takes_no_two_steps_at_once():
    pace = Pace()
    pace.limit(0.001)
    assert [pace.permit(), pace.permit()] == [True, False]
    pace.limit(None)
    assert pace.permit()


def test_a_reader_that_does_not_keep_up_is_dropped_and_keeps_no_other_waiting():
    import asyncio

    async def slow() -> bool:
        reader = Feed().open()
        for number in range(MOST_BEHIND + 1):
            reader.put(str(number))
        return reader.dropped

    assert asyncio.run(slow())


def test_titles_are_bounded():
    titles = Titles()
    for number in range(6000):
        titles[number,] = "a title"
    assert len(titles) == 5000 and (5999,) in titles


def test_no_text_ends_the_element_that_holds_it():
    text = document.document({"recording": "</script><script>alert(1)</script>"})
    assert "</script><script>alert" not in text

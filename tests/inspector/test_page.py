"""The page in a real browser, on the real server with the real model: what it shows is what the engine has done."""

import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from common.inspector import books
from common.inspector.document import read_recording
from common.inspector.screenshots import SCENES
from common.loader import chat_prompt
from common.process import free_port
from common.sampling import SamplingParams
from common.stages import ROOT, load_engine, load_stage_module, stage_folder
from tests.helpers.faulty_fleet import FaultyFleet
from tests.helpers.serving_stage_03 import wait_until
from tests.helpers.watching import STORE, Page, browser, take, watching

pytestmark = pytest.mark.browser
NEWEST = f"{STORE}.moments.at(-1)"
REQUESTS = f"[...{STORE}.requests.values()]"
VIEW = "inspector.views[0]"
STORY = "Tell me a story about a fox that lasts four days."
HEAD = 46  # of the timeline, above its first row


@pytest.fixture(scope="module")
def chromium():
    with browser() as chromium:
        yield chromium


@pytest.fixture
def page_of(chromium):
    """Opens pages, and closes them after the test."""
    with ExitStack() as stack:

        def open_page(url: str, ready: str = f"inspector.views[0] && {STORE}.moments.length", **options) -> Page:
            stack.callback((page := Page(chromium, url, **options)).close)
            page.has(ready)
            return page

        yield open_page


def test_an_engine_is_stopped_stepped_and_looked_into(loaded, page_of):
    with watching("05", loaded, kv_memory="6M") as server:
        page = page_of(server.page_url)
        page.keyboard.press(" ")
        page.has("document.querySelector('.controls').classList.contains('paused')")
        page.click("text=Send: Twelve stories at once")
        page.has(f"{NEWEST}.waiting.length === 12")
        assert server.engine.trace.steps == 0
        for own in ("hue", "prompt"):
            assert len(set(page.evaluate(f"{REQUESTS}.map((one) => one.{own})"))) == 12, own
        for steps in (1, 2):
            page.click("text=One step")
            page.has(f"{STORE}.columns === {steps}")
            assert server.engine.trace.steps == steps
        page.drawn()

        def followed(request: int) -> None:
            page.has(f"{VIEW}.selection.number === {request} && document.querySelectorAll('.card.dim').length === 11")
            page.has(f"document.querySelector('.card.chosen').dataset.request === '{request}'")

        row = page.evaluate(f"{VIEW}.timeline.rowHeight")
        page.click(".card[data-request='1'] .name")
        followed(1)
        page.click("canvas.timeline", position={"x": 10, "y": HEAD + row / 2})
        followed(0)
        layout = f"{VIEW}.memory.layout"
        cell, columns = page.evaluate(f"[{layout}.cell, {layout}.columns]")
        mine = page.evaluate(f"[...{layout}.owners].find(([, mine]) => mine[0].request.n === 1)[0]")
        page.click("canvas.memory", position={"x": (mine % columns + 0.5) * cell, "y": (mine // columns + 0.5) * cell})
        followed(1)
        page.keyboard.press("Escape")
        page.has("document.querySelector('.card.chosen, .card.dim') === null")

        column, record = page.evaluate(f"{VIEW}.timeline.x(0)"), server.engine.trace[-2]
        page.locator("canvas.timeline").hover(position={"x": column + 2, "y": HEAD + row / 2})
        words = page.text_content(".under")
        assert "step 0, " in words and f"{record.tokens} tokens of {len(record.works)} requests" in words
        assert f"A: prefill: the prompt, {record.works[0].tokens} tokens" in words

        told = page.locator("body").aria_snapshot()  # what a screen reader has: no control and no drawing is nameless
        controls = re.findall(r"- (?:button|textbox|slider|combobox|spinbutton|checkbox|link|img)\b.*", told)
        assert len(controls) > 15 and [one for one in controls if '"' not in one] == []
        assert "pages in use" in page.get_by_role("img").first.get_attribute("aria-label")

        page.click(".card[data-request='0'] button.quiet")
        page.has("document.querySelector('.card[data-request=\"0\"]')?.dataset.state === 'abort'")
        page.click("text=Resume")
        page.has("document.querySelector('.news.loss')?.textContent.includes('preempted')")
        assert server.engine.scheduler.preemptions > 0


def test_the_past_is_gone_through_by_drag_wheel_and_keyboard(loaded, page_of):
    with watching("05", loaded) as server:
        page, timeline = page_of(server.page_url), f"{VIEW}.timeline"
        page.keyboard.press("s")
        page.keyboard.press("Control+A")
        for key in ("Count from 1 to 30.", "40", "0", "1"):
            page.keyboard.type(key)
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.has("document.querySelector('.card[data-state=length], .card[data-state=stop]')")
        assert page.evaluate(f"{REQUESTS}.map((one) => one.prompt)") == ["Count from 1 to 30."]
        wait_until(lambda: server.engine_thread.stats["unfinished"] == 0)
        steps = server.engine.trace.steps
        page.has(f"{STORE}.columns === {steps}")
        page.drawn()
        whole = page.text_content(".card .answer")
        page.focus("canvas.timeline")
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        page.has(f"document.querySelector('canvas.timeline').ariaValueNow === '{steps - 20}'")
        page.has("document.querySelector('.card[data-state=running]')")
        part = page.text_content(".card .answer")
        assert whole.startswith(part) and len(part) < len(whole)
        page.keyboard.press("ArrowDown")
        page.has("document.querySelector('.card.chosen')")
        page.keyboard.press("End")
        page.has("inspector.clock.live")
        page.drawn()
        box, width = page.locator("canvas.timeline").bounding_box(), page.evaluate(f"{timeline}.width")
        x, y = box["x"] + 300, box["y"] + 120
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 10 * width, y, steps=5)
        page.mouse.up()
        page.has(f"!inspector.clock.live && {timeline}.edge === {steps - 10}")
        page.has("document.querySelector('.live').textContent.startsWith('past')")
        page.mouse.wheel(0, -100)
        page.has(f"{timeline}.width > {width}")
        page.keyboard.press("Escape")
        page.keyboard.press("l")
        page.has(f"inspector.clock.live && {timeline}.edge === {steps}")


def test_the_map_and_the_marks_are_the_engines_books(loaded, page_of):
    with watching("06", loaded, kv_memory="3M") as server:
        page = page_of(server.page_url)
        server.watched.pace.ask("pause")  # until all are there: those that come late would find room
        for hero in ("a fox", "an owl", "a fox", "a robot", "a king", "a lion"):
            page.send(STORY.replace("a fox", hero), 200)
        wait_until(lambda: server.engine_thread.stats["unfinished"] == 6)
        take(server, 100)
        scheduler = server.engine.scheduler
        tables = {name: sequence.page_table.pages for name, sequence in scheduler.running.items()}
        number = {name: int(name.removeprefix("request-")) for name in tables}
        expected = sorted([held, number[name]] for name, table in tables.items() for held in table)
        shown = f"[...{VIEW}.memory.layout.owners].flatMap(([page, mine]) => mine.map((one) => [page, one.request.n]))"
        in_order = f"({shown}).sort(([a, x], [b, y]) => a - b || x - y)"
        compact = json.dumps(json.dumps(expected, separators=(",", ":")))
        page.has(f"{STORE}.columns === 100 && JSON.stringify({in_order}) === {compact}")
        page.drawn()
        assert f"{len({held for held, _ in expected})} of 24 pages in use" in page.text_content(".sums")
        preempted = page.evaluate(f"{STORE}.steps.flatMap((step) => step.preempted ?? []).length")
        assert scheduler.preemptions == preempted > 0
        works = f"{REQUESTS}.flatMap((one) => one.works.map((work) => [one.id, work.tokens]))"
        ran = [[work.request_id, work.tokens] for record in server.engine.trace for work in record.works]
        assert sorted(page.evaluate(works)) == sorted(ran)
        assert page.query_selector(".branch .badge")
        cached = page.evaluate(f"[...{VIEW}.memory.layout.cached]")
        assert sorted(cached) == sorted(node.page for node in books.nodes(scheduler.allocator.tree))


def test_a_phone_that_comes_late_sees_all_and_the_last_page_leaves_nothing(loaded, chromium):
    with watching("03", loaded) as server:
        before = server.engine.model, vars(server.engine).get("run")
        pages = early, late = [Page(chromium, server.page_url) for _ in range(2)]
        markup = "<img src=x onerror=\"document.title='taken'\">"
        told = f"{REQUESTS}.map((one) => [one.letter, one.prompt, one.text, one.finish])"
        early.has(f"{VIEW} && {STORE}.moments.length")
        early.send("Count from 1 to 30.", 40, times=3)
        early.send(markup, 8)
        early.has(f"{told}.filter(([, , , finish]) => finish).length === 4")
        late.reload()
        late.has(f"{VIEW} && {STORE}.moments.length")
        late.fits_a_phone()
        assert late.evaluate(told) == early.evaluate(told)
        steps = server.engine.trace.steps
        assert f"step {steps} of {steps}: it ran 1" in late.get_attribute("canvas.timeline", "aria-valuetext")
        assert markup in late.locator(".card .prompt").all_text_contents() and not late.query_selector("main img")
        assert "taken" not in late.title() and "runs alone" not in late.text_content(".sums")
        assert all(text.strip() for text in late.locator(".card .words").all_text_contents())
        for page in pages:
            page.close()
        wait_until(lambda: not server.watched.readers and not server.watched._watching)
        assert (server.engine.model, vars(server.engine).get("run")) == before
        assert not server.watched._ended and not server.watched._known.requests


def test_a_server_with_a_key_asks_for_it_and_refuses_in_sentences(loaded, page_of):
    with watching("05", loaded, "--api-key", "secret", kv_memory="1M") as server:
        page = page_of(server.page_url, 'document.querySelector("input[type=password]")')
        for key in ("wrong", "secret"):
            page.has("document.querySelector('input[type=password]')?.value === ''")
            page.fill("input[type=password]", key)
            page.click("button.primary")
        page.has(f"globalThis.inspector?.views[0] && {STORE}?.moments.length")
        refused = {"Tell me a story.": "the cache has 8", "word " * 20_000: "100000 characters: shorten it"}
        for prompt, said in (refused | {" ": "the prompt is empty: write one"}).items():
            page.send(prompt, 2000)
            page.has(f"document.querySelector('.note').textContent.includes('{said}')")
        assert not server.engine.requests and server.engine.trace.steps == 0


def test_a_killed_workers_stream_goes_on(loaded, page_of, monkeypatch):
    process = subprocess.Popen("cat", stdin=subprocess.PIPE)  # It waits for input; the workers compute here.

    class FleetWithProcess(FaultyFleet):
        def begin(self, engine):
            worker = super().begin(engine)
            hello = worker.hello
            worker.hello = lambda: hello()._replace(process=process.pid)
            return worker

    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FleetWithProcess)
    prompt, tokens = STORY.replace("four", "nine"), 60
    ids = chat_prompt(loaded.tokenizer, prompt)
    [expected] = load_engine("06")(loaded, kv_memory="8M").generate([ids], SamplingParams(max_tokens=tokens))
    with watching("08", loaded, kv_memory="16M", num_draft_tokens=0) as server:
        page, fleet = page_of(server.page_url), server.engine.fleet
        assert page.is_hidden("text=Pause"), "workers have loops of their own"
        for _ in range(30):  # steps of the router: too few for the whole answer
            server.watched.pace.ask("step")
        page.send(prompt, tokens)
        page.has(f"{STORE}.requests.get(0)?.tokens.length > 10")
        page.click("text=Kill worker 1")
        assert process.wait(timeout=60) == -signal.SIGKILL
        process.stdin.close()
        fleet.die(1, returns=False)
        server.watched.pace.ask("resume")
        page.has("document.querySelector('.card[data-state=length], .card[data-state=stop]')")
        assert page.evaluate(f"{STORE}.requests.get(0).text") == expected.text
        page.has(f"{NEWEST}.stats.workers_lost === 1")
        assert page.evaluate(f"{STORE}.requests.get(0).works.some((work) => work.phase === 'again')")
        page.has(f"{NEWEST}.memory.workers[0].free === {NEWEST}.memory.workers[0].pages")  # told a moment later
        up, down = page.evaluate(f"{NEWEST}.memory.workers")
        assert up["pages"] > 0 and down == {"up": False, "pages": 0, "page_size": 0, "free": 0, "cached": 0}
        fleet.revive(1)
        page.has(f"{NEWEST}.memory.workers.every((worker) => worker.up)")
        page.fits_a_phone()


def test_two_engines_get_the_same_load_and_are_recorded_together(page_of, tmp_path):
    port, recording = free_port(), tmp_path / "new" / "both.html"
    command = [sys.executable, "-m", "common.inspector", "03", "04", "--port", str(port), "--no-browser"]
    all_of = "inspector.stores.map((store) => [...store.requests.values()])"
    answers = f"{all_of}.map((all) => all.map((one) => [one.prompt, one.text]))"
    command += ["--record", str(recording)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert f"http://127.0.0.1:{port}/watch" in process.stdout.readline()
            both = "inspector.stores.filter((store) => store?.moments.length).length === 2"
            page = page_of(f"http://127.0.0.1:{port}/watch", both)
            page.send("Explain KV cache in one sentence.", 24, times=6)
            page.has(f"{all_of}.every((all) => all.filter((one) => one.finish).length === 6)")
            third, fourth = page.evaluate(answers)
            assert third == fourth
            most = "inspector.stores.map((store) => Math.max(...store.steps.map((step) => step.works.length)))"
            assert page.evaluate(most) == [1, 6]
            page.fits_a_phone()
            burst = page.evaluate(f"{all_of}.map((all) => all.reduce((sum, one) => sum + one.tokens.length, 0))")
            tiles = page.locator(".tile:first-child dd").all_text_contents()  # of the burst, not of the last seconds
            assert all(f"{tokens} in " in tile for tile, tokens in zip(tiles, burst, strict=True)), tiles
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0
    page = page_of(recording.as_uri(), "inspector.views.length === 2", offline=True)
    page.evaluate("inspector.clock.show(1e12)")
    page.drawn()
    assert page.evaluate(answers) == [third, fourth]


@pytest.mark.parametrize("stage", SCENES)
def test_a_lessons_recording_plays(page_of, stage):
    """To its last moment, without a network, and without an error in any panel."""
    results = stage_folder(stage) / "results"
    [[_, *updates]] = read_recording(results / "watch.html")
    updates = [json.loads(update) for update in updates]
    page = page_of((results / "watch.html").as_uri(), "document.querySelector('.player')", offline=True)
    page.evaluate("inspector.clock.show(1e12)")
    page.drawn()
    requests = {row["n"] for update in updates for row in update["requests"]}
    assert page.evaluate(f"[{STORE}.columns, {STORE}.requests.size]") == [updates[-1]["stats"]["steps"], len(requests)]
    assert page.query_selector(".card") and page.text_content(".sums")
    if stage == "07":
        sums = "reduce(([a, b], { accepted, draftTokens }) => [a + accepted, b + (draftTokens?.length ?? 0)], [0, 0])"
        told = page.evaluate(f"{REQUESTS}.flatMap((one) => one.works).{sums}")
        assert told == [updates[-1]["stats"]["accepted_tokens"], updates[-1]["stats"]["draft_tokens"]]
        assert page.query_selector(".token.draft") and page.query_selector(".pair s")
    page.fits_a_phone()

"""The page in a real browser, on the real server with the real model: what it shows is what the engine has done."""

import json

import pytest

from tests.helpers.serving_stage_03 import wait_until
from tests.helpers.watching import NEWEST, STORE, Page, watching

pytestmark = pytest.mark.browser
VISIBLE = "words.textContent && words.checkVisibility({ contentVisibilityAuto: true })"
PAINTED = f"[...document.querySelectorAll('.card .words')].map((words) => Boolean({VISIBLE}))"


def test_send_a_prompt_and_read_its_answer(loaded, page_of):
    with watching("05", loaded) as server:
        page = page_of(server)
        page.send("What is 2+2?", 32)
        page.has("document.querySelector('.card[data-state=stop]')")
        assert "4" in page.text_content(".card .answer")
        assert page.text_content(".card .prompt") == "What is 2+2?"
        assert "05 Paged attention" in page.title()


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("Tell me a story.", "the cache has 8"),
        ("word " * 100_000, "500000 characters, too many"),  # refused before it is tokenized
        (" ", "the prompt is empty: write one"),
    ],
    ids=["beyond the cache", "far beyond the context", "empty"],
)
def test_a_prompt_that_cannot_run_is_answered_with_the_servers_sentence(loaded, page_of, prompt, said):
    with watching("05", loaded, kv_memory="1M") as server:
        page = page_of(server)
        page.send(prompt, 2000)
        page.has(f"document.querySelector('.note').textContent.includes('{said}')")
        assert not server.engine.requests and server.engine.trace.steps == 0


def test_twenty_requests_join_and_leave_with_the_marks_that_the_trace_has(loaded, page_of):
    with watching("04", loaded, max_running=8) as server:
        page = page_of(server)
        page.set_viewport_size({"width": 1280, "height": 1000})  # all rows are in view
        body = {"prompt": "Count from 1 to 30.", "max_tokens": 6, "count": 20, "chat": True}
        headers = {"Content-Type": "application/json"}
        page.evaluate(
            "([body, headers]) => fetch('/watch/send', {method: 'POST', body: JSON.stringify(body), headers})",
            [body, headers],
        )
        page.has(f"[...{STORE}.requests.values()].filter((one) => one.finish).length === 20")
        page.has(f"{STORE}.columns === {STORE}.at(1e9).stats.steps")
        works = [(work.request_id, work.phase) for record in server.engine.trace for work in record.works]
        seen = page.evaluate(
            f"[...{STORE}.requests.values()].flatMap((one) => one.works.map((work) => [one.id, work.phase]))"
        )
        assert sorted(map(tuple, seen)) == sorted(works)
        for phase in ("prefill", "decode"):
            page.has(f"inspector.views[0].timeline.drawn.{phase} === {sum(one == phase for _, one in works)}")


def compact(value) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("stage", ["05", "06"])
def test_the_page_map_is_the_allocators_books(loaded, page_of, stage):
    with watching(stage, loaded, kv_memory="6M") as server:
        page = page_of(server)
        stories = "a fox", "an owl", "a fox", "a robot", "a king", "a lion"
        server.watched.pace.pause()  # until all are there: those that come late would find room
        for story in stories:
            page.send(f"Tell me a story about {story} that lasts four days.", 300)
        wait_until(lambda: server.thread.stats["unfinished"] == len(stories))
        server.watched.pace.resume()
        server.paused_after(200)
        page.has(f"{STORE}.columns === {server.engine.trace.steps}")
        scheduler = server.engine.scheduler
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        tables = {name: sequence.page_table.pages for name, sequence in scheduler.running.items()}
        number = {name: int(name.removeprefix("request-")) for name in tables}
        expected = sorted((page, letters[number[name]]) for name, table in tables.items() for page in table)
        owners = "[...inspector.views[0].memory.layout.owners]"
        shown = f"{owners}.flatMap(([page, mine]) => mine.map((one) => [page, one.request.letter]))"
        # Not until then is it drawn: the number of pages alone may be that of a step before.
        in_order = f"({shown}).sort(([a, x], [b, y]) => a - b || (x < y ? -1 : 1))"
        page.has(f"inspector.views[0].memory.layout && JSON.stringify({in_order}) === {compact(compact(expected))}")
        assert expected
        used = len({page for page, _ in expected})
        assert f"{used} of 48 pages in use" in page.text_content(".sums")
        assert f"{len(scheduler.allocator.free)} free" in page.text_content(".sums")
        assert (
            scheduler.preemptions == page.evaluate(f"{STORE}.steps.flatMap((step) => step.preempted ?? []).length") > 0
        )
        if stage == "06":
            cached = page.evaluate("[...inspector.views[0].memory.layout.cached.keys()]")
            assert sorted(cached) == sorted(node.page for node in nodes(scheduler.allocator.tree))


def nodes(tree) -> list:
    found = list(tree.root.children.values())
    for node in found:
        found += node.children.values()
    return found


def test_rejected_draft_tokens_are_those_that_the_engine_counts(loaded, page_of):
    with watching("07", loaded, kv_memory="24M", num_draft_tokens=4) as server:
        page = page_of(server)
        page.send("Tell me a story about a fox that lasts three days.", 60)
        page.has("document.querySelector('.card[data-state=length]')")
        stats = server.engine.stats()
        page.has(f"{STORE}.columns === {stats['steps']}")
        for what, counted in (
            ("accepted", stats["accepted_tokens"]),
            ("rejected", stats["draft_tokens"] - stats["accepted_tokens"]),
        ):
            works = f"[...{STORE}.requests.values()].flatMap((one) => one.works)"
            assert page.evaluate(f"{works}.reduce((sum, work) => sum + work.{what}, 0)") == counted > 0
        drafted = page.evaluate(f"{STORE}.request(0).tokens.filter((token) => token.from === 'draft').length")
        assert stats["accepted_tokens"] - 4 <= drafted <= stats["accepted_tokens"]  # the end may cut some off
        assert page.query_selector(".token.draft") and page.query_selector(".pair s")


def test_text_never_becomes_html(loaded, page_of):
    with watching("05", loaded) as server:
        page = page_of(server)
        for prompt in ("<script>document.title = 'taken'</script>", "<img src=x onerror=\"document.title='taken'\">"):
            page.send(prompt, 8)
            prompts = "[...document.querySelectorAll('.card .prompt')]"
            page.has(f"{prompts}.some((one) => one.textContent === {json.dumps(prompt)})")
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert "taken" not in page.title()
        attempt = "try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; }"
        refused = page.evaluate(f"(() => {{ {attempt} }})()")
        assert refused == "TypeError"


def test_two_pages_at_once_and_a_closed_one_leaves_nothing_behind(loaded, chromium):
    with watching("05", loaded) as server:
        before = server.engine.model, vars(server.engine).get("run")
        one, two = Page(chromium, server.page_url), Page(chromium, server.page_url)
        for page in (one, two):
            page.has(f"inspector.views[0] && {STORE}.moments.length")
        one.send("What is 2+2?", 32)
        texts = []
        for page in (one, two):
            page.has("document.querySelector('.card[data-state=stop]')")
            texts.append(page.text_content(".card .answer"))
        assert texts[0] == texts[1] and texts[0]
        assert server.watched.feed.readers == 2 and server.watched._watching
        one.close()
        two.close()
        wait_until(lambda: not server.watched.feed.readers and not server.watched._watching)
        assert (server.engine.model, vars(server.engine).get("run")) == before
        assert not server.watched._ended and not server.watched._known.requests
        assert not server.watched.feed.newcomers()


def test_requests_that_run_together_have_colours_of_their_own(loaded, page_of):
    """Also on a page that opened when others had ended already."""
    with watching("05", loaded) as server:
        page = page_of(server)
        page.send("What is 2+2?", 8, times=3)
        page.has(f"[...{STORE}.requests.values()].filter((one) => one.finish).length === 3")
        page.keyboard.press("Escape")
        server.watched.pace.pause()
        late = page_of(server)
        late.send("Count from 1 to 30.", 40, times=8)
        late.has(f"{NEWEST}.waiting.length === 8")
        hues = late.evaluate(f"{NEWEST}.waiting.map((number) => {STORE}.request(number).hue)")
        assert len(set(hues)) == 8


def test_a_page_that_opens_late_is_told_what_has_been(loaded, page_of):
    with watching("05", loaded) as server:
        server.thread.engine.pace.pause()
        early = page_of(server)
        early.send("Count from 1 to 30.", 40)
        early.has(f"{STORE}.requests.size === 1")
        for _ in range(5):
            early.click("text=One step")
        early.has(f"{STORE}.columns === 5")
        late = page_of(server)
        late.has(f"{STORE}.columns === 5")
        words = f"[{STORE}.request(0).text, {STORE}.request(0).works.map((work) => work.phase)]"
        assert late.evaluate(words) == early.evaluate(words)


@pytest.mark.parametrize("stage", ["03", "05"])
def test_a_page_that_a_phone_opens_after_a_burst_is_whole(loaded, page_of, stage):
    """It is told of the requests that ended before it was opened, and all of it is within the window's width."""
    with watching(stage, loaded) as server:
        early = page_of(server)
        early.send("Count from 1 to 30.", 40, times=3)
        told = f"[...{STORE}.requests.values()].map((one) => [one.letter, one.prompt, one.text, one.finish])"
        early.has(f"{told}.filter(([, , , finish]) => finish).length === 3")
        late = page_of(server)
        late.fits_a_phone()
        assert late.evaluate(told) == early.evaluate(told)
        for page in (early, late):
            page.drawn()
            assert page.evaluate("inspector.views[0].timeline.drawn.decode") > 0
            assert page.evaluate(PAINTED) == [True] * 3, "below the window, too: a picture of the page shows it"
            assert "runs alone" not in page.text_content(".sums")


def test_a_server_with_a_key_asks_for_it(loaded, page_of):
    with watching("05", loaded, "--api-key", "secret") as server:
        page = page_of(server, locked=True)
        page.fill("input[type=password]", "wrong")
        page.click("button.primary")
        page.has("document.querySelector('input[type=password]')?.value === ''")  # asked for again
        page.fill("input[type=password]", "secret")
        page.click("button.primary")
        page.has(f"globalThis.inspector?.views[0] && {STORE}?.moments.length")
        page.send("What is 2+2?", 32)
        page.has("document.querySelector('.card[data-state=stop]')")

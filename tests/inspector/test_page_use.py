"""What a user does on the page, in a real browser: stop and step, go back, zoom, follow, by pointer and by keyboard."""

import re

import pytest

from common.inspector import watched
from tests.helpers.watching import NEWEST, STORE, Page, watching

pytestmark = pytest.mark.browser
HEAD = 46  # of the timeline, above its first row


def test_pause_step_and_go_on(loaded, page_of):
    with watching("05", loaded) as server:
        page = page_of(server)
        page.keyboard.press(" ")
        page.has("document.querySelector('.controls').classList.contains('paused')")
        page.send("Count from 1 to 30.", 40)
        page.has(f"{STORE}.requests.size === 1 && document.querySelector('.card[data-state=waiting]')")
        assert server.engine.trace.steps == 0
        for steps in (1, 2, 3):
            page.click("text=One step")
            page.has(f"{STORE}.columns === {steps}")
            assert server.engine.trace.steps == steps
        page.click("text=Resume")
        page.has("document.querySelector('.card[data-state=length], .card[data-state=stop]')")


def test_abort_one_and_the_others_go_on(loaded, page_of):
    with watching("05", loaded) as server:
        page = page_of(server)
        page.keyboard.press(" ")
        page.has("document.querySelector('.controls').classList.contains('paused')")
        for prompt in ("Count from 1 to 30.", "What is 2+2?"):
            page.send(prompt, 40)
        page.has("document.querySelectorAll('.card').length === 2")
        page.click(".card[data-request='0'] button.quiet")
        page.has("document.querySelector('.card[data-request=\"0\"]')?.dataset.state === 'abort'")
        page.click("text=Resume")
        page.has("document.querySelector('.card[data-request=\"1\"]')?.dataset.state === 'stop'")


@pytest.mark.parametrize("looks", [watched.MOST_LOOKS, 0.01], ids=["looked at often", "all between two looks"])
def test_the_past_is_shown_as_it_was(loaded, page_of, monkeypatch, looks):
    monkeypatch.setattr(watched, "MOST_LOOKS", looks)
    with watching("05", loaded) as server:
        page = page_of(server)
        page.send("Count from 1 to 30.", 40)
        page.has("document.querySelector('.card[data-state=length], .card[data-state=stop]')")
        whole = page.text_content(".card .answer")
        page.focus("canvas.timeline")
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        page.has("document.querySelector('.card[data-state=running]')")
        part = page.text_content(".card .answer")
        assert whole.startswith(part) and len(part) < len(whole)
        page.keyboard.press("End")
        page.has("inspector.clock.live")


STATES_AROUND_A_PREEMPTION = """(() => {
  const [store] = inspector.stores;
  const step = store.steps.find((one) => one.preempted?.length);
  const request = store.requests.get(step.preempted[0]);
  const after = (column) => {
    const time = store.endOf(column + 1);
    return request.stateAt(store.at(time), time, store.columnAt(time));
  };
  const last = request.columns.findLast((column) => column < step.column);
  return [last - 1, last, step.column].map(after);
})()"""


def test_a_preemption_between_two_looks_is_in_the_past(loaded, page_of, monkeypatch):
    monkeypatch.setattr(watched, "MOST_LOOKS", 0.01)
    with watching("05", loaded, kv_memory="6M") as server:
        page = page_of(server)
        page.send("Tell me a story about a fox that lasts four days.", 300, times=4)
        page.has(f"{STORE}.requests.size === 4 && [...{STORE}.requests.values()].every((one) => one.finish)")
        assert server.engine.scheduler.preemptions
        assert page.evaluate(STATES_AROUND_A_PREEMPTION) == ["running", "running", "preempted"]


@pytest.fixture
def stopped(loaded, page_of):
    """A stopped engine that has taken two steps for two stories, and a page on it."""
    with watching("05", loaded, kv_memory="6M") as server:
        server.watched.pace.pause()
        page = page_of(server)
        for hero in ("a fox", "an owl"):
            page.send(f"Tell me a story about {hero} that lasts four days.", 100)
        page.has(f"{NEWEST}.waiting.length === 2")
        for steps in (1, 2):
            page.click("text=One step")
            page.has(f"{STORE}.columns === {steps}")
        page.has(f"{NEWEST}.running.length === 2")
        page.drawn()
        yield page, server


def row(page: Page, request: int) -> float:
    """The height at which a request's row lies in the timeline."""
    timeline = "inspector.views[0].timeline"
    at = page.evaluate(f"{timeline}.rows.findIndex((one) => one.n === {request})")
    return HEAD + (at + 0.5) * page.evaluate(f"{timeline}.rowHeight")


def test_a_request_is_followed_everywhere(stopped):
    """Picked in one panel, it is the chosen one in all of them."""
    page, _ = stopped

    def followed(request: int) -> None:
        page.has(f"inspector.views[0].selection.number === {request}")
        page.has(f"document.querySelector('.card.chosen')?.dataset.request === '{request}'")
        page.has(f"document.querySelector('.card.dim')?.dataset.request === '{1 - request}'")
        page.drawn()

    page.click(".card[data-request='1'] .name")
    followed(1)
    page.click("canvas.timeline", position={"x": 10, "y": row(page, 0)})
    followed(0)
    layout = "inspector.views[0].memory.layout"
    mine = page.evaluate(f"[...{layout}.owners].find(([page, mine]) => mine[0].request.n === 1)[0]")
    cell, columns = page.evaluate(f"[{layout}.cell, {layout}.columns]")
    page.click("canvas.memory", position={"x": (mine % columns + 0.5) * cell, "y": (mine // columns + 0.5) * cell})
    followed(1)
    page.keyboard.press("Escape")
    page.has("document.querySelector('.card.chosen, .card.dim') === null")


def test_a_pointer_over_a_step_tells_its_numbers(stopped):
    page, server = stopped
    column = page.evaluate("inspector.views[0].timeline.x(0)")
    page.locator("canvas.timeline").hover(position={"x": column + 2, "y": row(page, 0)})
    record = server.engine.trace[-2]
    words = page.text_content(".under")
    assert "step 0, " in words and f"{record.tokens} tokens of {len(record.works)} requests" in words
    assert f"A: prefill: the prompt, {record.works[0].tokens} tokens" in words


def test_drag_zoom_and_come_back(loaded, page_of):
    with watching("05", loaded) as server:
        page = page_of(server)
        page.send("Count from 1 to 30.", 40)
        page.has("document.querySelector('.card[data-state=length], .card[data-state=stop]')")
        timeline = "inspector.views[0].timeline"
        steps, width = page.evaluate(f"[{STORE}.columns, {timeline}.width]")
        box = page.locator("canvas.timeline").bounding_box()
        x, y = box["x"] + 300, box["y"] + 120
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 10 * width, y, steps=5)
        page.mouse.up()
        page.has("!inspector.clock.live")
        assert page.evaluate(f"{timeline}.edge") == steps - 10
        page.has("document.querySelector('.live').textContent.startsWith('past')")
        page.mouse.wheel(0, -100)
        page.has(f"{timeline}.width > {width}")
        page.keyboard.press("l")
        page.has(f"inspector.clock.live && {timeline}.edge === {steps}")


def test_rows_that_do_not_fit_are_reached_by_wheel_and_by_keys(loaded, page_of):
    with watching("05", loaded) as server:
        server.watched.pace.pause()
        page = page_of(server)
        page.send("Count from 1 to 30.", 40, times=60)
        page.has(f"{NEWEST}.waiting.length === 60")
        page.drawn()
        rows = "inspector.views[0].timeline.rows"
        page.has(f"{rows}.at(-1)?.n === 59 && {rows}[0].n > 0")  # there are none until the page has drawn
        shown = page.evaluate(f"{rows}.length")
        page.locator("canvas.timeline").hover(position={"x": 20, "y": 120})
        page.mouse.wheel(0, -100)
        page.has(f"{rows}.at(-1)?.n === 58 && {rows}.length === {shown}")
        page.focus("canvas.timeline")
        for _ in range(60):
            page.keyboard.press("ArrowUp")
        page.has(f"{rows}[0]?.n === 0 && inspector.views[0].selection.number === 0")


def test_without_a_pointer(loaded, page_of):
    """A prompt is sent, its moments are gone through and it is followed, by keyboard alone."""
    with watching("05", loaded) as server:
        page = page_of(server)
        page.keyboard.press("s")
        page.keyboard.press("Control+A")
        page.keyboard.type("What is 2+2?")
        page.keyboard.press("Tab")
        page.keyboard.type("32")
        for _ in range(2):
            page.keyboard.press("Tab")
        page.keyboard.type("1")
        page.keyboard.press("Enter")
        page.has("document.querySelector('.card[data-state=stop]')")
        assert page.evaluate(f"[...{STORE}.requests.values()].map((one) => one.prompt)") == ["What is 2+2?"]
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('canvas.timeline')"):
                break
        page.keyboard.press("ArrowLeft")
        steps = server.engine.trace.steps
        page.has(f"document.activeElement.getAttribute('aria-valuenow') === '{steps - 1}'")
        words = f"step {steps - 1} of {steps}: it ran 1 request,"
        page.has(f"document.activeElement.getAttribute('aria-valuetext').startsWith('{words}')")
        page.keyboard.press("ArrowDown")
        page.has("document.querySelector('.card.chosen')")
        assert page.text_content(".under").startswith("A: ")


def test_what_can_be_used_has_a_name(stopped):
    """For a screen reader: no control and no drawing is without words, and each answer can be read."""
    page, _ = stopped
    told = page.locator("body").aria_snapshot()
    controls = re.findall(r"- (?:button|textbox|slider|combobox|spinbutton|checkbox|link|img)\b.*", told)
    assert len(controls) > 15 and [one for one in controls if '"' not in one] == []
    for name in ("answers", "marks", "prompt", "clients", "temperature", "Time, in steps"):
        assert f'"{name}"' in told
    assert "pages in use" in page.get_by_role("img").first.get_attribute("aria-label")


def test_a_page_on_which_nothing_has_happened_begins_with_what_the_lesson_is_about(loaded, page_of):
    with watching("05", loaded, kv_memory="6M") as server:
        page = page_of(server)
        page.click("text=Send: Twelve stories at once")
        page.has(f"{STORE}.requests.size === 12")
        page.has("document.querySelector('.news.loss')?.textContent.includes('preempted')")
        assert server.engine.scheduler.preemptions > 0

"""A server with the inspector in this process, and a real browser for its page. Where there is no browser, tests that
need one are skipped by name."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from common.inspector.__main__ import parse
from common.inspector.browser import chromium
from common.inspector.server import build_server
from common.serving.background import running
from common.stages import load_engine, stage_folder
from tests.helpers.serving_stage_03 import wait_until

STORE = "inspector.stores[0]"
NEWEST = f"{STORE}.moments.at(-1)"
MOST_LOOKS = 1200  # a minute: other work may keep this machine busy
PHONE = {"width": 390, "height": 844}
OFF_SCREEN = """(() => {
  const outside = [...document.querySelectorAll("header *, .bar *, h2, h3, .panel")].filter((one) => {
    const { left, right, width } = one.getBoundingClientRect();
    return width && (left < 0 || right > innerWidth);
  });
  return [document.documentElement.scrollWidth > innerWidth, outside.map((one) => one.textContent.slice(0, 40))];
})()"""


class Watching:
    """One server, and what is in it. `engine` belongs to its thread: look at it only while that is stopped or idle."""

    def __init__(self, url: str, server):
        self.url, self.server, self.page_url = url, server, f"{url}/watch"
        self.thread = server.engine_thread
        self.watched = server.watched
        self.engine = self.watched._engine

    def paused_after(self, steps: int) -> None:
        """Stop the engine once it has taken `steps` steps."""
        wait_until(lambda: self.engine.trace.steps >= steps)
        refusals = self.watched.pace.refusals
        self.watched.pace.pause()
        wait_until(lambda: self.watched.pace.refusals > refusals + 1)  # the step that was being taken has ended


@contextmanager
def watching(stage: str, loaded, *options: str, full_speed: bool = True, **engine_options) -> Iterator[Watching]:
    folder = stage_folder(stage)
    args = parse(folder, ["--port", "0", "--no-browser", *options])
    if full_speed:
        args.steps_per_second = 0
    engine = load_engine(stage)(loaded, **engine_options)
    server = build_server(engine, folder, args)
    try:
        with running(server) as url:
            try:
                yield Watching(url, server)
            finally:
                server.watched.pace.resume()
                server.engine_thread.deadline = 0  # no test waits for what it has left open
    finally:
        if hasattr(engine, "close"):
            engine.close()


@contextmanager
def browser():
    with ExitStack() as stack:
        try:
            found = stack.enter_context(chromium())
        except ValueError as error:
            pytest.skip(str(error))
        yield found


class Page:
    """The page as a user has it, and the errors that it must not have."""

    def __init__(self, chromium, url: str, **options):
        self.context = chromium.new_context(viewport={"width": 1280, "height": 800}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.asked: list[str] = []  # URLs
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def __getattr__(self, name: str):
        return getattr(self.page, name)

    def has(self, expression: str):
        """Wait until a JavaScript expression is true. Asked again and again: the page's policy forbids `eval` to it."""
        for _ in range(MOST_LOOKS):
            if self.page.evaluate(f"Boolean({expression})"):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"this has not become true: {expression}; errors: {self.errors}")

    def send(self, prompt: str, tokens: int, *, times: int = 1) -> None:
        """Fill in the form as a user does, and send it; greedy, so that answers are known."""
        self.fill("textarea", prompt)
        self.fill("input[aria-label='most output tokens']", str(tokens))
        self.fill("input[aria-label='temperature']", "0")
        self.fill("input[aria-label='how many times']", str(times))
        self.click("form button[type=submit]")

    def drawn(self) -> None:
        """Wait until all that is known is drawn, also by panels that are drawn seldom."""
        self.has("inspector.views.every((view) => view.slow.every((one) => one.version === view.canvases))")

    def fits_a_phone(self) -> None:
        """Make the window as wide as a phone's: nothing may lie beside it, least of all a button."""
        self.set_viewport_size(PHONE)
        self.has(f"inspector.views.every((view) => view.timeline.size?.width < {PHONE['width']})")
        self.drawn()
        assert (found := self.evaluate(OFF_SCREEN)) == [False, []], found

    def close(self) -> None:
        self.context.close()
        assert self.errors == []

"""A server with the inspector in this process, and a real browser for its page."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from common.errors import InvalidInput
from common.inspector.__main__ import build_server, parse
from common.inspector.screenshots import chromium
from common.serving.background import running
from common.stages import load_engine, stage_folder
from tests.helpers.serving_stage_03 import wait_until

STORE = "inspector.stores[0]"
PHONE = {"width": 390, "height": 844}
OUTSIDE = """[...document.querySelectorAll('body, body *')].filter((one) => {
  const { left, right, width } = one.getBoundingClientRect();
  return width && !one.closest('.surface, .cards, .tree') && (left < 0 || right > innerWidth + 1);
}).map((one) => one.outerHTML.slice(0, 60))"""


@contextmanager
def watching(stage: str, loaded, *options: str, **engine_options) -> Iterator:
    """Yield a stage's server, with its `url`, its page's `page_url`, and its `engine`, which belongs to its thread."""
    folder = stage_folder(stage)
    args = parse(folder, ["--port", "0", "--no-browser", "--steps-per-second", "0", *options])
    engine = load_engine(stage)(loaded, **engine_options)
    server = build_server(engine, folder, args)
    try:
        with running(server) as url:
            server.url, server.page_url, server.engine = url, f"{url}/watch", engine
            try:
                yield server
            finally:
                server.watched.pace.ask("resume")
                server.engine_thread.deadline = 0  # No test waits for requests that it has left open.
    finally:
        engine.close()


def take(server, steps: int) -> None:
    """Let a stopped engine take this many steps."""
    before = len(server.engine.trace)
    for _ in range(steps):
        server.watched.pace.ask("step")
    wait_until(lambda: len(server.engine.trace) == before + steps)  # a record is kept when its step has ended


@contextmanager
def browser() -> Iterator:
    """Yield a Chromium. Where there is none, skip the test by name."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(chromium())
        except InvalidInput as error:
            pytest.skip(str(error))
        yield found


class Page:
    """The page as a user has it, and the errors that it must not have."""

    def __init__(self, chromium, url: str, **options):
        self.page = chromium.new_page(viewport={"width": 1280, "height": 800}, **options)
        self.page.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.asked: list[str] = []  # URLs
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def __getattr__(self, name: str):
        return getattr(self.page, name)

    def _hear(self, told) -> None:
        if told.type == "error" and not told.text.startswith("Failed to load resource"):  # the server refused
            self.errors.append(told.text)

    def has(self, expression: str) -> None:
        """Wait until a JavaScript expression is true (60 s). The page forbids the `eval` of Playwright's wait."""
        for _ in range(1200):
            if self.page.evaluate(f"Boolean({expression})"):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"this has not become true: {expression}; errors: {self.errors}")

    def send(self, prompt: str, tokens: int, times: int = 1) -> None:
        """Fill in the form as a user does, and send it; greedy, so that answers are known."""
        fields = {"prompt": prompt, "most output tokens": tokens, "temperature": 0, "how many times": times}
        for name, value in fields.items():
            self.fill(f"[aria-label='{name}']", str(value))
        self.click("form button[type=submit]")

    def drawn(self) -> None:
        """Wait until all that is known is drawn, also by panels that are drawn seldom."""
        self.has("inspector.views.every(({ drawn }) => drawn.canvases && drawn.elements === drawn.canvases)")

    def fits_a_phone(self) -> None:
        """Make the window as wide as a phone's: nothing may lie beside it, least of all a button."""
        self.set_viewport_size(PHONE)
        self.has(f"inspector.views.every((view) => view.timeline.size?.width < {PHONE['width']})")
        self.drawn()
        assert self.evaluate(OUTSIDE) == [] and self.evaluate("document.documentElement.scrollWidth") == PHONE["width"]

    def close(self) -> None:
        """Close the page, which may have asked its own server only, or nothing but a file."""
        home = self.page.url.partition("#")[0].removesuffix("/watch")
        self.page.close()
        assert self.errors == [] and all(url.startswith((home, "data:", "http://127.0.0.1")) for url in self.asked)

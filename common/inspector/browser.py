"""A Chromium of this machine, driven by Playwright: for pictures and measurements of the page, and for its tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import InvalidInput
from common.setup.machine import browser

WHY_NOT = "needs a browser: apt install chromium, pip install playwright (common/inspector/README.md)"
# As root, in a container, on a machine without a network: nothing is looked up, nothing is updated.
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync".split()
)


def executable() -> str:
    """Return the path of Chromium. Raise InvalidInput if there is none."""
    if (found := browser()) is None:
        raise InvalidInput(WHY_NOT)
    return found


@contextmanager
def chromium() -> Iterator:
    """Yield a Playwright browser. Raise InvalidInput if there is no Chromium or no Playwright."""
    path = executable()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise InvalidInput(WHY_NOT) from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()

"""One browser for all tests of a file, and pages in it."""

from contextlib import ExitStack

import pytest

from tests.helpers.watching import STORE, Page, browser


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

"""One browser for all tests of a file, and pages in it."""

import pytest

from tests.helpers.watching import STORE, Page, browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as chromium:
        yield chromium


@pytest.fixture
def page_of(chromium):
    """Opens pages, and after the test sees to it that they had no errors and asked only their own server."""
    opened = []

    def open_page(server, locked: bool = False) -> Page:
        page = Page(chromium, server.page_url)
        opened.append((page, server))
        if not locked:
            page.has(f"inspector.views[0] && {STORE}.moments.length")
        return page

    yield open_page
    for page, server in opened:
        page.close()
        assert all(url.startswith((server.url, "data:")) for url in page.asked), page.asked

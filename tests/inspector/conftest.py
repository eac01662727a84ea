"""One browser for all tests of a file, and pages in it. Without a browser, tests that need one are skipped by name."""

from contextlib import ExitStack

import pytest

from common.errors import InvalidInput
from common.inspector.screenshots import chromium as chromium_of_this_machine
from tests.helpers.watching import STORE, Page


@pytest.fixture(scope="module")
def chromium():
    with ExitStack() as stack:
        try:
            found = stack.enter_context(chromium_of_this_machine())
        except InvalidInput as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def page_of(chromium):
    """Opens pages, and after the test sees to it that they had no errors and asked only their own server."""
    opened = []

    def open_page(server, locked: bool = False) -> Page:
        opened.append(page := Page(chromium, server.page_url))
        if not locked:
            page.has(f"inspector.views[0] && {STORE}.moments.length")
        return page

    yield open_page
    for page in opened:
        asked = page.url.removesuffix("/watch"), "data:"
        page.close()
        assert all(url.startswith(asked) for url in page.asked), page.asked

"""One browser for all tests of a file, and pages in it. Without a browser, tests that need one are skipped by name."""

from contextlib import ExitStack

import pytest

from common.errors import InvalidInput
from common.inspector import screenshots
from tests.helpers.watching import STORE, Page


@pytest.fixture(scope="module")
def chromium():
    with ExitStack() as stack:
        try:
            found = stack.enter_context(screenshots.chromium())
        except InvalidInput as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def page_of(chromium):
    """Opens pages, and closes them after the test."""
    with ExitStack() as stack:

        def open_page(url: str, ready: str = f"inspector.views[0] && {STORE}.moments.length", **options) -> Page:
            stack.callback((page := Page(chromium, url, **options)).close)
            page.has(ready)
            return page

        yield open_page

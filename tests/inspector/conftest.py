"""One browser for all tests of the page."""

import pytest
from watching import browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as chromium:
        yield chromium

"""A page transport to send from, full of random numbers, and an empty one to receive into."""

import pytest

from tests.helpers.page_ends import random_pools, transport, zero_pools


@pytest.fixture
def sender():
    with transport(random_pools()) as sender:
        yield sender


@pytest.fixture
def receiver():
    with transport(zero_pools()) as receiver:
        yield receiver

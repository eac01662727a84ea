"""The server that the load generator and the judge are tried on."""

import pytest

from tests.helpers.openai_stand_in import stand_in


@pytest.fixture(scope="session")
def running_stand_in():
    with stand_in() as server:
        yield server


@pytest.fixture
def server(running_stand_in):
    running_stand_in.forget()
    return running_stand_in

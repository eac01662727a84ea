"""What most tests of the API share: a server of a later stage, and an engine for a server of a test's own."""

import pytest

from common.stages import load_engine
from tests.helpers.serving_openai import openai_server
from tests.helpers.serving_stage_03 import apart, wait_until  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def service(loaded, apart):  # noqa: F811
    with openai_server("06", loaded) as service:
        yield service
        wait_until(service.idle)


@pytest.fixture
def engine(loaded):
    return load_engine("06")(loaded)

"""What most tests of the API share: a server of a later stage, and an engine for a server of a test's own."""

import pytest

from common.stages import load_engine
from tests.helpers.serving_openai import openai_server
from tests.helpers.serving_stage_03 import wait_until


@pytest.fixture(scope="module")
def service(loaded):
    with openai_server("06", loaded, "--api-process") as service:
        yield service
        wait_until(service.idle)


@pytest.fixture
def engine(loaded):
    return load_engine("06")(loaded)

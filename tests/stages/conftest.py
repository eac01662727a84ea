"""The stage that a file of milestones is about."""

import pytest

from common.learn.milestones.stage_under_test import StageUnderTest
from common.stages import stage_folder
from tests.helpers.serving_stage_03 import apart  # noqa: F401 (a fixture)


@pytest.fixture
def stage(request) -> StageUnderTest:
    """The stage whose number is in the file's name; with COURSE_STAGE, the learner's."""
    return StageUnderTest(stage_folder(request.path.name.split("_")[1]))

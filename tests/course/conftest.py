"""What the tests of `start`, `solve` and `check` share."""

from pathlib import Path

import pytest

from common.learn.milestones import runner
from common.stages import stage_folders
from tests.helpers.incomplete_stages import load_once


@pytest.fixture
def loaded_once(monkeypatch):
    """Start the processes from one that has loaded the model."""
    monkeypatch.setattr(runner, "START_METHOD", runner.START_METHOD)
    load_once()


@pytest.fixture
def root(tmp_path) -> Path:
    """A course with the real stages, in which `my` can be written."""
    for stage in stage_folders():
        (tmp_path / stage.name).symlink_to(stage)
    return tmp_path

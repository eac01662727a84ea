"""What the tests of `start`, `solve`, `check` and `bug` share."""

from pathlib import Path

import pytest

from common.learn.milestones import runner
from common.stages import ROOT, stage_folders
from tests.helpers.incomplete_stages import load_once


@pytest.fixture
def loaded_once(monkeypatch):
    """Start the processes from this one, which has loaded the model."""
    monkeypatch.setattr(runner, "START_METHOD", runner.START_METHOD)
    load_once()


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The course, with a `my` that can be written, on the Python that runs the tests."""
    for name in [*(stage.name for stage in stage_folders()), "common", "tests", "course.py", "pyproject.toml"]:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("COURSE_NO_VENV", "1")
    return tmp_path

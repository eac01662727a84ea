"""What the tests of `start`, `solve`, `check` and `bug` share."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.learn.milestones.runner import Runner
from common.stages import ROOT, stage_folders


@pytest.fixture(scope="module")
def loaded_once() -> Iterator[None]:
    """Have a fork server load the models for the processes that run milestones, where there is such a thing."""
    with pytest.MonkeyPatch.context() as patch:
        if "forkserver" in multiprocessing.get_all_start_methods():
            patch.setattr("common.learn.milestones.runner.START_METHOD", "forkserver")
            multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.helpers.preloaded"])
        yield


@pytest.fixture(scope="module")
def runner(loaded_once) -> Iterator[Runner]:
    """A process that runs milestones, of one folder after the other."""
    with Runner() as runner:
        yield runner


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The course, with a `my` that can be written, on the Python that runs the tests."""
    for name in [*(stage.name for stage in stage_folders()), "common", "tests", "course.py", "pyproject.toml"]:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("COURSE_NO_VENV", "1")
    return tmp_path

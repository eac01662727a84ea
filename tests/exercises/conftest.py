"""The exercises of the lessons, as tests. With `--engine my_01` they judge a learner's copy of the stage.

Without it they judge our own solution, so that the suite knows each exercise can be solved: a copy of the stage with
a file from `solutions/` appended to one of its own. (Do not look there before you have tried.)
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from common.stages import ROOT

SOLUTIONS = Path(__file__).parent / "solutions"


@pytest.fixture
def copy_of(tmp_path, request) -> Callable[[str, str, str], Path]:
    """copy_of(stage, file, solution) -> the folder to test."""

    def copy(stage: str, file: str, solution: str) -> Path:
        if chosen := request.config.getoption("--engine"):
            return Path(chosen)
        folder = tmp_path / f"solved_in_{tmp_path.name}"  # a package is imported once: each test needs its own name
        shutil.copytree(ROOT / stage, folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
        with (folder / file).open("a") as end:
            end.write("\n\n" + (SOLUTIONS / solution).read_text())
        return folder

    return copy

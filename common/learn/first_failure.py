"""Run tests in a copy of the course, up to the first that fails, and say what failed."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CONTRACT = ("tests/test_contract.py", "tests/test_contract_claims.py")  # Every stage has to pass these.
OPTIONS = "-vx --no-header --tb=short -p no:cacheprovider --hypothesis-profile first_failure".split()
SHOWN_LINES = 8


class Ended(NamedTuple):
    """The end of a run of pytest: its exit status, the first test that failed, and the last lines, or its errors."""

    status: int
    failed: str
    says: list[str]


def run_tests(tree: Path, arguments: Sequence[str], python: str = sys.executable, seconds: float = 900) -> Ended:
    """Run pytest with these arguments. A test that has not ended after these seconds has failed."""
    command = [python, "-u", "-m", "pytest", *OPTIONS, *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("COURSE_STAGE", "PYTHONPATH")}
    try:
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as hang:
        begun = re.findall(r"^tests/\S+", (hang.stdout or b"").decode(errors="replace"), re.MULTILINE)
        return Ended(1, [arguments[0], *begun][-1], [f"it has not ended after {seconds} s"])
    lines = (run.stdout + run.stderr).strip().splitlines()
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    errors = [re.sub(r"^E +([\w.]+\.Failed: )?", "", line) for line in lines if line.startswith("E ")]
    return Ended(run.returncode, failed[1] if failed else "", errors[:SHOWN_LINES] or lines[-SHOWN_LINES:])

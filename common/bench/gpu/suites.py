"""pytest in a process of its own: what it found, in numbers."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from common.bench.hardware import ROOT


def run_pytest(arguments: list[str]) -> dict[str, Any]:
    """Count tests passed and skipped, and name each failure with the first line of what it says.

    Raise ValueError if there is no pytest, or nothing was run. What pytest prints goes to stderr.
    """
    if importlib.util.find_spec("pytest") is None:
        raise ValueError("pytest is not installed here, and without it no test can be run")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # several of them may run side by side
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr.fileno())
        if not report.exists():
            raise ValueError(f"pytest ended with {done.returncode} and no report")
        suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    if not counts["tests"]:
        raise ValueError("pytest found no test")
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    return {"passed": passed, "skipped": counts["skipped"], "failures": failures(suite)}


def failures(suite: ElementTree.Element) -> list[str]:
    """Return "name of the test: first line of what went wrong" for each that failed or could not be read."""
    found = []
    for case in suite.iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            said = (problem.get("message") or problem.text or "").strip().partition("\n")[0]
            found.append(f"{case.get('name') or case.get('classname')}: {said}"[:300])
    return found

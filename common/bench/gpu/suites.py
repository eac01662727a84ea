"""pytest in a process of its own: its whole output in a file, its counts in numbers."""

import importlib.util
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from common.bench.hardware import ROOT

SHOWN = 20  # failures that are named; the log has all of them


def run_pytest(arguments: list[str], log: Path) -> dict[str, Any]:
    """Counts of tests passed, failed, skipped, and of files that could not be read ("errors"), with the first line of
    what each failure says. ValueError if there is no pytest, or nothing was run."""
    if importlib.util.find_spec("pytest") is None:
        raise ValueError("pytest is not installed here, and without it no test can be run")
    report = log.with_suffix(".xml")
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--junitxml={report}"]
    start = time.monotonic()
    with log.open("w") as output:
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # several of them may run side by side
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    if not report.exists():
        raise ValueError(f"pytest ended with {done.returncode} and no report; its last line: {last_line(log)}")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    report.unlink()
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    if not counts["tests"]:
        raise ValueError(f"pytest found no test: {last_line(log)}")
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    return {
        "passed": passed,
        "failed": counts["failures"],
        "errors": counts["errors"],
        "skipped": counts["skipped"],
        "seconds": time.monotonic() - start,
        "failures": failures(suite)[:SHOWN],
    }


def failures(suite: ElementTree.Element) -> list[str]:
    """ "name of the test: first line of what went wrong", for each that failed or could not be read."""
    found = []
    for case in suite.iter("testcase"):
        for problem in (*case.findall("failure"), *case.findall("error")):
            said = (problem.get("message") or problem.text or "").strip().partition("\n")[0]
            found.append(f"{case.get('name') or case.get('classname')}: {said}"[:300])
    return found


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def in_words(counts: dict[str, Any]) -> str:
    words = [f"{counts[name]} {name}" for name in ("passed", "failed", "errors", "skipped") if counts[name]]
    return ", ".join(words) + f" in {counts['seconds']:.0f} s"

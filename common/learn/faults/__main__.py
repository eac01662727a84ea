"""Plant every fault of the zoo in turn and name the test that catches it: the measure of the test suite.

    python -m common.learn.faults                  # all of them
    python -m common.learn.faults 17 18            # some

For each fault: the test that is named for it must fail, as must its reproduce.py, which must pass without the fault. If
the named test passes, name another, or write one. What compares code with code, such as tests/course/test_copies.py,
does not count.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from common.stages import ROOT
from common.terminal import parser_of, run_to_end

from ..bug import copy_course, make
from ..first_failure import run_tests
from . import FAULTS, Fault


def main() -> int:
    parser = parser_of("python -m common.learn.faults", __doc__)
    args = parser.parse_args()
    if unknown := {*args.numbers} - {fault.number for fault in FAULTS}:
        parser.error(f"there is no bug {min(unknown)}: they are numbered 1 to {len(FAULTS)}")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests and reproductions do
    wrong = 0
    for fault in FAULTS:
        if args.numbers and fault.number not in args.numbers:
            continue
        start = time.monotonic()
        caught = first_failure(fault)
        seconds = time.monotonic() - start
        said = reproduction(fault)
        if not caught:
            said.append(f"it is not caught by {fault.caught_by}")
        print(f"bug {fault.number}: {caught or 'NOT CAUGHT'} after {seconds:.0f} s", *said, sep="\n    ", flush=True)
        wrong += len(said)
    print(f"{wrong} wrong")
    return min(wrong, 1)


def first_failure(fault: Fault) -> str:
    """Return which of the fault's tests fails with it first, "" if all pass. Exit if they cannot run."""
    with TemporaryDirectory() as temporary:
        tree = Path(temporary)
        copy_course(ROOT, tree)
        fault.plant(tree)
        ended = run_tests(tree, fault.caught_by.split())
    if ended.status not in (0, 1):
        sys.exit(f"bug {fault.number}: pytest ended with {ended.status}: {ended.says[-1]}")
    return ended.failed if ended.status else ""


def reproduction(fault: Fault) -> list[str]:
    """Return what is wrong with a fault's reproduce.py: it fails with the fault, and passes without."""
    with TemporaryDirectory() as temporary:
        folder, wrong = Path(temporary) / "bug", []
        make(fault, ROOT, folder)
        if not run(folder).returncode:
            wrong.append("its reproduce.py passes")
        (folder / fault.file).write_bytes((ROOT / fault.file).read_bytes())
        if (ended := run(folder)).returncode:
            wrong.append(f"its reproduce.py fails without the fault: {ended.stderr.strip().splitlines()[-1:]}")
    return wrong


def run(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "reproduce.py"], cwd=folder, capture_output=True, text=True)


if __name__ == "__main__":
    run_to_end(main)

"""Plant every fault of the zoo in turn and name the test that catches it: the measure of the test suite.

    python tests/faults                  # all of them
    python tests/faults 17 18            # some
    python tests/faults 17 --write       # and write their rows of caught.md

For each fault: the test that is named for it must fail, as must its reproduce.py, which must pass without the fault. If
the named test passes, all other tests of behaviour run, and the first that fails is shown: then name that one, or write
one. What compares code with code, such as tests/course/test_copies.py, does not count.
"""

import argparse
import importlib
import os
import re
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("caught.md")
BEHAVIOUR = ["tests/test_contract.py", *(f"tests/{name}" for name in ("stages", "common", "serving", "distributed"))]
LARGE = ["torch", "transformers.models.llama.modeling_llama", "pytest", "hypothesis", "fastapi", "uvicorn", "openai"]
HEADER = """# Planted faults, and the tests that catch them

`python tests/faults --write` wrote this: each fault of [common/learn/faults](../../common/learn/faults), the test that
the fault names and that fails with it, and the seconds from the start of pytest, with that test alone, to the failure,
on a machine with two busy cores.

| bug | stage | what a user would have seen | caught by | seconds |
|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        "python tests/faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("numbers", nargs="*", type=int, metavar="BUG", help="which faults (default: all of them)")
    parser.add_argument("--write", action="store_true", help="write their rows of caught.md")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from common.learn import bug

    os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests and reproductions do, before anything imports triton
    for name in LARGE:  # once for all children
        importlib.import_module(name)
    wrong = []
    for fault in bug.FAULTS:
        if args.numbers and fault.number not in args.numbers:
            continue
        caught, seconds, named = catch(bug, fault)
        print(f"bug {fault.number}: {caught or 'NOT CAUGHT'} after {seconds:.0f} s", flush=True)
        said = [] if named else [f"it is not caught by {fault.caught_by}, but by {caught or 'none'}"]
        for sentence in said + reproduction(bug, fault):
            wrong.append(f"bug {fault.number}: {sentence}")
            print(wrong[-1], flush=True)
        if args.write and named:
            write_row(fault, caught, seconds)
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


def catch(bug, fault) -> tuple[str, float, bool]:
    """Return the first test that fails with a fault ("" if none does), after how many seconds, and if it is named."""
    for arguments in (fault.caught_by.split(), ["-m", "not ray and not browser", *BEHAVIOUR]):
        with TemporaryDirectory() as temporary:
            tree = Path(temporary)
            bug.copy_course(ROOT, tree)
            fault.plant(tree)
            began = time.perf_counter()
            ended = bug.outcome(*in_child(tree, partial(pytest_status, [*bug.PYTEST_OPTIONS, *arguments])))
        seconds = time.perf_counter() - began
        if ended.status == 1:
            return ended.failed or f"{arguments[0]}, which does not end", seconds, arguments[0] != "-m"
        if not ended.status:
            print(f"bug {fault.number}: passes {' '.join(arguments)}", flush=True)
        else:
            raise SystemExit(f"bug {fault.number}: pytest ended with {ended.status}: {ended.last}")
    return "", seconds, False


def pytest_status(arguments: list[str]) -> int:
    import pytest

    sys.path.insert(0, "")  # as `python -m pytest` does
    return pytest.main(arguments)


def reproduction(bug, fault) -> list[str]:
    """Return what is wrong with a fault's reproduce.py: it fails with the fault, and passes without."""
    wrong = []
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bug"
        bug.make(fault, ROOT, folder)
        run = partial(runpy.run_path, str(folder / "reproduce.py"), run_name="__main__")
        if in_child(folder, run)[0] == 0:
            wrong.append("its reproduce.py passes")
        (folder / fault.file).write_bytes((ROOT / fault.file).read_bytes())
        status, output = in_child(folder, run)
        if status:
            wrong.append(f"its reproduce.py fails without the fault:\n{output}")
    return wrong


def in_child(folder: Path, work: Callable[[], object]) -> tuple[int, str]:
    """Do some work in a folder in a fork of this process, which has the large libraries; return status and output.

    The status is the integer that `work` returns, 0 for another result, and 1 for an exception or after 15 minutes.
    """
    log = folder / "output.txt"
    if pid := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return (status if status >= 0 else 1), log.read_text(encoding="utf-8", errors="replace")
    status = 1
    try:
        signal.alarm(900)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] == "common"]:
            del sys.modules[name]  # the folder has its own
        sys.path.remove(str(ROOT))
        os.chdir(folder)
        result = work()
        status = int(result) if isinstance(result, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def write_row(fault, caught: str, seconds: float) -> None:
    """Write one row of the table; the others stay."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    rows = {int(row.split("|")[1]): row for row in re.findall(r"^\| \d+ .*$", text, re.MULTILINE)}
    rows[fault.number] = f"| {fault.number} | {fault.stage} | {fault.symptom} | `{caught}` | {seconds:.0f} |"
    TABLE.write_text(HEADER + "".join(f"{rows[number]}\n" for number in sorted(rows)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

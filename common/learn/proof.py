"""Prove that the milestones grade what they say: `python -m common.learn.proof [STAGE ...]`, for all stages minutes.

For each stage, in folders of its own:

- Blank, it fails at the first milestone, with a hint and without a traceback.
- Filled in milestone by milestone, it reaches all of those whose tasks are written, and fails at the next.
- The reference with the body of one task replaced by `return None` fails at the milestone that covers the task.
- All filled in, it reaches every milestone.
- The contract refuses the stage before under this stage's name, and a preemption that raises.
- The stage alone fails the check of each exercise; with its solution it passes this check and the whole contract.

`--write` writes the table, proof.md, which a test compares with the tasks of today.
"""

import argparse
import contextlib
import io
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from common.stages import ROOT, stage_folders

from .blank import Task, blank_stage, body_span, find_tasks, functions
from .check import check_milestones
from .milestones import Milestone, read_exercises, read_milestones, runner
from .milestones.runner import run_milestones
from .solve import fill_in
from .start import CONTRACT

PATIENCE = 3  # times as many seconds for each milestone: the machine may be busy
TABLE = Path(__file__).with_name("proof.md")
SOLUTIONS = ROOT / "workshop" / "solutions"
HEAD = "| stage | what is missing | fails at | what the learner reads |\n|---|---|---|---|"


class Row(NamedTuple):
    """What one incomplete or complete folder has shown."""

    stage: str
    missing: str
    at: str
    what: str
    proven: bool

    def __str__(self) -> str:
        what = self.what.replace("|", "/").replace("\n", " ")
        return f"| {self.stage} | {self.missing} | {self.at} | {what[:110]}{'...' * (len(what) > 110)} |"


def main() -> int:
    parser = argparse.ArgumentParser("python -m common.learn.proof", description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="numbers such as 05 (default: all)")
    parser.add_argument("--write", action="store_true", help="write the rows of these stages into the table")
    args = parser.parse_args()
    load_once()
    rows = []
    for before, stage in pairwise([None, *stage_folders()]):
        if not args.stages or stage.name[:2] in args.stages:
            start = time.perf_counter()
            for row in chain(prove(before, stage) if before else (), prove_exercises(stage)):
                print(row, "" if row.proven else "  NOT PROVEN", flush=True)
                rows.append(row)
            print(f"stage {stage.name[:2]}: {time.perf_counter() - start:.0f} s", flush=True)
    failed = [row for row in rows if not row.proven]
    print(f"{len(rows)} rows, {len(failed)} not proven")
    if args.write and failed:
        print("The table is as it was: a row that is not proven would look like the others.")
    elif args.write:
        write_table(rows)
    return bool(failed)


def load_once() -> None:
    """Have a fork server load the model for the processes that run milestones, where there is such a thing."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        runner.START_METHOD = "forkserver"
        multiprocessing.get_context("forkserver").set_forkserver_preload(["common.learn.milestones.preloaded"])


def prove(before: Path, stage: Path) -> Iterator[Row]:
    """Yield the rows of one stage."""
    tasks = find_tasks(before, stage)
    milestones = [one._replace(seconds=PATIENCE * one.seconds) for one in read_milestones(stage.name[:2])]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve() / stage.name
        for done in range(len(milestones) + 1):
            yield prove_partial(before, stage, folder, tasks, milestones, done)
        for task in tasks:
            for milestone in milestones:
                if task.name in milestone.tasks:
                    yield prove_without(stage, folder, task, milestone)
            if task.changed:
                yield prove_as_before(before, stage, folder, task, milestones)
        if stage.name[:2] != "03":  # its engine is that of stage 02
            yield prove_refused(folder, sources(before), "what is new: it is the stage before")
        for task in tasks:
            if task.name == "Scheduler._preempt":
                raises = without(stage, task, 'raise RuntimeError("no preemption")')
                yield prove_refused(folder, raises, f"`{task.name}`, which raises")


def prove_partial(
    before: Path, stage: Path, folder: Path, tasks: list[Task], milestones: list[Milestone], done: int
) -> Row:
    """Check a folder with the tasks of the first `done` milestones filled in."""
    files = blank_stage(before, stage)
    written = {name for milestone in milestones[:done] for name in milestone.tasks}
    for task in tasks:
        if task.name in written:
            files[task.file], _ = fill_in(folder / task.file, files[task.file], stage / task.file, task)
    write(folder, files)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        status = check_milestones(folder, milestones, tasks)
    text = shown.getvalue()
    reached = text.count("  done ")
    what = next((line.partition(": ")[2] for line in text.splitlines() if line.startswith("Happened")), "")
    number, total = stage.name[:2], len(milestones)
    able = next((i for i, one in enumerate(milestones) if not written >= {*one.tasks}), total)
    missing = f"all of milestones {done + 1} to {total}" if done < total else "nothing"
    if done == total:
        return Row(number, missing, "none", what, reached == total and not status)
    clear = "Traceback" not in text and "\nHint: " in text and what.startswith("not written yet: task")
    return Row(number, missing, f"{reached + 1}", what, status == 1 and reached == able and clear)


def prove_without(stage: Path, folder: Path, task: Task, milestone: Milestone) -> Row:
    """Check the reference in which one task does nothing and returns None."""
    write(folder, without(stage, task, "return None"))
    [outcome] = run_milestones(folder, [milestone])
    return Row(stage.name[:2], f"`{task.name}`", f"{milestone.number}", outcome.what, bool(outcome.what))


def prove_as_before(before: Path, stage: Path, folder: Path, task: Task, milestones: list[Milestone]) -> Row:
    """Check the reference in which one changed task is what it was in the stage before: its news must be missed."""
    source = sources(before)[task.file]
    lines = source.splitlines(keepends=True)
    write(folder, with_body(stage, task, lines[body_span(functions(source)[task.name], lines)]))
    needing = [milestone for milestone in milestones if task.name in milestone.tasks]
    first = milestones.index(needing[0])
    outcomes = zip(milestones[first:], run_milestones(folder, milestones[first:]), strict=False)
    at, what = next(((f"{one.number}", outcome.what) for one, outcome in outcomes if outcome.what), ("none", ""))
    return Row(stage.name[:2], f"what is new in `{task.name}`", at, what, bool(what))


def prove_refused(folder: Path, files: dict[str, str], missing: str) -> Row:
    """Run what the contract says of each stage's claims on a folder that does not keep them."""
    write(folder, files)
    result = run_contract(folder, CONTRACT[1])
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    what = failed[0].partition("::")[2].partition("[")[0] if failed else "passed, or did not run"
    return Row(folder.name[:2], missing, "contract", what, bool(failed) and result.returncode == 1)


def run_contract(folder: Path, *files: str) -> subprocess.CompletedProcess:
    """Run files of the contract suite on a folder, up to the first test that fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider", *files]
    return subprocess.run([*command, "--engine", str(folder)], cwd=ROOT, capture_output=True, text=True)


def prove_exercises(stage: Path) -> Iterator[Row]:
    """Check the stage alone on each of its lesson's exercises; with the solution, and run the whole contract on it."""
    for exercise in read_exercises(stage.name[:2]):
        number, name = stage.name[:2], f"exercise {exercise.number}"
        [outcome] = run_milestones(stage, [exercise._replace(seconds=PATIENCE * exercise.seconds)])
        yield Row(number, f"the solution of {name}", name, outcome.what, bool(outcome.what))
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary).resolve() / stage.name
            write(folder, solved(stage, exercise.number))
            [outcome] = run_milestones(folder, [exercise._replace(seconds=PATIENCE * exercise.seconds)])
            contract = run_contract(folder, *CONTRACT)
            what = outcome.what or contract.stdout.strip().splitlines()[-1].partition(" in ")[0]
            yield Row(number, f"nothing of {name}", "none", what, not outcome.what and contract.returncode == 0)


def solved(stage: Path, number: int) -> dict[str, str]:
    """Return the files of a stage with the solution of an exercise."""
    files = sources(stage)
    for path in SOLUTIONS.glob(f"{stage.name[:2]}-{number}-*.py"):
        files[path.name.split("-", 2)[2]] += "\n\n" + path.read_text(encoding="utf-8")
    return files


def without(stage: Path, task: Task, body: str) -> dict[str, str]:
    """Return the reference's files with a line in place of the body of one task."""
    return with_body(stage, task, [" " * 4 * (1 + task.name.count(".")) + body + "\n"])


def with_body(stage: Path, task: Task, body: list[str]) -> dict[str, str]:
    """Return the reference's files with these lines as the body of one task."""
    files = sources(stage)
    lines = files[task.file].splitlines(keepends=True)
    lines[body_span(functions(files[task.file])[task.name], lines)] = body
    return files | {task.file: "".join(lines)}


def sources(stage: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in stage.glob("*.py")}


def write_table(rows: list[Row]) -> None:
    """Replace the rows of these stages in the table."""
    proven, kept = {row.stage for row in rows}, []
    if TABLE.exists():
        kept = [line for line in TABLE.read_text(encoding="utf-8").splitlines()[2:] if line[2:4] not in proven]
    lines = sorted([*kept, *map(str, rows)], key=lambda line: line[:4])  # stable: a stage's rows keep their order
    TABLE.write_text("\n".join([HEAD, *lines, ""]), encoding="utf-8")


def write(folder: Path, files: dict[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

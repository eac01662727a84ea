"""An LLM inference server, built in eight stages.

usage: python3 course.py COMMAND [STAGE] [more arguments are passed on]

{commands}

A stage is named by its number or its folder: 2, 02 and 02_kv_cache are the same. my/02 is your own; `start`
makes it.

The first command that needs it makes .venv and installs requirements.txt into it: a few minutes the first
time, instant afterwards. With COURSE_KIT=FOLDER it installs from a kit, without a network; with
COURSE_NO_VENV=1 it makes nothing and uses the Python that runs course.py.
"""

# For `uv run course.py`: uv brings the Python, and the course makes its own environment as always.
# /// script
# requires-python = ">=3.10,<3.14"
# ///

import sys

if sys.version_info < (3, 10):  # noqa: UP036 (ruff assumes 3.10 or newer). Python 3.6 can parse all of this file.
    running = "{}.{}".format(*sys.version_info[:2])
    sys.exit(f"The course needs Python 3.10 or newer, and this is {running}: run it with a newer one.")

import importlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from common.setup.environment import prepare_environment, usable_python
from common.stages import stage_folder, stage_folders
from common.terminal import READER_GONE, note, paint, run_to_end, show

ROOT = Path(__file__).resolve().parent
HELP = ("-h", "--help")
NEEDING_NOTHING = ("start", "solve", "bug", "kit")  # commands that run in this process, without .venv


def pick_stage(wanted: str, root: Path) -> Path:
    """Return the stage meant by "2", "02", "02_kv_cache", or by a path such as "my/02". Exit if there is none."""
    try:
        return stage_folder(wanted, root)
    except ValueError:
        sys.exit(f"Unknown stage {wanted!r}. Use {list_names(stage_folders(root))}.")


def list_names(stages: list[Path]) -> str:
    return ", ".join(stage.name for stage in stages) or "none"


def relative(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def title(stage: Path) -> str:
    """Return the first heading of a stage's README; "" if it has none."""
    readme = stage / "README.md"
    found = re.search(r"^#+ +(.+)", readme.read_text(encoding="utf-8") if readme.exists() else "", re.MULTILINE)
    return found[1].strip() if found else ""


def show_help(stages: list[Path]) -> int:
    print(__doc__.format(commands="\n".join(f"  {name:7} {verb.stages:9} {verb.help}" for name, verb in VERBS.items())))
    width = max((len(stage.name) for stage in stages), default=0)
    for stage in stages:
        print(f"  {stage.name:{width}}   {title(stage)}")
    return 0


def show_verb(command: str, stages: list[Path], root: Path) -> int:
    """Print what a command does, and the options that its own parser lists."""
    verb, first, last = VERBS[command], stages[0].name[:2], stages[-1].name[:2]
    print("usage: python3 course.py", *filter(None, (command, verb.stages, "[options]" * verb.parser)), end="\n\n")
    print(f"{verb.help[0].upper()}{verb.help[1:]}.", end="\n\n")
    print(verb.more.format(command=command, first=first, last=last), end="\n\n" * bool(verb.more), flush=True)
    if not verb.parser:
        return 0
    if not (usable_python(root) or command in NEEDING_NOTHING):
        print("`python3 course.py demo 01` installs what it needs; then this also lists its options.")
        return 0
    chosen = stages if command == "bench" else stages[-1:] if verb.stages else []
    return verb.run(chosen, ["--help"], root)


# ---- Running things ----


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> int:
    """Run a command in a folder to its end, and return its exit status. environment: variables besides this process's.

    Ctrl-C in a terminal reaches the child as well. It gets all the time it needs to shut down; only then does
    KeyboardInterrupt go on to the caller.
    """
    variables = {**os.environ, **(environment or {})}
    child = subprocess.Popen(command, cwd=str(folder), env=variables)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # A server must end with course.py.
    interrupted = False
    while child.returncode is None:
        try:
            child.wait()
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return child.returncode if child.returncode >= 0 else 128 - child.returncode  # 128 + signal, as in shells


def own_environment(stage: Path, root: Path) -> dict[str, str]:
    """Return the variables with which a learner's stage finds `common` and stands for the reference of its name."""
    if stage.parent == root:
        return {}
    return {"COURSE_STAGE": str(stage), "PYTHONPATH": os.pathsep.join([str(stage.parent), str(root)])}


def run_stages(stages: list[Path], script: str, arguments: list[str], root: Path) -> int:
    """Run this script of each stage that has it, up to the first that fails, in the user's working directory."""
    stages = [stage for stage in stages if (stage / script).exists()]
    if not stages:
        sys.exit(f"There is nothing to run: no {script} was found.")
    python = prepare_environment(root)
    for index, stage in enumerate(stages):
        if len(stages) > 1:
            print(paint(f"\n==== {stage.name}: {title(stage)} ".ljust(100, "="), "1"), flush=True)
        path = stage / script
        status = run([python, str(path), *arguments], Path.cwd(), own_environment(stage, root))
        if status == READER_GONE:
            return status
        if status:
            not_run = f" Not run: {list_names(stages[index + 1 :])}." if len(stages) > 1 else ""
            note(f"{relative(path, root)} failed with exit status {status}.{not_run}")
            return status
    return 0


# ---- The commands: each takes the stages that were chosen, the remaining arguments and the course's root ----

Command = Callable[[list[Path], list[str], Path], int]


def bench(chosen: list[Path], arguments: list[str], root: Path) -> int:
    if len(chosen) > 1:  # The whole course writes one results file.
        return module("common.bench")([], arguments, root)
    name = chosen[0].name
    if name not in [stage.name for stage in stage_folders(root)]:
        sys.exit(f"{name} has no stage's name: its benchmark would measure the reference. Rename it.")
    return run_stages(chosen, "benchmark.py", arguments, root)


def diff(chosen: list[Path], arguments: list[str], root: Path) -> int:
    stage, number = chosen[0], chosen[0].name[:2]
    if arguments:
        sys.exit(f"`diff` takes one stage, and was given {' '.join(arguments)} as well.")
    if not number.isdecimal():
        sys.exit(f"{stage.name} has no stage's number, so it is not clear which stage comes before it.")
    before = [one for one in stage_folders(root) if one.name[:2] < number]
    if not before:
        print(f"{stage.name} is the first stage, so there is nothing to compare it with.")
        return 0
    from common.learn.stage_diff import diff_stages  # It needs nothing but Python.

    show(diff_stages(before[-1], stage))
    return 0


def test(chosen: list[Path], arguments: list[str], root: Path) -> int:
    """Run the whole suite; with a stage as first argument, only the tests about it, without processes under Ray.

    A learner's stage takes the place of the reference in all of these tests. The whole suite runs in two processes more
    than there are cores, up to six: two have the tests under Ray, which wait for most of the time. tests/conftest.py
    groups the tests.
    """
    first = arguments[0] if arguments else "-"
    is_stage = not first.startswith("-") and not (root / first.partition("::")[0]).exists()
    if not is_stage and not (root / first / "engine.py").exists():
        pytest = [prepare_environment(root), "-m", "pytest", "-q"]
        if arguments:
            return run([*pytest, *arguments], root)
        several = ["-n", str(min(os.cpu_count() or 1, 4) + 2), "--dist", "loadgroup", "--no-loadscope-reorder"]
        return run([*pytest, *several], root)
    stage = pick_stage(first, root)
    tests = [relative(file, root) for file in sorted(root.glob(f"tests/stages/test*_{stage.name[:2]}_*.py"))]
    contract = ["tests/test_contract.py", "tests/test_contract_claims.py"]
    command = [prepare_environment(root), "-m", "pytest", "-q", "-m", "not ray", *tests, *contract]
    name = relative(stage, root)
    status = run([*command, "--engine", name, *arguments[1:]], root, own_environment(stage, root))
    note(f"Covered on {name}: {', '.join([*tests, 'the contract'])}. Left out: processes under Ray, and the rest.")
    return status


def stages_main(mode: str) -> Command:
    """Return a command that runs main.py of each stage in this mode, such as "--demo"."""
    return lambda chosen, arguments, root: run_stages(chosen, "main.py", [mode, *arguments], root)


def module(name: str) -> Command:
    """Return a command that runs `python -m name`, with the folders of the stages before the other arguments.

    It runs in the user's working directory: file names among the arguments are relative to it, not to the course.
    """

    def command(chosen: list[Path], arguments: list[str], root: Path) -> int:
        folders = [relative(stage, root) for stage in chosen]
        program = [prepare_environment(root), "-m", name, *folders, *arguments]
        return run(program, Path.cwd(), {"PYTHONPATH": str(root)})

    return command


def bare(name: str) -> Command:
    """Return a command that calls `main([stage, ...])` of a module in this process, which may lack all packages."""
    return lambda chosen, arguments, root: importlib.import_module(name).main([*map(str, chosen), *arguments])


class Verb(NamedTuple):
    """One command. `stages` is how the help shows its stages: "[STAGE]" one or all, "STAGE" one, "" none.

    more: further text of the command's own help. parser: whether the command then lists its options itself.
    """

    stages: str
    help: str
    run: Command
    more: str = ""
    parser: bool = True


OF_A_STAGE = "Below are the options of stage {last}; `{command} {first} --help` shows those of stage {first}."
PAGER = "It has no options. At a terminal the diff has colours (not with NO_COLOR) and goes through $PAGER."
TESTS = "Such as `test 05 -x`, `test my/05 -k abort` or `test tests/common`; `python -m pytest --help` lists options."
DOCTOR = 'It has no options, installs nothing, and ends with 1 if something is marked "!!".'

VERBS = {
    "demo": Verb("[STAGE]", "watch one stage work, or every stage in turn", stages_main("--demo"), OF_A_STAGE),
    "serve": Verb("STAGE", "start a stage's HTTP server", stages_main("--serve"), OF_A_STAGE),
    "watch": Verb(
        "STAGE", "see an engine at work, in a browser; or two, side by side", module("common.inspector"), OF_A_STAGE
    ),
    "bench": Verb("[STAGE]", "measure a stage against the one before it, or the course; --quick: in minutes", bench),
    "predict": Verb("STAGE", "guess what a benchmark measures, then see", module("common.learn.predict"), OF_A_STAGE),
    "compare": Verb(
        "", "draw this machine's results beside committed ones, or a class's", module("common.bench.compare")
    ),
    "diff": Verb(
        "STAGE", "read what a stage changed in the one before it; needs nothing but Python", diff, PAGER, False
    ),
    "start": Verb(
        "STAGE", "make my/STAGE, with this lesson's functions left for you to write", bare("common.learn.start")
    ),
    "check": Verb("STAGE", "run the milestones of my/STAGE, up to the first that fails", module("common.learn.check")),
    "solve": Verb("STAGE", "fill in a function of my/STAGE from the reference, or --all", bare("common.learn.solve")),
    "bug": Verb("", "list planted faults; with a number, make my/bug_17 with one to find", bare("common.learn.bug")),
    "test": Verb(
        "", "run the tests, or with a stage its own and the contract; other arguments go to pytest", test, TESTS, False
    ),
    "grade": Verb("", "write an autograder of a stage, for Gradescope or Classroom 50", module("common.learn.grade")),
    "doctor": Verb(
        "", "say what this machine lacks, and what to expect of it", bare("common.setup.doctor"), DOCTOR, False
    ),
    "judge": Verb("", "load a server at a URL: how much it gives within objectives", module("common.bench.judge")),
    "book": Verb("", "make a website of the course, to read without a network", module("common.book")),
    "kit": Verb("", "gather all wheels for machines without a network", bare("common.setup.kit")),
}


def main(arguments: list[str], root: Path = ROOT) -> int:
    stages = stage_folders(root)
    if not arguments:
        print(
            f"{__doc__.partition(chr(10))[0]}\n\n{importlib.import_module('common.learn.next_step').next_step(root)}\n"
        )
        print("Every command: python3 course.py help. The map of the course: README.md.")
        return 0
    command, *rest = arguments
    if command in ("help", *HELP):
        return show_help(stages)
    if command not in VERBS:
        sys.exit(f"Unknown command {command!r}. Use {', '.join(VERBS)}.")
    verb = VERBS[command]
    if rest[:1] and rest[0] in HELP:
        return show_verb(command, stages, root)

    chosen = stages if verb.stages else []
    if verb.stages and rest and not rest[0].startswith("-"):
        chosen, rest = [pick_stage(rest[0], root)], rest[1:]
    elif verb.stages == "STAGE":
        sys.exit(f"`{command}` needs a stage: one of {list_names(stages)}.")
    if verb.parser and rest[:1] and rest[0] in HELP and command != "bench":  # A benchmark prints its own usage.
        print("usage: python3 course.py", command, arguments[1], "[options]", end="\n\n", flush=True)
    return verb.run(chosen, rest, root)


if __name__ == "__main__":
    run_to_end(lambda: main(sys.argv[1:]))

"""An LLM inference server, built in eight stages.

usage: python3 course.py COMMAND [STAGE] [more arguments are passed on]

{commands}

A stage is named by its number or its folder: 2, 02 and 02_kv_cache are the same. my/02 is your own; `start`
makes it.

The first command that needs it makes .venv and installs requirements.txt into it: a few minutes the first
time, instant afterwards. With COURSE_KIT=FOLDER it installs from a kit, without a network; with
COURSE_NO_VENV=1 it makes nothing and uses the Python that runs course.py.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 (ruff assumes what is checked here). Down to 3.6 all of this file parses.
    running = "{}.{}".format(*sys.version_info[:2])
    sys.exit(f"The course needs Python 3.10 or newer, and this is {running}: run it with a newer one.")

import importlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from common.setup.environment import note, prepare_environment

ROOT = Path(__file__).resolve().parent
READER_GONE = 128 + 13  # how shells report SIGPIPE


def find_stages(root: Path) -> list[Path]:
    """The stage folders, in order. A folder is a stage once it has a main.py."""
    return sorted(main.parent for main in root.glob("[0-9][0-9]_*/main.py"))


def pick_stage(stages: list[Path], wanted: str, root: Path = ROOT) -> Path:
    """The stage meant by "2", "02", "02_kv_cache" or "02_kv_cache/"; a path such as "my/02" is the learner's own."""
    path, name = Path(wanted), Path(wanted).name
    own = path.parent != Path()
    for stage in find_stages((root / path).parent) if own else stages:
        if name == stage.name or (name.isdecimal() and int(name) == int(stage.name[:2])):
            return stage
    if name.strip(".") and (root / path / "main.py").exists():  # a copy of any name
        return root / path
    sys.exit(f"There is no stage {wanted!r}; there is {list_names(stages)}.")


def list_names(stages: list[Path]) -> str:
    return ", ".join(stage.name for stage in stages) or "none"


def title(stage: Path) -> str:
    """The first heading of a stage's README, or else the first line of a docstring."""
    docstring = r'^"""(.+?)(?:"""|$)'
    for name, pattern in (("README.md", r"^#+ +(.+)"), ("main.py", docstring), ("benchmark.py", docstring)):
        text = (stage / name).read_text(encoding="utf-8") if (stage / name).exists() else ""
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found[1].strip()
    return ""


def show_help(stages: list[Path]) -> int:
    print(__doc__.format(commands="\n".join(f"  {name:6} {verb.stages:9} {verb.help}" for name, verb in VERBS.items())))
    width = max((len(stage.name) for stage in stages), default=0)
    for stage in stages:
        print(f"  {stage.name:{width}}   {title(stage)}")
    return 0


# ---- Running things ----


def run(command: list[str], root: Path, environment: dict[str, str] | None = None) -> int:
    """Run a command to its end and return its exit status. environment: variables besides those of this process.

    Ctrl-C in a terminal reaches the child as well. It gets all the time it needs to shut down; only then does
    KeyboardInterrupt go on to the caller.
    """
    child = subprocess.Popen(command, cwd=str(root), env={**os.environ, **(environment or {})})
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # a server must not outlive its door
    interrupted = False
    while child.returncode is None:
        try:
            child.wait()
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    if child.returncode and reader_has_gone():
        return READER_GONE
    return child.returncode if child.returncode >= 0 else 128 - child.returncode  # a signal, as shells count


def own_environment(stage: Path, root: Path) -> dict[str, str]:
    """Return the variables with which a learner's stage finds `common` and stands for the reference of its name."""
    if stage.parent == root:
        return {}
    return {"COURSE_STAGE": str(stage), "PYTHONPATH": os.pathsep.join([str(stage.parent), str(root)])}


def reader_has_gone() -> bool:
    """Return whether stdout is a pipe whose reader has ended, as `head` does once it has its lines."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def run_stages(stages: list[Path], script: str, arguments: list[str], root: Path) -> int:
    """Run the same script of each stage in turn, up to the first that fails."""
    if not stages:
        sys.exit(f"There is nothing to run: no {script} was found.")
    python = prepare_environment(root)
    for index, stage in enumerate(stages):
        if len(stages) > 1:
            print(paint(f"\n==== {stage.name}: {title(stage)} ".ljust(100, "="), "1"), flush=True)
        path = Path(os.path.relpath(stage / script, root)).as_posix()
        status = run([python, path, *arguments], root, own_environment(stage, root))
        if status == READER_GONE:
            return status
        if status:
            not_run = f" Not run: {list_names(stages[index + 1 :])}." if len(stages) > 1 else ""
            note(f"{path} failed with exit status {status}.{not_run}")
            return status
    return 0


def paint(text: str, colour: str) -> str:
    """Wrap text in a terminal's colour code, unless there is no terminal or NO_COLOR asks for none."""
    plain = not colour or not sys.stdout.isatty() or os.environ.get("NO_COLOR")
    return text if plain else f"\033[{colour}m{text}\033[0m"


# ---- The diff ----


def show_diff(stages: list[Path], stage: Path) -> int:
    numbers = [one.name[:2] for one in stages]
    place = numbers.index(stage.name[:2]) if stage.name[:2] in numbers else len(stages)
    if place == 0:
        print(f"{stage.name} is the first stage: there is none before it to compare it with.")
        return 0
    from common.learn.stage_diff import diff_stages  # which needs nothing but Python

    colours = {"+": "32", "-": "31", "@": "36", " ": ""}
    lines = diff_stages(stages[place - 1], stage)
    text = "\n".join(paint(line, colours.get(line[:1], "1")) for line in lines) + "\n"
    pager = shlex.split(os.environ.get("PAGER", "less"))
    if sys.stdout.isatty() and pager and shutil.which(pager[0]):
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is one of the pager's own keys
        # F, X: what fits on the screen just stays there; R: colours
        subprocess.run(pager, input=text.encode(), env={"LESS": "FRX", **os.environ})
    else:
        print(text, end="")
    return 0


# ---- The commands: each takes the stages that were chosen, the remaining arguments and the course's root ----


def demo(chosen: list[Path], arguments: list[str], root: Path) -> int:
    return run_stages(chosen, "main.py", ["--demo", *arguments], root)


def serve(chosen: list[Path], arguments: list[str], root: Path) -> int:
    return run_stages(chosen, "main.py", ["--serve", *arguments], root)


def bench(chosen: list[Path], arguments: list[str], root: Path) -> int:
    if len(chosen) > 1:  # the whole course, into one file
        return run([prepare_environment(root), "-m", "common.bench", *arguments], root)
    return run_stages([one for one in chosen if (one / "benchmark.py").exists()], "benchmark.py", arguments, root)


def diff(chosen: list[Path], arguments: list[str], root: Path) -> int:
    return show_diff(find_stages(root), chosen[0])


def test(chosen: list[Path], arguments: list[str], root: Path) -> int:
    """Run the whole suite, or with a stage in front what is about it alone, without processes under Ray."""
    pytest, stages = [prepare_environment(root), "-m", "pytest", "-q"], find_stages(root)
    if not arguments or not re.fullmatch(r"\d+(_\w+)?", arguments[0]):
        return run([*pytest, *arguments], root)
    stage = pick_stage(stages, arguments[0])
    files = sorted(root.glob(f"tests/stages/test*_{stage.name[:2]}_*.py"))
    names = [file.relative_to(root).as_posix() for file in files]
    contract = ["tests/test_contract.py", "--engine", stage.name]
    status = run([*pytest, "-m", "not ray", *names, *contract, *arguments[1:]], root)
    note(f"Covered: the contract on {stage.name}, and {', '.join(names)}. Left out: processes under Ray, and the rest.")
    return status


def module(name: str, *fixed: str) -> Callable[[list[Path], list[str], Path], int]:
    """Return a command that runs `python -m name`, with the folders of the stages before the other arguments."""

    def command(chosen: list[Path], arguments: list[str], root: Path) -> int:
        folders = [Path(os.path.relpath(stage, root)).as_posix() for stage in chosen]
        return run([prepare_environment(root), "-m", name, *fixed, *folders, *arguments], root)

    return command


def bare(name: str) -> Callable[[list[Path], list[str], Path], int]:
    """Return a command that calls `main([stage, ...])` of a module here, where nothing may be installed yet."""
    return lambda chosen, arguments, root: importlib.import_module(name).main([*map(str, chosen), *arguments])


class Verb(NamedTuple):
    """One command. `stages` is how the help shows its stages: "[STAGE]" one or all, "STAGE" one, "" none."""

    stages: str
    help: str
    run: Callable[[list[Path], list[str], Path], int]


VERBS = {
    "demo": Verb("[STAGE]", "watch one stage work, or every stage in turn", demo),
    "serve": Verb("STAGE", "start a stage's HTTP server", serve),
    "watch": Verb("STAGE", "see its engine at work, in a browser; or two, side by side", module("common.inspector")),
    "bench": Verb(
        "[STAGE]", "measure a stage against the one before it, or the whole course; --quick: in minutes", bench
    ),
    "diff": Verb("STAGE", "read what a stage changed in the one before it; needs nothing but Python", diff),
    "start": Verb(
        "STAGE", "make my/STAGE, with this lesson's functions left for you to write", bare("common.learn.start")
    ),
    "solve": Verb("STAGE", "fill in one of them from the reference, or --all", bare("common.learn.solve")),
    "test": Verb("", "run the tests, or with a stage its own and the contract; arguments go to pytest", test),
    "doctor": Verb("", "say what this machine lacks, and what to expect of it", bare("common.setup.doctor")),
    "kit": Verb("", "gather all wheels for machines without a network", bare("common.setup.gather")),
}


def main(arguments: list[str], root: Path = ROOT) -> int:
    stages = find_stages(root)
    command, *rest = arguments or ["help"]
    if command in ("help", "-h", "--help"):
        return show_help(stages)
    if command not in VERBS:
        sys.exit(f"Unknown command {command!r}. Use {', '.join(VERBS)}.")
    verb = VERBS[command]
    if verb.stages and rest[:1] in (["-h"], ["--help"]):
        return show_help(stages)

    chosen = stages if verb.stages else []
    if verb.stages and rest and not rest[0].startswith("-"):
        chosen, rest = [pick_stage(stages, rest[0], root)], rest[1:]
    elif verb.stages == "STAGE":
        sys.exit(f"`{command}` needs a stage: one of {list_names(stages)}.")
    return verb.run(chosen, rest, root)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a console that lacks a character shows "?" in its place
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains once more when it ends
        status = READER_GONE
    sys.exit(status)

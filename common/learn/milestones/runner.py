"""Run milestones in a process of their own: a learner's code may loop forever, or end the process."""

import faulthandler
import inspect
import linecache
import logging
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import threading
import traceback
from array import array
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import Failed, Milestone
from .offline import go_offline

START_SECONDS = 60  # to import torch and load the model
START_METHOD = "spawn"  # of multiprocessing
SEED = "COURSE_GRADING_SEED"  # the variable that hidden.py reads
PLAIN = (int, float, str, list, tuple, set, dict, array, deque, type(None))  # values that are shown with a call
WIDTH = 100  # characters of the longest such value


class Outcome(NamedTuple):
    """What became of a milestone. what: "" if it is reached."""

    what: str = ""
    picture: str = ""


class Runner:
    """A process that runs milestones, of one folder after the other. If one ends it, the next starts another.

    seed: of a grader's hidden checks, which run without a network.
    """

    def __init__(self, seed: str = ""):
        self.seed, self.child, self.temporary = seed, None, tempfile.TemporaryDirectory()
        self.hanging = Path(self.temporary.name) / "hanging"  # The process writes its stacks there when its time is up.

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_) -> None:
        self.end()
        self.temporary.cleanup()

    def start(self) -> None:
        context = multiprocessing.get_context(START_METHOD)
        self.hanging.write_text("", "utf-8")
        self.pipe, theirs = context.Pipe()
        child = context.Process(target=serve, args=(theirs, self.hanging, self.seed), daemon=True)
        child.start()
        theirs.close()
        self.child = child

    def end(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.join()
            self.child = None

    def run(self, folder: Path, milestone: Milestone) -> Outcome:
        """Return what becomes of a milestone."""
        if self.child is None:
            self.start()
        try:
            self.pipe.send((folder, milestone))
            return self.pipe.recv()
        except (EOFError, OSError):
            self.child.join()
            outcome = interrupted(folder, milestone, self.hanging.read_text("utf-8"), self.child.exitcode)
            self.end()
            return outcome


def serve(pipe, hanging: Path, seed: str) -> None:
    """Answer each (folder, milestone) with its outcome, until the other end of the pipe is closed."""
    if seed:
        os.environ[SEED] = seed
        go_offline()
    with hanging.open("w", encoding="utf-8") as stacks, suppress(EOFError):
        faulthandler.dump_traceback_later(START_SECONDS, exit=True, file=stacks)
        from .stage_under_test import StageUnderTest, bundled

        bundled()
        logging.disable()  # Milestones cause losses on purpose: the stage must not log them.
        faulthandler.cancel_dump_traceback_later()
        stage, modules = None, {}
        while True:
            folder, milestone = pipe.recv()
            faulthandler.dump_traceback_later(milestone.seconds, exit=True, file=stacks)
            if stage is None or stage.folder != folder:
                loaded = {folder.name, stage.folder.name if stage else ""}
                for name in [name for name in sys.modules if name.partition(".")[0] in loaded]:
                    del sys.modules[name]  # It is from another folder of this name, or replaces the reference's.
                stage = StageUnderTest(folder)
            if milestone.file not in modules:
                modules[milestone.file] = runpy.run_path(str(milestone.file), run_name=__package__ + ".now")
            outcome = run_one(modules[milestone.file][milestone.name], stage)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(outcome)


def run_one(check, stage) -> Outcome:
    died: list[BaseException] = []  # what ended threads of the stage
    threading.excepthook = lambda thread: died.append(thread.exc_value)
    try:
        check(stage)
    except Failed as failed:
        if not died:
            return Outcome(failed.what, failed.picture)
        cause = raised(died[0], stage.folder)
        return cause._replace(what=f"{failed.what}\nBefore that, a thread ended: {cause.what}")
    except BaseException as error:  # A learner's sys.exit must not end this process.
        return raised(error, stage.folder)
    return Outcome()


def raised(error: BaseException, folder: Path) -> Outcome:
    """Return what an exception says, and where in the learner's code it was raised."""
    if isinstance(error, NotImplementedError):
        return Outcome(f"not written yet: {error}")
    if isinstance(error, SyntaxError):
        return Outcome(f"{Path(error.filename or '').name}, line {error.lineno}: {error.msg}", error.text or "")
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames = [*traceback.walk_tb(error.__traceback__)]
    lines = traceback.extract_tb(error.__traceback__)
    own = [i for i, line in enumerate(lines) if Path(line.filename).parent == folder]
    if own:
        last = max((i for i in own if not lines[i].name.startswith("<")), default=own[-1])  # "<listcomp>"
        called = f"\n    called as {call_of(frames[last][0])}"
        at = lines[own[-1]]
        return Outcome(said, place(at.filename, at.lineno, lines[last].name, at.line) + called)
    return Outcome(f"the check cannot go on with what it was given: {said}", f"it did:  {lines[-1].line}")


def call_of(frame) -> str:
    """Return a call with those of its arguments, and of its object's attributes, that are plain and short."""

    def shown(values: dict) -> str:
        pairs = ((name, repr(value)) for name, value in values.items() if isinstance(value, PLAIN))
        return ", ".join(f"{name}={text}" for name, text in pairs if len(text) < WIDTH)

    names, _, _, values = inspect.getargvalues(frame)
    owner = values.get("self")
    attributes = shown(getattr(owner, "__dict__", {}))
    of = f", where self is {type(owner).__name__} with {attributes}" if attributes else ""
    return f"{frame.f_code.co_name}({shown({name: values[name] for name in names if name != 'self'})}){of}"


def place(file: str, line: int, function: str, text: str) -> str:
    """Return a place in the learner's code."""
    return f"{Path(file).name}, line {line}, in {function}:\n    {text}"


def interrupted(folder: Path, milestone: Milestone, stacks: str, code: int | None) -> Outcome:
    """Return what became of a milestone whose process has ended under it."""
    if "Timeout" not in stacks:
        return Outcome(f"the process ended in the middle, with exit status {code}")
    places = []
    for thread in reversed(stacks.split("\n\n")):  # the main thread, which may run an event loop, is the last
        for file, line, function in re.findall(r'File "(.+)", line (\d+) in (\w+)', thread):
            if Path(file).parent == folder:
                text = linecache.getline(file, int(line)).strip()  # "" where the stack names no line of the file
                places.append(place(file, int(line), function, text))
                break
    waiting = "" if places else ", waiting for what never came"
    return Outcome(f"it ran for {milestone.seconds} s without an end{waiting}", "\n".join(places))

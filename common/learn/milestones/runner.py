"""Run milestones in a process of their own: a learner's code may loop for ever, or end the process."""

import faulthandler
import importlib
import linecache
import logging
import multiprocessing
import re
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import Failed, Milestone

START_SECONDS = 60  # to import torch and load the model
START_METHOD = "spawn"  # of multiprocessing


class Outcome(NamedTuple):
    """What became of a milestone. what: "" if it is reached."""

    what: str = ""
    picture: str = ""


def run_milestones(folder: Path, milestones: Sequence[Milestone]) -> Iterator[Outcome]:
    """Yield what becomes of each milestone, up to the first that is not reached."""
    context = multiprocessing.get_context(START_METHOD)
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as temporary:
        hanging = Path(temporary) / "hanging"  # where the process writes its stacks if it runs out of time
        hanging.touch()
        child = context.Process(target=run_all, args=(folder, milestones, sender, hanging), daemon=True)
        child.start()
        sender.close()
        try:
            for milestone in milestones:
                try:
                    outcome = receiver.recv()
                except EOFError:
                    child.join()
                    outcome = interrupted(folder, milestone, hanging.read_text("utf-8"), child.exitcode)
                yield outcome
                if outcome.what:
                    break
        finally:
            child.kill()
            child.join()


def run_all(folder: Path, milestones: Sequence[Milestone], sender, hanging: Path) -> None:
    """Send the outcome of each milestone, up to the first that is not reached."""
    with hanging.open("w", encoding="utf-8") as stacks:
        faulthandler.dump_traceback_later(START_SECONDS, exit=True, file=stacks)
        from .stage_under_test import StageUnderTest, bundled

        bundled()
        logging.disable()  # what a stage logs about losses that a milestone has caused
        stage = StageUnderTest(folder)
        for milestone in milestones:
            faulthandler.dump_traceback_later(milestone.seconds, exit=True, file=stacks)
            outcome = run_one(getattr(importlib.import_module(milestone.module), milestone.name), stage)
            faulthandler.cancel_dump_traceback_later()
            sender.send(outcome)
            if outcome.what:
                return


def run_one(check, stage) -> Outcome:
    try:
        check(stage)
    except Failed as failed:
        return Outcome(failed.what, failed.picture)
    except NotImplementedError as error:
        return Outcome(f"not written yet: {error}")
    except SyntaxError as error:
        return Outcome(f"{Path(error.filename or '').name}, line {error.lineno}: {error.msg}", error.text or "")
    except BaseException as error:  # a learner's sys.exit ends no check
        said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).parent == stage.folder]
        if own:
            return Outcome(said, place(own[-1].filename, own[-1].lineno, own[-1].name, own[-1].line))
        return Outcome(f"the check cannot go on with what it was given: {said}", f"it did:  {frames[-1].line}")
    return Outcome()


def place(file: str, line: int, function: str, text: str) -> str:
    """Return a place in the learner's code."""
    return f"{Path(file).name}, line {line}, in {function}:\n    {text}"


def interrupted(folder: Path, milestone: Milestone, stacks: str, code: int | None) -> Outcome:
    """Return what became of a milestone whose process has ended under it."""
    if "Timeout" not in stacks:
        return Outcome(f"the process ended in the middle, with exit status {code}")
    for file, line, function in re.findall(r'File "(.+)", line (\d+) in (\w+)', stacks):
        if Path(file).parent == folder:
            text = linecache.getline(file, int(line)).strip()  # "" where the stack names no line of the file
            return Outcome(f"it ran for {milestone.seconds} s without an end", place(file, int(line), function, text))
    return Outcome(f"it ran for {milestone.seconds} s without an end, waiting for what never came")

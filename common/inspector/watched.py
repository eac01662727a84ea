"""A hook that shows what its engine does; `Measured` of common/serving is one that counts it."""

import json
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from common.engine import BaseEngine, Hook
from common.request import Request
from common.step_clock import StepClock

from . import books
from .feed import Page, Tape
from .pace import Pace
from .view import Known, View

MAX_LOOKS = 15  # per second
MAX_SHARE = 0.004  # of the engine thread's time, for all looks: a look that takes longer is followed by a pause
# The longer a pause, the more the next look has to tell, and the longer it takes: without a bound both would grow.
LONGEST_PAUSE = 1.0  # seconds
MAX_RECENT = 64  # requests that have ended and are still told to a page that opens
IDLE_SECONDS = 0.1  # an idle engine looks up this often, so that a page that opens is told at once


class Watched(Hook):
    """Looks at its engine between two steps, at most MAX_LOOKS times a second, and only while there are `readers`.

    pace: says whether the engine may take a step now.
    """

    def __init__(self, engine: BaseEngine):
        self.engine = engine
        engine.idle_seconds = IDLE_SECONDS
        self.pace = Pace()
        self.readers: frozenset[Page | Tape] = frozenset()  # replaced as a whole, never changed: two threads read it
        self.view = View(engine)
        # A GPU runs later than Python, and so do workers in other processes: the parts of their steps are not timed.
        self.clock = StepClock(engine, times=engine.device.type == "cpu" and not hasattr(engine, "handles"))
        self._listening = ExitStack()  # the clock, while it runs
        self._watching = False
        self._known = Known()
        self._ended: list[Request] = []  # since the last look
        self._recent: deque[Request] = deque(maxlen=MAX_RECENT)  # ended, watched or not
        self._next_look = 0.0
        self._told: tuple[Any, ...] = ()  # running, waiting, memory and pages at the last look
        self._to_abort: deque[str] = deque()  # request ids

    def before_step(self) -> bool:
        if bool(self.readers) != self._watching:
            self._start_or_stop()
        if self._watching:
            self._before = self.engine.trace.steps, books.queue(self.engine)[0]
        self._aborted = []
        while self._to_abort:
            if request := self.engine.requests.get(self._to_abort.popleft()):
                self.engine.abort(request.request_id)
                self._aborted.append(request)
        return not self.engine.has_unfinished or self.pace.permit()

    def on_step(self, changed: list[Request]) -> list[Request]:
        if self._watching:
            self._note_step()
            self._look()
        return changed + self._aborted

    def on_finish(self, request: Request) -> None:
        self._recent.append(request)
        if self._watching:
            self._ended.append(request)

    def open_reader(self, reader: Page | Tape) -> None:
        """Tell this reader everything from now on, until `close_reader`. Both are called on the event loop."""
        self.readers |= {reader}

    def close_reader(self, reader: Page | Tape) -> None:
        self.readers -= {reader}

    def abort(self, request_id: str) -> None:
        """End a request before the engine's next step, whichever client sent it. From any thread."""
        self._to_abort.append(request_id)

    def look_soon(self) -> None:
        """Look after the next step, even if the pages were told a moment ago. From the engine's thread."""
        self._next_look = 0.0

    def _start_or_stop(self) -> None:
        """Begin with the first page that is opened; when the last one closes, forget what pages were told."""
        if not self._watching:
            self._listening.enter_context(self.clock.running())
        else:
            self._listening.close()
            self.clock.chunks = []
            self.view.extras.clear()
            self._ended.clear()
            self._known, self._told = Known(), ()
        self._watching = not self._watching

    def _note_step(self) -> None:
        """Note what the engine does not record of a step: its parts, draft tokens and preempted requests."""
        steps, ran = self._before
        if self.engine.trace.steps > steps:
            record = self.engine.trace[-1]
            parts = {name: round(1e3 * spent, 2) for name, spent in self.clock.take(record.seconds).items()}
            found = {"parts": parts, "drafts": self.clock.take_drafts()}
            extra: dict[str, Any] = {name: told for name, told in found.items() if told}
            runs = set(books.queue(self.engine)[0])
            if gave_way := [name for name in ran if name not in runs and name in self.engine.requests]:
                extra["preempted"] = gave_way
            if extra:
                self.view.extras[record.index] = extra

    def _look(self) -> None:
        """Tell the pages what is new, unless they were told a moment ago."""
        start, readers = time.perf_counter(), self.readers
        newcomers = [reader for reader in readers if reader.is_new]
        if start < self._next_look and self.engine.has_unfinished and not newcomers:
            return
        if others := readers.difference(newcomers):
            update = self.view.update(self._known, self._ended)
            told = update["running"], update["waiting"], update["memory"], update.get("pages")
            if update["steps"] or update["requests"] or told != self._told:
                self._tell(update, others)
            self._told = told
        if newcomers:  # they are told everything
            self._known = Known()
            self._tell(self.view.update(self._known, self._recent), newcomers)
        self._ended.clear()
        self.view.extras.clear()
        pause = min(LONGEST_PAUSE, (time.perf_counter() - start) / MAX_SHARE)
        self._next_look = start + max(1 / MAX_LOOKS, pause)

    @staticmethod
    def _tell(update: dict[str, Any], readers: Iterable[Page | Tape]) -> None:
        line = json.dumps(update)
        for reader in readers:
            reader.tell(line)

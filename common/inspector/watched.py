"""An engine that is watched: `Measured` of common/serving counts what it does, this one shows it.

It takes over `step` and `abort`; everything else is the engine's own.
"""

import json
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from common.engine import Around, BaseEngine
from common.request import Request
from common.step_clock import StepClock

from . import books
from .feed import Page, Tape
from .pace import Pace
from .view import Known, View

MAX_LOOKS = 15  # per second
MAX_SHARE = 0.004  # of the engine thread's time, for all looks: a look that takes longer is followed by a pause
MAX_RECENT = 64  # requests that have ended and are still told to a page that opens
IDLE_SECONDS = 0.1  # an idle engine looks up this often, so that a page that opens is told at once


class Watched(Around):
    """Looks at its engine between two steps, at most MAX_LOOKS times a second, and only while there are `readers`."""

    def __init__(self, engine: BaseEngine):
        self._engine = engine
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
        self._to_abort: deque[str] = deque()  # ids
        self._told: tuple[Any, ...] = ()  # running, waiting, memory and pages at the last look

    @property
    def idle_seconds(self) -> float:
        return min(self._engine.idle_seconds or IDLE_SECONDS, IDLE_SECONDS)

    def step(self) -> list[Request]:
        """Run one step of the engine, if its pace permits one now, and look at what has changed."""
        if bool(self.readers) != self._watching:
            self._start_or_stop()
        changed = self._aborted()
        if not self._engine.has_unfinished or self.pace.permit():
            changed += self._step_and_listen() if self._watching else self._engine.step()
        for request in changed:
            if request.finished:
                self._note_end(request)
        if self._watching:
            self._look()
        return changed

    def open_reader(self, reader: Page | Tape) -> None:
        """Tell this reader everything from now on, until `close_reader`. Both are called on the event loop."""
        self.readers |= {reader}

    def close_reader(self, reader: Page | Tape) -> None:
        self.readers -= {reader}

    def look_soon(self) -> None:
        """Look after the next step, even if the pages were told a moment ago. From the engine's thread."""
        self._next_look = 0.0

    def abort_soon(self, request_id: str) -> None:
        """End a request before the next step, whichever client sent it; ignore an unknown id. From any thread."""
        self._to_abort.append(request_id)

    def _aborted(self) -> list[Request]:
        asked = {self._to_abort.popleft() for _ in range(len(self._to_abort))}  # a button may be pressed twice
        ended = [self._engine.requests[request_id] for request_id in asked if request_id in self._engine.requests]
        for request in ended:
            self._engine.abort(request.request_id)
        return ended

    def abort(self, request_id: str) -> None:
        request = self._engine.requests.get(request_id)
        self._engine.abort(request_id)
        if request is not None:
            self._note_end(request)

    def _note_end(self, request: Request) -> None:
        self._recent.append(request)
        if self._watching:
            self._ended.append(request)

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

    def _step_and_listen(self) -> list[Request]:
        """Run a step, and note what the engine does not record: its parts, draft tokens and preempted requests."""
        steps, (ran, _) = self._engine.trace.steps, books.queue(self._engine)
        changed = self._engine.step()
        if self._engine.trace.steps > steps:
            record = self._engine.trace[-1]
            parts = {name: round(1e3 * spent, 2) for name, spent in self.clock.take(record.seconds).items()}
            found = {"parts": parts, "drafts": self.clock.take_drafts()}
            extra: dict[str, Any] = {name: told for name, told in found.items() if told}
            runs = set(books.queue(self._engine)[0])
            if gave_way := [name for name in ran if name not in runs and name in self._engine.requests]:
                extra["preempted"] = gave_way
            if extra:
                self.view.extras[record.index] = extra
        return changed

    def _look(self) -> None:
        """Tell the pages what is new, unless they were told a moment ago."""
        start, readers = time.perf_counter(), self.readers
        newcomers = [reader for reader in readers if reader.is_new]
        if start < self._next_look and self._engine.has_unfinished and not newcomers:
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
        self._next_look = start + max(1 / MAX_LOOKS, (time.perf_counter() - start) / MAX_SHARE)

    @staticmethod
    def _tell(update: dict[str, Any], readers: Iterable[Page | Tape]) -> None:
        line = json.dumps(update)
        for reader in readers:
            reader.tell(line)

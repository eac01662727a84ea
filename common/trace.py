"""A record of every step of the engine, in a ring buffer that demos, benchmarks and tests read.

    with trace.step() as step:
        step.work(request.request_id, "decode", tokens=1)

`write_chrome_trace` saves it as JSON that https://ui.perfetto.dev and chrome://tracing open: one row per request,
time from left to right.
"""

import itertools
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from .transfers import current


class Work(NamedTuple):
    """What one step did for one request: its phase, and how many of its tokens went through the model."""

    request_id: str
    phase: str
    tokens: int


class StepRecord:
    """One step of the engine; `start` and `end` in seconds on the clock of `time.perf_counter`.

    counters: the stage's own, such as pages in use, prefix cache hits, draft tokens.
    """

    __slots__ = ("_works", "counters", "end", "index", "start")

    def __init__(
        self,
        index: int,
        start: float,
        end: float = 0.0,
        works: Iterable[Work] = (),
        counters: dict[str, float] | None = None,
    ):
        self.index, self.start, self.end = index, start, end
        # One flat list for all works, a tuple once the step has ended. An object for each would be half a million
        # objects, and each visit of Python's garbage collector would take 50 ms. It does not track tuples of plain
        # values.
        self._works: list[str | int] | tuple[str | int, ...] = [*itertools.chain.from_iterable(works)]
        self.counters = {} if counters is None else counters

    def work(self, request_id: str, phase: str, tokens: int) -> None:
        """Record that `tokens` tokens of this request run in this step; phase: "prefill" or "decode", for example."""
        self._works.extend((request_id, phase, tokens))

    def freeze(self) -> None:
        """End the step: no more work may be recorded."""
        self._works = tuple(self._works)

    @property
    def works(self) -> list[Work]:
        """Return what the step did for each request, in order."""
        return [Work(*self._works[place : place + 3]) for place in range(0, len(self._works), 3)]

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def tokens(self) -> int:
        return sum(self._works[2::3])


class Trace:
    """The last 8,192 steps, taken on this device. Iterating gives `StepRecord`s, oldest first."""

    def __init__(self, device: torch.device):
        self.device = device
        self._records: deque[StepRecord] = deque(maxlen=8192)
        self.steps = 0  # since the start, those that have left the buffer included

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> StepRecord:
        return self._records[index]

    def since(self, steps: int) -> list[StepRecord]:
        """Return the records of all steps but the first `steps`, as far as they are in the buffer."""
        return [self._records[-back] for back in range(min(self.steps - steps, len(self)), 0, -1)]

    def clear(self) -> None:
        self._records.clear()

    def add(self, record: StepRecord) -> None:
        """Keep a finished record, such as that of a step in another process."""
        record.freeze()
        self.steps += 1
        self._records.append(record)

    @contextmanager
    def step(self) -> Iterator[StepRecord]:
        """Time one step and keep its record, even if the step fails. Its kernels are launched on the trace's device."""
        record = StepRecord(self.steps, time.perf_counter())
        self.steps += 1
        try:
            with current(self.device):  # whichever thread takes the step
                yield record
        finally:
            record.end = time.perf_counter()
            record.freeze()
            self._records.append(record)

    def write_chrome_trace(self, path: str | Path) -> None:
        """Write the buffer in the Trace Event Format, times in microseconds."""
        rows: dict[str, int] = {}
        events = []
        for record in self._records:
            span = {"ph": "X", "pid": 0, "ts": record.start * 1e6, "dur": record.seconds * 1e6}
            events.append(span | {"name": "step", "tid": 0, "args": {"index": record.index, "tokens": record.tokens}})
            for work in record.works:
                row = rows.setdefault(work.request_id, len(rows) + 1)
                events.append(span | {"name": work.phase, "tid": row, "args": {"tokens": work.tokens}})
            for name, value in record.counters.items():
                events.append({"ph": "C", "pid": 0, "ts": span["ts"], "name": name, "args": {name: value}})
        for name, row in {"engine": 0, **rows}.items():
            events.append({"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": name}})
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

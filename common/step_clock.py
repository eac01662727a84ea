"""What no other record has: what was drafted, and where the time of a step goes.

The time is that of attention, the rest of the model, drafting and sampling; what remains is bookkeeping. Functions are
replaced on one engine while its steps are timed, so the engine that is measured is the engine that runs. The page shows
these parts, and the benchmark of stage 05 compares them.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from .acceleration.overlap import Resolved
from .engine import AroundModel, BaseEngine
from .transfers import synchronize


class TimedModel(AroundModel):
    """The model of one engine with its passes timed. Other engines may share the model itself, so it stays as it is."""

    def __init__(self, model: Any, clock: "StepClock"):
        self.model, self.clock = model, clock
        self.ended = 0.0  # when the newest pass ended: the rest of the engine's `run` is sampling

    def __call__(self, *arguments):
        hidden = self.clock.timed("model", self.model)(*arguments)
        self.ended = time.perf_counter()
        return hidden


class StepClock:
    """Add up the seconds of each part of an engine's steps, and keep what was drafted in the newest.

    times: False to keep drafts only. Timing waits for a GPU before and after each part.
    """

    def __init__(self, engine: BaseEngine, times: bool = True):
        self.engine, self.times = engine, times
        self.seconds: dict[str, float] = defaultdict(float)
        self.chunks: list[Any] = []  # of the newest step, with their drafts

    @contextmanager
    def running(self) -> Iterator[None]:
        """Listen to the engine's parts while the block runs; then it is as it was."""
        engine = self.engine
        # The overlapped loop changes its own wrapper of the model, so that stays, and the model within is replaced.
        holder = engine.model if isinstance(engine.model, Resolved) else engine
        model = TimedModel(holder.model, self)

        with ExitStack() as stack:

            def replace(owner: Any, name: str, new: Any) -> None:
                stack.enter_context(patch.object(owner, name, new))

            if drafter := engine.drafter:
                replace(drafter, "draft", self._overheard(drafter.draft))
                if self.times:
                    replace(drafter, "prepare", self.timed("drafting", drafter.prepare))
            if self.times:
                if cache := engine.cache:
                    bind = cache.bind
                    replace(cache, "bind", lambda batch: self.timed("attention", bind(batch)))
                replace(holder, "model", model)
                replace(engine, "run", self.timed("sampling", engine.run, since=lambda: model.ended))
                replace(engine, "append_tokens", self.timed("sampling", engine.append_tokens))
            yield

    def take(self, total: float) -> dict[str, float]:
        """Return the seconds of each part since the last call, in steps that took `total`; {} without a pass."""
        parts = dict(self.seconds)
        self.seconds.clear()
        if "model" not in parts:
            return {}
        parts["model"] -= parts.get("attention", 0.0)
        return parts | {"bookkeeping": max(0.0, total - sum(parts.values()))}

    def take_drafts(self) -> list[tuple[str, list[int], int]]:
        """Return what was drafted since the last call: request ids, draft tokens, and how many were accepted."""
        drafts = [(chunk.sequence.request.request_id, chunk.draft) for chunk in self.chunks]
        self.chunks = []
        return [(name, list(draft.token_ids), draft.accepted) for name, draft in drafts if draft.token_ids]

    def _overheard(self, method: Callable) -> Callable:
        timed = self.timed("drafting", method) if self.times else method

        def wrapper(chunks):
            timed(chunks)
            self.chunks = list(chunks)

        return wrapper

    def timed(self, part: str, function: Callable, since: Callable[[], float] | None = None) -> Callable:
        """Return the function with its seconds added to the part's. since: when they begin, if not at the call."""

        def wrapper(*arguments, **options):
            start = self.now()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[part] += self.now() - (since() if since else start)

        return wrapper

    def now(self) -> float:
        synchronize(self.engine.device)
        return time.perf_counter()

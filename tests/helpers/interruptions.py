"""Steps that are interrupted, as Ctrl-C or a failing device interrupts them: before, within or behind a pass."""

from itertools import cycle
from typing import Any

from common.acceleration.overlap import Resolved
from common.engine import AroundModel

MOMENTS = ["before the pass", "before sampling", "behind run", "while drafting"]


class Interrupted(AroundModel):
    """A model whose passes `at` may interrupt, at the first and at the last of these moments."""

    def __init__(self, model: Any, at: Any, *moments: str):
        self.model, self.at, self.moments = model, at, moments

    def __call__(self, *arguments):
        self.at(self.moments[0])
        hidden = self.model(*arguments)
        self.at(self.moments[-1])
        return hidden


class Interruptions:
    """Interrupt each step of an engine once, at one moment after the other. reached: these moments, so far."""

    def __init__(self, engine: Any, monkeypatch):
        self.reached: set[str] = set()
        self.moments = cycle(MOMENTS)
        self.next = next(self.moments)
        self.due = True
        run = engine.run

        def interrupted(*arguments):
            result = run(*arguments)
            self.at("behind run")
            self.due, self.next = True, next(self.moments)  # The next moment comes even if no step reaches this one.
            return result

        monkeypatch.setattr(engine, "run", interrupted)
        holder = engine.model if isinstance(engine.model, Resolved) else engine  # The overlapped loop wraps it.
        monkeypatch.setattr(holder, "model", Interrupted(holder.model, self.at, *MOMENTS[:2]))
        if hasattr(drafter := engine.drafter, "model"):
            monkeypatch.setattr(drafter, "model", Interrupted(drafter.model, self.at, MOMENTS[3]))

    def at(self, moment: str) -> None:
        """Raise KeyboardInterrupt if the step is to be interrupted at this moment."""
        if self.due and moment == self.next:
            self.due = False
            self.reached.add(moment)
            raise KeyboardInterrupt

"""Steps that are interrupted, as Ctrl-C or a failing device interrupts them: before, within or after a pass."""

from itertools import cycle
from typing import Any

from common.acceleration.overlap import Resolved

MOMENTS = ["before the pass", "in layer 4", "before sampling", "behind run", "while drafting"]


class Model:
    """A model whose passes `interrupt` ends; everything else is the model's own."""

    def __init__(self, model: Any, interrupt: "Interruptions", drafts: bool = False):
        self.model, self.interrupt, self.drafts = model, interrupt, drafts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, token_ids, positions, attend):
        self.interrupt.at("while drafting" if self.drafts else "before the pass")
        hidden = self.model(token_ids, positions, attend if self.drafts else Attend(attend, self.interrupt))
        if not self.drafts:
            self.interrupt.at("before sampling")
        return hidden


class Attend:
    """The `attend` of a stage, with what a graph asks of it."""

    def __init__(self, attend: Any, interrupt: "Interruptions"):
        self.attend, self.interrupt = attend, interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.attend, name)

    def __call__(self, layer, q, k, v):
        if layer == 4:
            self.interrupt.at("in layer 4")
        return self.attend(layer, q, k, v)


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
            self.due, self.next = True, next(self.moments)  # also where a step does not come by that moment
            return result

        monkeypatch.setattr(engine, "run", interrupted)
        holder = engine.model if isinstance(engine.model, Resolved) else engine  # the overlapped loop changes it
        monkeypatch.setattr(holder, "model", Model(holder.model, self))
        if hasattr(drafter := getattr(engine, "drafter", None), "model"):
            monkeypatch.setattr(drafter, "model", Model(drafter.model, self, drafts=True))

    def at(self, moment: str) -> None:
        """Raise KeyboardInterrupt if the step is to be interrupted at this moment."""
        if self.due and moment == self.next:
            self.due = False
            self.reached.add(moment)
            raise KeyboardInterrupt

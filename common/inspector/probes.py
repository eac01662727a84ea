"""What no book keeps: where a step's time goes, and what was drafted. Read by listening in.

Functions are replaced on the one engine that is watched, while a page is open: the engine that is read is the engine
that runs.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from common.engine import BaseEngine

from .books import CHUNK_DRAFT, DRAFT_METHOD
from .step_clock import StepClock, replaced


class Probes:
    """Listens to one engine between `attach` and `detach`. Times are told on a CPU only: a GPU runs behind Python."""

    def __init__(self, engine: BaseEngine):
        self.engine, self.clock = engine, StepClock(engine)
        self.chunks: list[Any] = []  # of the last step, with their drafts
        self._replaced = ExitStack()

    def attach(self) -> None:
        if drafter := getattr(self.engine, "drafter", None):
            self._replaced.enter_context(replaced(drafter, DRAFT_METHOD, self._overheard))
        if self.engine.device.type == "cpu" and not hasattr(self.engine, "handles"):
            self._replaced.enter_context(self.clock.running())

    def detach(self) -> None:
        self._replaced.close()
        self.chunks = []

    def take(self, seconds: float) -> dict[str, Any]:
        """Return what was heard since the last call, in a step that took this long; milliseconds for each part."""
        found: dict[str, Any] = {}
        if parts := self.clock.take(seconds):
            found["parts"] = {name: round(1e3 * spent, 2) for name, spent in parts.items()}
        drafts = [(chunk.sequence.request.request_id, getattr(chunk, CHUNK_DRAFT)) for chunk in self.chunks]
        drafted = [[name, list(draft.token_ids), draft.accepted] for name, draft in drafts if draft.token_ids]
        self.chunks = []
        return found | ({"drafts": drafted} if drafted else {})

    def _overheard(self, method: Callable) -> Callable:
        def wrapper(chunks):
            method(chunks)
            self.chunks = list(chunks)

        return wrapper

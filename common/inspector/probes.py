"""What no book keeps: where a step's time goes, and what the drafter guessed. Read by listening in.

Functions are replaced on the one engine that is watched, while a page is open: the engine that is read is the engine
that runs.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from common.engine import BaseEngine

from .books import CHUNK_DRAFT, DRAFT_METHOD

PARTS = {"attention": 0, "model": 0, "sampling": 0, "drafting": 0}  # the rest of a step is bookkeeping


class Probes:
    """Listens to one engine between `attach` and `detach`. Times are told on a CPU only: a GPU runs behind Python."""

    def __init__(self, engine: BaseEngine):
        self.engine = engine
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.chunks: list[Any] = []  # of the last step, with their drafts
        self._originals: list[tuple[Any, str, Any]] = []

    @property
    def attached(self) -> bool:
        return bool(self._originals)

    def attach(self) -> None:
        engine = self.engine
        if drafter := getattr(engine, "drafter", None):
            self._replace(drafter, DRAFT_METHOD, lambda method: self._timed("drafting", self._overheard(method)))
        if engine.device.type != "cpu" or hasattr(engine, "handles"):
            return
        if cache := getattr(engine, "cache", None):
            self._replace(cache, "bind", lambda bind: lambda batch: self._timed("attention", bind(batch)))
        self._replace(engine.model, "forward", lambda forward: self._timed("model", forward))
        self._replace(engine.model, "logits", lambda logits: self._timed("sampling", logits))
        self._replace(engine, "draw", lambda draw: self._timed("sampling", draw))
        module = sys.modules[type(engine).__module__]
        if hasattr(module, "verify"):  # in stage 07 in place of `draw`
            self._replace(module, "verify", lambda verify: self._timed("sampling", verify))

    def detach(self) -> None:
        for owner, name, original in self._originals:
            delattr(owner, name) if original is None else setattr(owner, name, original)
        self._originals, self.chunks = [], []

    def take(self, seconds: float) -> dict[str, Any]:
        """What has been heard since the last call, in a step that took this long; milliseconds for each part."""
        found: dict[str, Any] = {}
        heard = {name: 1e3 * spent for name, spent in self.seconds.items() if spent}
        self.seconds = dict.fromkeys(PARTS, 0.0)
        if heard.get("model"):
            heard["model"] -= heard.get("attention", 0.0)
            heard["bookkeeping"] = max(0.0, 1e3 * seconds - sum(heard.values()))
            found["parts"] = {name: round(spent, 2) for name, spent in heard.items()}
        drafts = [(chunk.sequence.request.request_id, getattr(chunk, CHUNK_DRAFT)) for chunk in self.chunks]
        guesses = [[name, list(draft.token_ids), draft.accepted] for name, draft in drafts if draft.token_ids]
        self.chunks = []
        return found | ({"drafts": guesses} if guesses else {})

    def _replace(self, owner: Any, name: str, wrap: Callable[[Callable], Callable]) -> None:
        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, wrap(getattr(owner, name)))

    def _timed(self, part: str, function: Callable) -> Callable:
        def wrapper(*arguments, **options):
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[part] += time.perf_counter() - start

        return wrapper

    def _overheard(self, method: Callable) -> Callable:
        def wrapper(chunks):
            method(chunks)
            self.chunks = list(chunks)

        return wrapper

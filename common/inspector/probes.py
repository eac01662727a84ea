"""What no book keeps: where a step's time goes, and what the drafter guessed. Read by listening in.

Functions are replaced on the one engine that is watched, while a page is open: the engine that is read is the engine
that runs.
"""

import time
from collections.abc import Callable
from typing import Any

from common.engine import BaseEngine

from .books import CHUNK_DRAFT, DRAFT_METHOD

PARTS = {"attention": 0, "model": 0, "sampling": 0, "drafting": 0}  # the rest of a step is bookkeeping


class TimedModel:
    """The model of one engine with its passes timed. Other engines may share the model itself, so it stays as it is."""

    def __init__(self, model: Any, seconds: dict[str, float]):
        self.model, self.seconds = model, seconds
        self.logits_began = 0.0  # what follows in the engine's `run` is sampling

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *arguments):
        start = time.perf_counter()
        try:
            return self.model(*arguments)
        finally:
            self.seconds["model"] += time.perf_counter() - start

    def logits(self, hidden):
        self.logits_began = time.perf_counter()
        return self.model.logits(hidden)


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
        model = TimedModel(engine.model, self.seconds)
        self._replace(engine, "model", lambda _: model)
        self._replace(engine, "run", lambda run: self._timed("sampling", run, since=lambda: model.logits_began))

    def detach(self) -> None:
        for owner, name, original in self._originals:
            delattr(owner, name) if original is None else setattr(owner, name, original)
        self._originals, self.chunks = [], []

    def take(self, seconds: float) -> dict[str, Any]:
        """What has been heard since the last call, in a step that took this long; milliseconds for each part."""
        found: dict[str, Any] = {}
        heard = {name: 1e3 * spent for name, spent in self.seconds.items() if spent}
        self.seconds.update(dict.fromkeys(PARTS, 0.0))
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

    def _timed(self, part: str, function: Callable, since: Callable[[], float] | None = None) -> Callable:
        """Return the function with its seconds added to the part's, or only those from the time `since` tells on."""

        def wrapper(*arguments, **options):
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[part] += time.perf_counter() - (since() if since else start)

        return wrapper

    def _overheard(self, method: Callable) -> Callable:
        def wrapper(chunks):
            method(chunks)
            self.chunks = list(chunks)

        return wrapper

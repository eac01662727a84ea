"""Promises: a request whose first token, or whose others, would come later than is promised is refused at once.

A queue that grows makes every request late; who is told "try again in 3 seconds" at once has lost nothing, and those
who were admitted get what they were promised. The prediction is queue over rate: the prompt tokens of requests that
have no token yet, over the rate at which such prompts were finished lately. All that slows a server down is in that
rate: decode beside it, too few slots, preemptions. (Mooncake, Qin et al., 2024, calls this early rejection.)
"""

import math
import time
from collections.abc import Sequence

from common.engine import BaseEngine
from common.errors import QueueFull
from common.request import Request
from common.sampling import SamplingParams

HALF_LIFE = 5.0  # seconds of work after which a measurement counts half


class PromiseBroken(QueueFull):
    """The answer would be late. seconds: after which it may be asked for again."""

    def __init__(self, message: str, seconds: float):
        super().__init__(message)
        self.headers = {"Retry-After": str(max(1, math.ceil(seconds)))}


class Promises:
    """An engine whose `add` raises PromiseBroken. All other attributes are the engine's own.

    ttft, tpot: seconds to the first token, and for each further one; None: not promised.
    """

    def __init__(self, engine: BaseEngine, ttft: float | None, tpot: float | None):
        self._engine, self.ttft, self.tpot = engine, ttft, tpot
        self._prompts, self._tokens = Rate(), Rate()  # of prompts' tokens, and of those behind a request's first
        self._gained: dict[str, int] = {}  # output tokens of unfinished requests

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        if self._engine.requests:  # an idle engine takes what comes: otherwise nothing would be measured any more
            self._check(len(prompt))
        return self._engine.add(prompt, params, request_id)

    def _check(self, tokens: int) -> None:
        ahead = sum(len(one.prompt_token_ids) for one in self._engine.requests.values() if not one.token_ids)
        if self.ttft is not None and (late := self._prompts.seconds(ahead + tokens) - self.ttft) > 0:
            raise PromiseBroken(
                f"the first token would come {late:.1f} s later than the {self.ttft:g} s that are promised: try later",
                late,
            )
        if self.tpot is not None and (each := self._tokens.seconds(1)) > self.tpot:
            raise PromiseBroken(
                f"a token takes {each:.3f} s, and {self.tpot:g} are promised: try again later", HALF_LIFE
            )

    def step(self) -> list[Request]:
        begun = [one for one in self._engine.requests.values() if one.token_ids]
        waiting = len(self._engine.requests) - len(begun)
        start = time.perf_counter()
        changed = self._engine.step()
        seconds = time.perf_counter() - start
        first = [one for one in changed if one.token_ids and one.request_id not in self._gained]
        if waiting:
            self._prompts.add(sum(len(one.prompt_token_ids) for one in first), seconds)
        if begun:
            gained = sum(len(one.token_ids) - self._gained.get(one.request_id, len(one.token_ids)) for one in changed)
            self._tokens.add(gained, seconds * len(begun))
        self._gained |= {one.request_id: len(one.token_ids) for one in changed if one.token_ids}
        self._gained = {name: count for name, count in self._gained.items() if name in self._engine.requests}
        return changed


class Rate:
    """Units over seconds, of which the newest count most."""

    def __init__(self):
        self.units = self.spent = 0.0

    def add(self, units: int, seconds: float) -> None:
        kept = 0.5 ** (seconds / HALF_LIFE)
        self.units, self.spent = kept * self.units + units, kept * self.spent + seconds

    def seconds(self, units: int) -> float:
        """Return how long so many units take; 0 as long as nothing is known."""
        return units * self.spent / self.units if self.units else 0.0

"""Promises: a request is refused at once if its first token, or the others, would come later than promised.

A growing queue makes every request late. A client that is told "try again in 3 seconds" at once has lost nothing, and
admitted requests get what they were promised. The prediction is queue over rate: the prompt tokens of requests that
have no token yet, over the rate at which such prompts were finished lately. All that slows a server down is in that
rate: decode beside it, too few slots, preemptions. (Mooncake, Qin et al., 2024, calls this early rejection.)
"""

import math
import time
from collections import Counter
from collections.abc import Sequence

from common.engine import BaseEngine, Hook
from common.errors import QueueFull
from common.policies import Scheduling
from common.request import Request
from common.sampling import SamplingParams

HALF_LIFE = 5.0  # seconds of work after which a measurement counts half
QUEUED_SHARE = 0.1  # of the promise: a step is measured only if a request has waited for this share
MAX_SECONDS = 60  # at most, in Retry-After


class PromiseBroken(QueueFull):
    """The answer would be late. seconds: until the client may try again."""

    def __init__(self, message: str, seconds: float):
        super().__init__(message)
        self.headers = {"Retry-After": str(min(MAX_SECONDS, max(1, math.ceil(seconds))))}


class Promises(Hook):
    """Measures an engine's rates, and refuses with PromiseBroken.

    ttft, tpot: seconds to the first token, and for each further one; None: not promised. scheduling: which waiting
    requests run before a new one.
    """

    def __init__(self, engine: BaseEngine, ttft: float | None, tpot: float | None, scheduling: Scheduling):
        self._engine, self.ttft, self.tpot, self.scheduling = engine, ttft, tpot, scheduling
        self._prompts, self._tokens = Rate(), Rate()  # prompt tokens; output tokens after the first
        self._gained: dict[str, int] = {}  # output tokens of unfinished requests
        self._since: float | None = None  # when the last step ended; None: the engine was idle then

    def before_add(self, prompt: Sequence[int], params: SamplingParams) -> None:
        # A refusal measures nothing. So an idle engine takes every request, and `ttft` holds only if there is a queue.
        late = self._prompts.seconds(self._ahead(len(prompt), params)) - (self.ttft or math.inf)
        if late > 0 and self._since is not None and self._waiting():
            message = f"the first token would come {max(late, 0.1):.1f} s later than the {self.ttft:g} s"
            raise PromiseBroken(f"{message} that are promised: try again later", late)
        each = self._tokens.seconds(1)
        if self._since is not None and each > (self.tpot or math.inf):
            message = f"a token takes {each:.3f} s, and {self.tpot:g} are promised"
            raise PromiseBroken(f"{message}: try again later", HALF_LIFE)

    def _ahead(self, tokens: int, params: SamplingParams) -> float:
        """Return how many prompt tokens run until these have run, themselves included."""
        queues: Counter[str] = Counter()
        for request in self._waiting():
            if self.scheduling.policy != "priority" or request.params.priority <= params.priority:
                queues[request.params.tenant] += len(request.prompt_token_ids)
        if self.scheduling.policy != "fair":
            return tokens + queues.total()
        weights, own = self.scheduling.weights, queues.pop(params.tenant, 0) + tokens
        per_weight = own / weights.get(params.tenant, 1.0)  # Other tenants run at most this much per weight.
        return own + sum(min(queue, per_weight * weights.get(tenant, 1.0)) for tenant, queue in queues.items())

    def _waiting(self) -> list[Request]:
        """Return the requests without a token, but for those that are only scored."""
        return [one for one in self._engine.requests.values() if not one.token_ids and one.max_tokens]

    def before_step(self) -> bool:
        """Note how many requests have a token, when the oldest without one arrived, and the time if all is new."""
        self._begun = sum(bool(one.token_ids) for one in self._engine.requests.values())
        self._oldest = min((one.timings.arrival for one in self._waiting()), default=math.inf)
        if self._since is None:
            self._since = time.perf_counter()
        return True

    def on_step(self, changed: list[Request]) -> list[Request]:
        now = time.perf_counter()
        seconds = now - self._since
        first = [one for one in changed if one.token_ids and one.request_id not in self._gained]
        if now - self._oldest > QUEUED_SHARE * (self.ttft or 0.0):
            self._prompts.add(sum(len(one.prompt_token_ids) for one in first), seconds, seconds)
        if self._begun:
            gained = sum(len(one.token_ids) - self._gained.get(one.request_id, len(one.token_ids)) for one in changed)
            self._tokens.add(gained, seconds * self._begun, seconds)
        unfinished = self._engine.requests.values()
        self._gained = {one.request_id: len(one.token_ids) for one in unfinished if one.token_ids}
        self._since = now if unfinished else None
        return changed


class Rate:
    """How long a unit takes: the newest measurements count most."""

    def __init__(self):
        self.units = self.spent = 0.0

    def add(self, units: int, spent: float, seconds: float) -> None:
        """Add units that took `spent`, in seconds of all that worked side by side. seconds: since the last call."""
        kept = 0.5 ** (seconds / HALF_LIFE)
        self.units, self.spent = kept * self.units + units, kept * self.spent + spent

    def seconds(self, units: float) -> float:
        """Return how long this many units take; 0 as long as nothing is known."""
        return units * self.spent / self.units if self.units else 0.0

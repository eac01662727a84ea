"""Which request is next, and which gives way when memory runs out: the policy behind a scheduler's queue.

First come, first served needs no policy: a client that sends 500 requests is served before nine that send one each. A
policy puts both lists of a scheduler into another order before each step. The first of the waiting requests is admitted
next, and the last of the running ones is preempted first. A scheduler knows nothing of it.
"""

import argparse
import math
import re
from collections import Counter, deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .engine import BaseEngine
from .errors import InvalidInput
from .request import Request
from .sampling_params import MAX_TENANT

POLICIES = ("fcfs", "priority", "fair")
INPUT, OUTPUT = 1.0, 2.0  # the price of a prompt's token, and of one that a decode step runs, as in the paper
MAX_AWAY = 1000  # tenants without requests whose counters are kept: clients may make up names


class Scheduling(NamedTuple):
    """The policy, and for "fair" the weights of the tenants whose weight is not 1."""

    policy: str = "fcfs"
    weights: Mapping[str, float] = {}


FIRST_COME = Scheduling()


class Key(NamedTuple):
    """A line of `--api-keys`: a tenant's name, the key that its clients send, and the weight of its share."""

    name: str
    key: str
    weight: float = 1.0


class Policy:
    """What decides the order of requests: those of a scheduler, or those that wait for stage 08's router."""

    def arrange(self, scheduler: Any) -> None:
        """Put both lists of a scheduler in order, and have the last running request give way if it is to."""
        scheduler.running, scheduler.waiting = self.order(scheduler.running, scheduler.waiting)
        full = len(scheduler.running) == scheduler.max_running and hasattr(scheduler, "preempt")
        if full and self.makes_room(scheduler.running, scheduler.waiting):
            scheduler.preempt()
            preempted, first = scheduler.waiting.popleft(), scheduler.waiting.popleft()
            scheduler.waiting.extendleft([preempted, first])

    def order(self, running: dict[str, Any], waiting: Collection[Request]) -> tuple[dict[str, Any], deque[Request]]:
        """Return both in the order in which they are to be served. running: by request id, each has a `request`.

        waiting: in the order in which they would be served without a policy.
        """
        raise NotImplementedError

    def makes_room(self, running: dict[str, Any], waiting: deque[Request]) -> bool:
        """Return whether the last running request gives its place to the first waiting one. All places are taken."""
        return False


class Priority(Policy):
    """A lower `priority` comes first, as in vLLM; among equals, the one that arrived first."""

    def order(self, running: dict[str, Any], waiting: Collection[Request]) -> tuple[dict[str, Any], deque[Request]]:
        ranked = sorted(running.items(), key=lambda item: item[1].request.params.priority)
        return dict(ranked), deque(sorted(waiting, key=lambda request: request.params.priority))


class Fair(Policy):
    """The tenant that has had least comes first: the virtual token counter (Sheng et al., OSDI 2024).

    Each tenant's counter grows by the tokens that run for it, over its weight; what is found in a cache, run again or
    drafted in vain costs nothing. A tenant that comes, or comes back, starts no lower than the lowest of those that are
    being served, so that no tenant saves up for later. Of two tenants that both always have waiting requests, neither
    gets ahead by more than twice what one batch holds (the paper's bound).
    """

    def __init__(self, engine: BaseEngine, weights: Mapping[str, float] = {}):
        self.engine, self.weights = engine, weights
        self.counters: dict[str, float] = {}  # by tenant
        self.least = 0.0  # the lowest counter of those that were served together: it never falls
        self.steps = 0  # steps of the engine's trace that are charged
        self.requests: dict[str, Request] = {}  # unfinished ones, as of the last call
        self.charged: dict[str, int] = {}  # tokens, by request id

    def order(self, running: dict[str, Any], waiting: Collection[Request]) -> tuple[dict[str, Any], deque[Request]]:
        self._charge()
        self._note_who_is_here()
        due = dict(self.counters)
        queues: dict[str, deque[Request]] = {}  # by tenant
        for request in waiting:
            queues.setdefault(request.params.tenant, deque()).append(request)
        queued = {request.request_id for request in waiting}
        for name, request in self.requests.items():
            if not (request.token_ids or name in queued):  # An admitted request counts before it has run.
                due[request.params.tenant] += self._ahead(request)
        # A step admits no more than there are free places, and one may be given back: the others need no order.
        scheduler, in_turn = self.engine.scheduler, deque()
        most = scheduler.max_running - len(running) + 1 if scheduler else len(waiting)
        while queues and len(in_turn) < most:
            tenant = min(queues, key=due.__getitem__)
            in_turn.append(queues[tenant].popleft())
            due[tenant] += self._ahead(in_turn[-1])  # It counts for its tenant's next one.
            if not queues[tenant]:
                del queues[tenant]
        for queue in queues.values():
            in_turn += queue
        return dict(sorted(running.items(), key=lambda item: self.counters[item[1].request.params.tenant])), in_turn

    def makes_room(self, running: dict[str, Any], waiting: deque[Request]) -> bool:
        """Return whether the last one's tenant has two places too many, and the first one's has one too few.

        So no tenant waits for the long answers of another's many requests. Tenants with equally much to do seldom
        interrupt each other, since they get free places in turn.
        """
        if not waiting:
            return False
        held = Counter(sequence.request.params.tenant for sequence in running.values())
        here = {request.params.tenant for request in self.requests.values()}
        place = len(running) / math.fsum(self.weights.get(tenant, 1.0) for tenant in here)
        first, last = waiting[0].params.tenant, next(reversed(running.values())).request.params.tenant
        own, other = (place * self.weights.get(tenant, 1.0) for tenant in (first, last))
        return held[first] + 1 <= max(1.0, own) and held[last] - 2 >= other

    def _ahead(self, request: Request) -> float:
        """Return what its prompt will cost, or what is left of it."""
        return self._cost(request, INPUT, request.num_tokens - self._charged(request))

    def _charged(self, request: Request) -> int:
        """Return how many of a request's tokens need not be charged any more: what it found in a cache is none."""
        return self.charged.get(request.request_id, request.cached_tokens)

    def _cost(self, request: Request, price: float, tokens: int) -> float:
        return price * max(0, tokens) / self.weights.get(request.params.tenant, 1.0)

    def _charge(self) -> None:
        """Charge the steps since the last call."""
        for record in self.engine.trace.since(self.steps):
            for name, phase, tokens in record.works:
                if (request := self.requests.get(name)) is not None:
                    charged = self._charged(request)
                    tokens = min(tokens, request.num_tokens - charged)  # A preemption's second run costs nothing.
                    price = OUTPUT if phase == "decode" else INPUT
                    self.counters[request.params.tenant] += self._cost(request, price, tokens)
                    self.charged[name] = charged + max(0, tokens)
        self.steps = self.engine.trace.steps

    def _note_who_is_here(self) -> None:
        """Raise the counters of tenants that come back; forget those that would begin at `least` again anyway."""
        self.requests = dict(self.engine.requests)
        self.charged = {name: count for name, count in self.charged.items() if name in self.requests}
        here, known = {request.params.tenant for request in self.requests.values()}, self.counters
        served = [known[tenant] for tenant in here if tenant in known] or [max(known.values(), default=0.0)]
        self.least = max(self.least, min(served))
        away = sorted((count, tenant) for tenant, count in known.items() if tenant not in here and count > self.least)
        self.counters = {tenant: count for count, tenant in away[-MAX_AWAY:]}
        self.counters |= {tenant: max(known.get(tenant, 0.0), self.least) for tenant in here}


def add_policy(engine: BaseEngine, scheduling: Scheduling) -> None:
    """Give an engine, or stage 08's router, the policy. Raise InvalidInput if it has no queue of its own."""
    if scheduling.policy == "fcfs":
        return
    if scheduling.policy not in POLICIES:
        raise InvalidInput(f"there is no policy {scheduling.policy!r}: use one of {', '.join(POLICIES)}")
    policy = Priority() if scheduling.policy == "priority" else Fair(engine, scheduling.weights)
    if hasattr(engine, "policy"):
        engine.policy = policy
    elif engine.scheduler is not None:
        arrange_before_steps(engine.scheduler, policy)
    else:
        raise InvalidInput(f"--scheduling {scheduling.policy} is for stages 04 to 08: leave it out")


def arrange_before_steps(scheduler: Any, policy: Policy) -> None:
    """Have each `schedule` of a scheduler begin with the policy."""
    schedule = scheduler.schedule

    def arranged(*arguments: Any, **options: Any) -> list[Any]:
        policy.arrange(scheduler)
        return schedule(*arguments, **options)

    scheduler.schedule = arranged


def scheduling_of(args: argparse.Namespace) -> Scheduling:
    """Return what the options say, with the weights of the keys; stages 01 and 02 have neither."""
    keys = read_keys(args.api_keys) if getattr(args, "api_keys", None) else []
    return Scheduling(getattr(args, "scheduling", "fcfs"), {key.name: key.weight for key in keys})


def read_keys(file: Path) -> list[Key]:
    """Read a file with a line for each tenant: name, key and, if it is not 1, weight. Lines with # are comments."""
    try:
        lines = file.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--api-keys: {file} cannot be read ({error})") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(lines, 1):
        words = re.split(r"(?:^|\s)#", line)[0].split()
        if not words:
            continue
        try:
            name, key, *weight = words
            one = Key(name, key, *map(float, weight))
            if not (0 < one.weight < float("inf") and len(one.name) <= MAX_TENANT):
                raise ValueError
        except (TypeError, ValueError):  # too few or too many words, or no number
            raise InvalidInput(
                f"line {number} of {file} must be a name of at most {MAX_TENANT} characters, a key and perhaps a "
                "weight above 0"
            ) from None
        if one.key in keys:
            raise InvalidInput(f"line {number} of {file} has the key of {keys[one.key].name!r}: give another")
        keys[one.key] = one
    if not keys:
        raise InvalidInput(f"{file} has no keys: give each tenant a line with its name and its key")
    return list(keys.values())

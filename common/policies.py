"""Whose request is next, and who gives way when memory runs out: the policy behind a scheduler's queue.

First come, first served needs none: one client that sends 500 requests is served before nine who send one each. A
policy puts both lists of a scheduler into another order before each step. Who stands first among those that wait is
admitted next, who stands last among those that run is preempted first.
"""

import argparse
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .engine import BaseEngine
from .errors import InvalidInput
from .request import Request

POLICIES = ("fcfs", "priority", "fair")
INPUT, OUTPUT = 1.0, 2.0  # what a token costs a tenant that is read, and that is generated, as in the paper


class Scheduling(NamedTuple):
    """Which policy, and for "fair" the weights of tenants that have other ones than 1."""

    policy: str = "fcfs"
    weights: Mapping[str, float] = {}


FIRST_COME = Scheduling()


class Key(NamedTuple):
    """A line of `--api-keys`: a tenant's name, what its clients send, and its share beside the others'."""

    name: str
    key: str
    weight: float = 1.0


class Policy(Protocol):
    def order(self, running: dict[str, Any], waiting: Iterable[Request]) -> tuple[dict[str, Any], deque[Request]]:
        """Return both in the order in which they are to be served. running: by request id, each has a `request`."""


class Priority:
    """A lower `priority` comes first, as in vLLM; among equals, who came first."""

    def order(self, running: dict[str, Any], waiting: Iterable[Request]) -> tuple[dict[str, Any], deque[Request]]:
        def rank(request: Request) -> tuple[int, float]:
            return request.params.priority, request.timings.arrival

        ranked = sorted(running.items(), key=lambda item: rank(item[1].request))
        return dict(ranked), deque(sorted(waiting, key=rank))


class Fair:
    """Whose tenant has had least comes first: the virtual token counter (Sheng et al., OSDI 2024).

    Each tenant's counter grows by the tokens that run for it, over its weight: what is found in a cache costs nothing.
    A tenant that comes, or comes back, starts no lower than the lowest of those that are being served, so that nobody
    saves up for later. An engine that has work is never idle. Of two tenants that both have requests all the time
    neither gets ahead by more than twice what one batch holds (the paper's bound).
    """

    def __init__(self, engine: BaseEngine, weights: Mapping[str, float] = {}):
        self.engine, self.weights = engine, weights
        self.counters: dict[str, float] = {}  # by tenant
        self.least = 0.0  # the lowest counter that a tenant with requests has had: it never falls
        self.steps = 0  # of the engine's trace, that are charged
        self.tenants: dict[str, str] = {}  # by request id
        self.charged: Counter[str] = Counter()  # tokens that have run, by request id

    def order(self, running: dict[str, Any], waiting: Iterable[Request]) -> tuple[dict[str, Any], deque[Request]]:
        self._charge()
        self._note_who_is_here()
        waiting, due = list(waiting), Counter(self.counters)
        for request in set(self.engine.requests.values()).difference(waiting):
            if not request.token_ids:  # what has been admitted counts before it has run
                due[request.params.tenant] += self._cost(request, request.num_tokens - self.charged[request.request_id])
        places = {}
        for request in waiting:  # a tenant's own by arrival, and each counts for the next
            places[request] = due[request.params.tenant]
            due[request.params.tenant] += self._cost(request, request.num_tokens)
        ranked = sorted(running.items(), key=lambda item: self.counters[item[1].request.params.tenant])
        return dict(ranked), deque(sorted(waiting, key=places.__getitem__))

    def _cost(self, request: Request, tokens: int) -> float:
        return INPUT * max(0, tokens) / self.weights.get(request.params.tenant, 1.0)

    def _charge(self) -> None:
        """Charge the steps that have ended since the last call."""
        trace = self.engine.trace
        for back in range(min(trace.steps - self.steps, len(trace)), 0, -1):
            for request_id, phase, tokens in trace[-back].works:
                if (tenant := self.tenants.get(request_id)) is not None:
                    price = OUTPUT if phase == "decode" else INPUT
                    self.counters[tenant] += price * tokens / self.weights.get(tenant, 1.0)
                    self.charged[request_id] += tokens
        self.steps = trace.steps

    def _note_who_is_here(self) -> None:
        """Raise the counters of tenants that come back; forget those that would begin at `least` again anyway."""
        self.tenants = {name: request.params.tenant for name, request in self.engine.requests.items()}
        self.charged = Counter({name: self.charged[name] for name in self.tenants})
        here, known = set(self.tenants.values()), self.counters
        if served := [known[tenant] for tenant in here if tenant in known]:
            self.least = max(self.least, min(served))
        kept = {tenant: count for tenant, count in known.items() if tenant in here or count > self.least}
        self.counters = kept | {tenant: max(kept.get(tenant, 0.0), self.least) for tenant in here}


def add_policy(engine: BaseEngine, scheduling: Scheduling) -> None:
    """Have an engine's scheduler, or stage 08's router, ask the policy. Raise InvalidInput if there is none to ask."""
    if scheduling.policy == "fcfs":
        return
    asks = engine if hasattr(engine, "policy") else getattr(engine, "scheduler", None)
    if not hasattr(asks, "policy"):
        raise InvalidInput(f"--scheduling {scheduling.policy} is for stages 04 to 08: leave it out")
    if scheduling.policy not in POLICIES:
        raise InvalidInput(f"there is no policy {scheduling.policy!r}: use one of {', '.join(POLICIES)}")
    asks.policy = Priority() if scheduling.policy == "priority" else Fair(engine, scheduling.weights)


def add_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--scheduling",
        choices=POLICIES,
        default="fcfs",
        help="who is served first, from stage 04 on: who came first, a request's priority, or whose tenant (API key or "
        "user) has had least (default: fcfs)",
    )


def read_keys(file: Path) -> list[Key]:
    """Read a file with a line for each tenant: name, key and, if it is not 1, weight. Lines with # are comments."""
    try:
        lines = file.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--api-keys: {file} cannot be read ({error})") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            name, key, *weight = words
            one = Key(name, key, *map(float, weight))
            if not 0 < one.weight < float("inf"):
                raise ValueError
        except (TypeError, ValueError):  # too few or too many words, or no number
            raise InvalidInput(f"line {number} of {file} must be a name, a key and perhaps a weight above 0") from None
        if one.key in keys:
            raise InvalidInput(f"line {number} of {file} has the key of {keys[one.key].name!r}: give another")
        keys[one.key] = one
    if not keys:
        raise InvalidInput(f"{file} has no keys: give each tenant a line with its name and its key")
    return list(keys.values())

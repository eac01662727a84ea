"""NEW in 08: the router: it owns the requests, and workers come and go.

What has to survive is here: prompts, the tokens that clients have seen, seeds. What is large is with the workers:
weights, K and V. So the loss of a worker costs time and nothing else. Its requests run again from their prompt and the
tokens they have, on whichever worker there is, and their streams go on where they stopped.
"""

import itertools
import socket
import time
from collections import Counter

from common.engine import BaseEngine
from common.loader import Loaded
from common.request import Request

from .fleet import Fleet, WorkerLost
from .orders import Gain, Hello, Order, Report
from .page_table import PageAllocator
from .routing import DECODE, PREFILL, QUEUED, READY, TRANSFER, Flight, Handle, add_up, choose_decode, choose_prefill

LISTEN_SECONDS = 0.01  # how long a step waits for news: requests that come meanwhile wait as long
START_SECONDS = 600.0  # for a worker to load its model
AGAIN_SECONDS = 0.5  # until a worker that is lost is asked whether it is back
SETTLE_SECONDS = 1.0  # for the workers to do what the last request has left to do
MOST_ATTEMPTS = 10  # a request that is under way whenever a worker dies may be what kills them


class Router(BaseEngine):
    """The engine's contract, kept by a fleet of workers.

    roles: "prefill" or "decode" for each worker of the fleet. hang_seconds: a worker that has not answered for so long
    is ended. wait_seconds: how long a request waits while there is no worker to take it; then it ends with "error".
    """

    def __init__(self, loaded: Loaded, fleet: Fleet, roles: list[str], hang_seconds: float, wait_seconds: float):
        super().__init__(loaded)
        self.fleet, self.hang_seconds, self.wait_seconds = fleet, hang_seconds, wait_seconds
        self.handles = [Handle(number, role) for number, role in enumerate(roles)]
        self.by_role = {role: [h for h in self.handles if h.role == role] for role in ("prefill", "decode")}
        self.down_since = dict.fromkeys(self.by_role, 0.0)  # when the last one of a role was seen
        self.flights: dict[str, Flight] = {}  # by key, of all unfinished requests
        self.keys: dict[str, str] = {}  # by request id
        self.changed: dict[str, Request] = {}  # since the last step returned
        self.attempts, self.numbers = itertools.count(), itertools.count()
        self.lost = self.resumed = self.handoffs = 0  # ever: workers, requests begun anew, requests handed over
        self.handoff_bytes, self.handoff_seconds = 0, 0.0
        self._gather()

    def accept(self, request: Request) -> None:
        self.smallest.refuse_what_never_fits(len(request.prompt_token_ids) + request.max_tokens)
        self._begin(Flight(request, "", time.monotonic()))

    def step(self) -> list[Request]:
        """Sends requests where they belong, has every worker at work, and waits a moment for what they report."""
        if self.requests:
            self._route()
            for handle in self.handles:
                self._set_to_work(handle)
            self._listen(LISTEN_SECONDS)
            self._watch()
        if not self.requests:
            self._settle()
        changed, self.changed = list(self.changed.values()), {}
        return changed

    def release(self, request: Request) -> None:
        """Frees what the workers hold; with the next call at the latest, they are told at once."""
        flight = self.flights.pop(self.keys.pop(request.request_id))
        for handle in (flight.prefill, flight.decode):
            if handle is not None:
                self._drop(handle, flight.key)

    def check(self) -> None:
        self.fleet.check()
        assert set(self.keys) == set(self.requests) and set(self.keys.values()) == set(self.flights)
        for flight in self.flights.values():
            holders = {QUEUED: (0, 0), PREFILL: (1, 0), READY: (1, 0), DECODE: (0, 1)}
            held = flight.prefill is not None, flight.decode is not None
            assert held == holders.get(flight.phase, held) and (flight.phase != TRANSFER or held[1]), flight
        for handle in self.handles:
            assert set(handle.tasks) <= set(self.flights) and {order.key for order in handle.orders} <= set(
                self.flights
            )

    def close(self) -> None:
        """Ends the workers."""
        self.fleet.close()

    def stats(self) -> dict[str, float]:
        total = add_up((handle.role, self.fleet.stats(handle.number, handle.stats)) for handle in self.handles)
        running = min(total.get("running", 0), len(self.requests))
        return {"kv_tokens_used": 0, "kv_tokens_reserved": 0} | total | {
            "unfinished": len(self.requests),
            "running": running,
            "waiting": len(self.requests) - running,
            "steps": self.trace.steps,
            "generated_tokens": self._generated_tokens,
            "workers_up": sum(handle.up for handle in self.handles),
            "workers_lost": self.lost,
            "requests_resumed": self.resumed,
            "handoffs": self.handoffs,
            "handoff_bytes": self.handoff_bytes,
            "handoff_seconds": self.handoff_seconds,
        }  # fmt: skip

    # ---- Requests: down to the workers ----

    def _begin(self, flight: Flight) -> None:
        """A new attempt, from the prompt and the tokens there are."""
        self.flights.pop(flight.key, None)
        request_id = flight.request.request_id
        flight.key = self.keys[request_id] = f"{request_id}#{next(self.attempts)}"
        self.flights[flight.key] = flight
        flight.phase, flight.prefill, flight.decode, flight.since = QUEUED, None, None, time.monotonic()

    def _begin_again(self, flight: Flight) -> None:
        flight.attempts += 1
        if flight.prefill is not None:
            self._drop(flight.prefill, flight.key)
        if flight.attempts > MOST_ATTEMPTS:
            self._fail(flight)
        else:
            self.resumed += 1
            self._begin(flight)

    def _fail(self, flight: Flight) -> None:
        flight.request.finish("error")
        self.changed[flight.request.request_id] = flight.request
        self._retire(flight.request)

    def _route(self) -> None:
        """Requests in order of arrival, each to the worker that is best for it now; whoever has none waits."""
        running = Counter(flight.decode for flight in self.flights.values() if flight.decode)
        for flight in sorted(self.flights.values(), key=lambda flight: flight.request.timings.arrival):
            tokens = flight.request.num_tokens
            if flight.phase == QUEUED:
                token_ids = flight.request.all_token_ids
                if found := choose_prefill(self.by_role["prefill"], token_ids):
                    flight.prefill, cached = found
                    flight.prefill.seen.add(token_ids)
                    self._order(flight, PREFILL, flight.prefill, tokens - cached)
            elif flight.phase == READY and (found := choose_decode(self.by_role["decode"], tokens, running)):
                flight.decode, pages = found
                running[flight.decode] += 1
                self._order(flight, TRANSFER, flight.decode, pages)

    def _order(self, flight: Flight, phase: str, handle: Handle, task: int) -> None:
        request = flight.request
        what = request.prompt_token_ids, list(request.token_ids), request.params, request.seed, request.max_tokens
        flight.phase, handle.tasks[flight.key] = phase, task
        ticket = flight.ticket if phase == TRANSFER else None
        handle.orders.append(Order(next(self.numbers), flight.key, *what, hand_over=phase == PREFILL, ticket=ticket))

    def _set_to_work(self, handle: Handle) -> None:
        """Keeps a worker busy as long as it has something to do, and asks one that was lost whether it is back."""
        if not handle.up:
            if not handle.calls and time.monotonic() >= handle.not_before:
                self._call(handle, "hello")
            return
        active = (PREFILL,) if handle.role == "prefill" else (TRANSFER, DECODE)
        busy = any(getattr(f, handle.role) is handle and f.phase in active for f in self.flights.values())
        while (handle.orders or busy) and handle.calls.count("work") < self.fleet.depth:
            self._call(handle, "work", handle.take_orders())
        if untold := [order for order in handle.orders if order.number > handle.told]:
            handle.told = untold[-1].number
            self.fleet.tell(handle.number, untold)

    def _drop(self, handle: Handle, key: str) -> None:
        handle.tasks.pop(key, None)
        if handle.up:
            self._call(handle, "drop", handle.take_orders(), key)

    def _call(self, handle: Handle, method: str, *arguments) -> None:
        if not handle.calls:
            handle.heard = time.monotonic()
        handle.calls.append(method)
        self.fleet.call(handle.number, method, *arguments)

    # ---- Reports: up from the workers ----

    def _listen(self, seconds: float) -> None:
        for number, result in self.fleet.replies(seconds):
            handle = self.handles[number]
            if not handle.calls:
                continue  # it was given up in the meantime
            handle.calls.popleft()
            handle.heard = time.monotonic()
            if isinstance(result, WorkerLost):
                self._lose(handle)
            elif isinstance(result, Hello):
                # Two machines have two clocks: what the worker says was about now. On one machine they are the same.
                handle.clock_offset = time.perf_counter() - result.now if result.host != socket.gethostname() else 0.0
                handle.greet(result)
            else:
                self._take(handle, result)

    def _take(self, handle: Handle, report: Report) -> None:
        handle.available, handle.stats = report.available, report.stats
        record = handle.as_seen_here(report.record, self.trace.steps) if report.record else None
        if record:
            self.trace.add(record)
        for arrival in report.arrived:
            self.handoffs += 1
            self.handoff_bytes += arrival.bytes
            self.handoff_seconds += arrival.seconds
            if record:
                for name, value in (("handoff_bytes", arrival.bytes), ("handoff_seconds", arrival.seconds)):
                    record.counters[name] = record.counters.get(name, 0) + value
            if flight := self.flights.get(arrival.key):
                flight.phase = DECODE
                handle.tasks.pop(arrival.key, None)
                if flight.prefill is not None:
                    self._drop(flight.prefill, flight.key)
                    flight.prefill = None
        for key in report.lost:
            if flight := self.flights.get(key):
                handle.tasks.pop(key, None)
                flight.decode = None
                self._begin_again(flight)
        for gain in report.gains:
            if flight := self.flights.get(gain.key):
                self._gain(flight, gain)
        for key, ticket in report.ready:
            if flight := self.flights.get(key):
                handle.tasks.pop(key, None)
                flight.phase, flight.ticket, flight.since = READY, ticket, time.monotonic()

    def _gain(self, flight: Flight, gain: Gain) -> None:
        request = flight.request
        assert gain.first == len(request.token_ids), "a token is missing, or came twice"
        if not request.token_ids:
            request.cached_tokens = gain.cached_tokens
        for place, token_id in enumerate(gain.token_ids):
            request.append(token_id, gain.logprobs[place] if gain.logprobs else None)
            self._generated_tokens += 1
            if request.finished:  # perhaps by a stop string, of which the worker knows nothing
                break
        self.changed[request.request_id] = request
        assert request.finished or not gain.finished, "the worker has ended what is not at its end"
        if gain.finished:
            (flight.prefill or flight.decode).tasks.pop(flight.key, None)
            flight.prefill = flight.decode = None
        if request.finished:
            self._retire(request)

    # ---- Workers that come and go ----

    def _gather(self) -> None:
        """Waits until all workers are there. ValueError if one of them cannot be made."""
        for handle in self.handles:
            self._call(handle, "hello")
        give_up = time.monotonic() + START_SECONDS
        while not all(handle.up for handle in self.handles):
            self._listen(0.1)
            if time.monotonic() > give_up:
                raise ValueError(f"the workers did not come up within {START_SECONDS:.0f} seconds")
        hello = min((handle.hello for handle in self.handles), key=lambda hello: hello.num_pages)
        self.smallest = PageAllocator(hello.num_pages, hello.page_size)

    def _watch(self) -> None:
        """Ends workers that hang, and the waiting of requests for which there has been no worker for too long."""
        now = time.monotonic()
        for handle in self.handles:
            patience = self.hang_seconds if handle.up else START_SECONDS
            if handle.calls and now - handle.heard > patience:
                self.fleet.kill(handle.number)
                self._lose(handle)
        for role, handles in self.by_role.items():
            if any(handle.up for handle in handles):
                self.down_since[role] = now
        for flight in list(self.flights.values()):
            role = {QUEUED: "prefill", READY: "decode"}.get(flight.phase)
            if role and now - max(self.down_since[role], flight.since) > self.wait_seconds:
                self._fail(flight)

    def _lose(self, handle: Handle) -> None:
        """A worker is gone. Whatever it held is begun anew, unless the other side has it still."""
        self.lost += handle.up
        handle.reset()
        handle.not_before = time.monotonic() + AGAIN_SECONDS
        for flight in list(self.flights.values()):
            if flight.decode is handle:
                flight.decode = None
                if flight.prefill is not None:  # in transfer: the pages are where they were, and go to somebody else
                    flight.phase, flight.since = READY, time.monotonic()
                else:
                    self._begin_again(flight)
            elif flight.prefill is handle:
                flight.prefill = None
                if flight.phase != TRANSFER:  # otherwise the decode worker will say whether it has got the pages
                    self._begin_again(flight)

    def _settle(self) -> None:
        """Nobody waits for anything: hears the workers out, so that `stats` tells what is."""
        give_up = time.monotonic() + SETTLE_SECONDS
        while any(handle.up and handle.calls for handle in self.handles) and time.monotonic() < give_up:
            self._listen(LISTEN_SECONDS)

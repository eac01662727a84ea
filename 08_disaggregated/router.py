"""NEW in 08: the router: it owns the requests, and reacts to what workers report.

What has to survive is here: prompts, the tokens that clients have seen, seeds. What is large is with the workers:
weights, K and V. The router is not in the path from one decode step to the next: workers have loops of their own, and
go on while it reads.

A worker that dies takes its K and V along, and nothing else. Its requests run again from their prompt and the tokens
they have, and their streams continue where they stopped. Every worker can do the whole job, so each is a warm spare of
the other kind: as long as one worker is up, every stream goes on. Five rules keep a request from waiting forever,
whatever is lost. The fleet declares a worker lost if it ends or stays silent. Heartbeats tell what a worker holds, and
a request that should be there and is not begins again. After several failed handoffs one worker does the whole job. A
request under which workers die, one after the other and without a token in between, ends with an error. So does every
request if no worker at all is up for long.
"""

import heapq
import itertools
import logging
import os
import socket
import time

from common.engine import BaseEngine
from common.errors import InvalidInput
from common.loader import Loaded
from common.request import Request

from .fleet import Fleet
from .messages import Gain, Heartbeat, Hello, Lost, Mail, Order, Report
from .routing import (
    DECODE,
    PREFILL,
    QUEUED,
    READY,
    TRANSFER,
    Flight,
    Handle,
    add_up,
    choose_for_decode,
    choose_for_prompt,
)

LISTEN_SECONDS = 0.005  # A step waits this long for events, and so does a request that arrives meanwhile.
MAX_ID = 200  # characters of a request id, which is part of keys
START_SECONDS = 600.0  # for workers to load their model
MAX_FAILED_TRANSFERS = 3  # per request. After that, one worker does the whole job.
MAX_DEATHS = 3  # workers that die under one request without a token in between

log = logging.getLogger("router")


class Router(BaseEngine):
    """The engine's contract, kept by a fleet of workers.

    roles: "replica", "prefill" or "decode" for each worker. wait_seconds: how long requests wait while no worker is up
    at all; then they end with "error".
    """

    scores_prompts = True  # A worker scores them: the router needs no weights.
    idle_seconds = 1.0  # Losses are noticed, logged and shown by /health even while there is no request.

    def __init__(self, loaded: Loaded, fleet: Fleet, roles: list[str], wait_seconds: float):
        super().__init__(loaded)
        self.fleet, self.wait_seconds = fleet, wait_seconds
        self.handles = [Handle(number, role) for number, role in enumerate(roles)]
        self.flights: dict[str, Flight] = {}  # by key, of all unfinished requests
        self.keys: dict[str, str] = {}  # by request id
        # Heaps of (arrival, key): strictly first come, first served. Entries whose flight has moved on are skipped.
        self.queues: dict[str, list[tuple[float, str]]] = {QUEUED: [], READY: []}
        self.policy = None  # None: first come, first served (common/policies.py)
        self.changed: dict[str, Request] = {}  # since the last step returned
        self.attempts = itertools.count()
        self.handoffs, self.handoff_bytes, self.handoff_seconds = 0, 0, 0.0  # since the start
        self.lost = self.resumed = self.failed_transfers = 0  # since the start: workers, resumed requests, transfers
        self.last_up = time.monotonic()  # the last time at which any worker was up
        self.capacity = 0  # tokens that the smallest worker has room for
        self.gathering = True
        self._gather()

    @property
    def max_model_len(self) -> int:
        """Return the most tokens of a request: the context, or the smallest pool of all workers."""
        return min(self.config.context_length, self.capacity)

    def accept(self, request: Request) -> None:
        """Begin the first attempt. Raise InvalidInput if the id is too long, or the smallest pool too small."""
        if len(request.request_id) > MAX_ID:
            raise InvalidInput(f"a request id has at most {MAX_ID} characters, not {len(request.request_id)}")
        if (tokens := len(request.prompt_token_ids) + request.max_tokens) > self.capacity:
            raise InvalidInput(
                f"prompt and max_tokens are {tokens} tokens, and the smallest worker's cache has room for "
                f"{self.capacity}: ask for fewer tokens, or start the engine with a larger --kv-memory"
            )
        self._begin(Flight(request))

    def step(self) -> list[Request]:
        """Send requests where they belong, wait a moment for news of the workers, and react to it."""
        self._route()
        self._listen(LISTEN_SECONDS if self.requests else 0)
        self._end_what_waits_too_long()
        self._route()
        changed, self.changed = list(self.changed.values()), {}
        return changed

    def release(self, request: Request) -> None:
        """Free what workers hold for a request: they are told with the next mail."""
        flight = self.flights.pop(self.keys.pop(request.request_id))
        for handle in flight.holders:
            handle.drop(flight.key)
        if not self.requests:  # perhaps there is no next step
            self._send_mail()

    def check(self) -> None:
        """Raise AssertionError if the bookkeeping of the router, or of a worker in this process, is inconsistent."""
        self.fleet.check()
        assert set(self.keys) == set(self.requests) and set(self.keys.values()) == set(self.flights)
        for key, flight in self.flights.items():
            holders = {QUEUED: (0, 0), PREFILL: (1, 0), READY: (1, 0), DECODE: (0, 1)}
            held = flight.prefill is not None, flight.decode is not None
            assert held == holders.get(flight.phase, held) and (flight.phase != TRANSFER or held[1]), flight
            for handle in self.handles:
                assert (key in handle.held) == (handle in flight.holders), flight
        for handle in self.handles:
            assert handle.tasks.keys() <= handle.held.keys() <= self.flights.keys()
            assert handle.load == sum(handle.tasks.values())

    def close(self) -> None:
        """End the workers."""
        self.fleet.close()

    def stats(self) -> dict[str, float]:
        """Return the sums of the workers' stats, and the router's own counts of requests, handoffs and losses."""
        total = add_up((handle.role, self.fleet.stats(handle.number, handle.stats)) for handle in self.handles)
        running = min(total.get("running", 0), len(self.requests))
        roles = dict.fromkeys(handle.role for handle in self.handles)
        up = {f"{role}_workers_up": sum(one.up for one in self.handles if one.role == role) for role in roles}
        return {"kv_tokens_used": 0, "kv_tokens_reserved": 0} | total | up | {
            "unfinished": len(self.requests),
            "running": running,
            "waiting": len(self.requests) - running,
            "steps": self.trace.steps,
            "generated_tokens": self._generated_tokens,
            "handoffs": self.handoffs,
            "handoff_bytes": self.handoff_bytes,
            "handoff_seconds": self.handoff_seconds,
            "workers_lost": self.lost,
            "requests_resumed": self.resumed,
            "failed_transfers": self.failed_transfers,
        }  # fmt: skip

    # ---- Requests: down to the workers ----

    def _begin(self, flight: Flight) -> None:
        """Begin a new attempt, from the prompt and the output so far."""
        self.flights.pop(flight.key, None)
        request = flight.request
        flight.key = self.keys[request.request_id] = f"{request.request_id}#{next(self.attempts)}"
        flight.prefill = flight.decode = None
        self.flights[flight.key] = flight
        self._enqueue(flight, QUEUED)

    def _enqueue(self, flight: Flight, phase: str) -> None:
        """Queue a flight for its prompt (QUEUED) or for a decode worker (READY), by the arrival of its request."""
        flight.phase, flight.since = phase, time.monotonic()
        heapq.heappush(self.queues[phase], (flight.request.timings.arrival, flight.key))

    def _oldest(self, phase: str) -> Flight | None:
        """Return the flight in this phase whose request arrived first, and leave it queued; None if there is none."""
        queue = self.queues[phase]
        while queue:
            flight = self.flights.get(queue[0][1])
            if flight is not None and flight.phase == phase:
                return flight
            heapq.heappop(queue)
        return None

    def _route(self) -> None:
        """Give the waiting requests, in order, to the worker that is best for each now, until one has to wait."""
        for_prompts = [handle for handle in self.handles if handle.role != "decode"]
        for_decode = [handle for handle in self.handles if handle.role == "decode"]
        decode_is_up = any(handle.up for handle in for_decode)
        if self.policy:
            waiting = [flight for flight in self.flights.values() if flight.phase == QUEUED]
            waiting.sort(key=lambda flight: flight.request.timings.arrival)
            keys = {flight.request: flight.key for flight in waiting}
            _, ordered = self.policy.order({}, keys)
            self.queues[QUEUED] = [(place, keys[request]) for place, request in enumerate(ordered)]
        while flight := self._oldest(READY):
            if not decode_is_up:
                self._begin_again(flight)  # Its prefill worker still has the prompt cached.
            elif found := choose_for_decode(for_decode, flight.request.num_tokens):
                self._order(flight, TRANSFER, *found)
            else:
                break
        while flight := self._oldest(QUEUED):
            tokens = [flight.request.salt] * bool(flight.request.salt) + flight.request.all_token_ids
            # A decode worker can do the whole job, and does if no other worker is up.
            found = choose_for_prompt(for_prompts, tokens)
            if not found and not any(handle.up for handle in for_prompts):
                found = choose_for_decode(for_decode, len(tokens))
            if not found:
                break
            handle, task = found
            hand_over = handle.role == "prefill" and decode_is_up and flight.failed_transfers < MAX_FAILED_TRANSFERS
            handle.seen.add(tokens if flight.request.max_tokens else [])  # what is only scored is not cached
            self._order(flight, PREFILL if hand_over else DECODE, handle, task)
        self._send_mail()

    def _order(self, flight: Flight, phase: str, handle: Handle, task: int) -> None:
        """Order the next part of a request from a worker, with the next mail."""
        request = flight.request
        flight.phase, flight.since = phase, time.monotonic()
        if phase == PREFILL:
            flight.prefill = handle
        else:
            flight.decode = handle
        order = Order(
            flight.key,
            request.prompt_token_ids,
            list(request.token_ids),
            request.params,
            request.seed,
            request.max_tokens,
            hand_over=phase == PREFILL,
            ticket=flight.ticket if phase == TRANSFER else None,
        )
        handle.order(order, task)

    def _send_mail(self) -> None:
        """Send each worker that is up its orders and drops, or an empty mail if it is to be probed."""
        for handle in self.handles:
            if handle.up and (handle.orders or handle.drops or handle.probe):
                handle.sent += 1
                self.fleet.send(handle.number, Mail(handle.sent, handle.orders, handle.drops))
                handle.orders, handle.drops, handle.probe = [], [], False

    # ---- Reports: up from the workers ----

    def _listen(self, seconds: float) -> None:
        """React to all events of the fleet; if there are none, wait up to `seconds` for the first."""
        for number, news in self.fleet.events(seconds):
            handle = self.handles[number]
            if isinstance(news, Hello):
                self._worker_up(handle, news)
            elif isinstance(news, Lost):
                self._worker_lost(handle, news.reason)
            elif handle.up:
                self._take(handle, news)

    def _take(self, handle: Handle, report: Report) -> None:
        """React to the report of a worker. Ignore what it says of flights that it no longer has."""
        handle.note(report)
        if record := report.record and handle.in_our_time(report.record, self.trace.steps, self.flights):
            self.trace.add(record)
        for arrival in report.arrived:
            self.handoffs += 1
            self.handoff_bytes += arrival.bytes
            self.handoff_seconds += arrival.seconds
            if record:
                for name, value in (("handoff_bytes", arrival.bytes), ("handoff_seconds", arrival.seconds)):
                    record.counters[name] = record.counters.get(name, 0) + value
            if (flight := self.flights.get(arrival.key)) and flight.decode is handle:
                self._arrived(flight)
        for gain in report.gains:
            if (flight := self.flights.get(gain.key)) and handle in flight.holders:
                self._gain(handle, flight, gain)
        for key, ticket in report.parked:
            if (flight := self.flights.get(key)) and flight.prefill is handle and flight.phase == PREFILL:
                handle.task_done(key)
                flight.ticket = ticket
                self._enqueue(flight, READY)
        for key, reason in report.failed:
            if (flight := self.flights.get(key)) and handle in flight.holders:
                self._transfer_failed(handle, flight, reason)
        if report.heartbeat:
            self._reconcile(handle, report.heartbeat)

    def _arrived(self, flight: Flight) -> None:
        """Note that the decode worker has the pages, and have the prefill worker drop them."""
        flight.phase = DECODE
        flight.decode.task_done(flight.key)
        if flight.prefill is not None:
            flight.prefill.drop(flight.key)
            flight.prefill = None

    def _gain(self, handle: Handle, flight: Flight, gain: Gain) -> None:
        """Append the tokens that a request does not have yet, and retire it if they end it."""
        request = flight.request
        known = len(request.token_ids) - gain.first
        if known < 0:
            self._lose(flight, handle)  # an earlier report is missing
            return
        if flight.phase == TRANSFER and flight.decode is handle:
            self._arrived(flight)  # the report that said so is missing
        if not request.token_ids:
            request.cached_tokens = gain.cached_tokens
        for place, token_id in enumerate(gain.token_ids[known:], known):
            request.append(token_id, gain.logprobs[place] if gain.logprobs else None)
            self._generated_tokens += 1
            flight.deaths = 0
            if request.finished:  # A stop string may end it: the worker knows of none.
                break
        if not request.max_tokens:  # its prompt has been scored
            request.logprobs = gain.logprobs
            request.finish("length")
        if known < len(gain.token_ids) or request.finished:  # otherwise the gain has come twice
            self.changed[request.request_id] = request
        if flight.phase == DECODE:
            handle.task_done(flight.key)
        if gain.finished:
            assert request.finished, "the worker has ended what is not at its end"
            handle.forget(flight.key)
            flight.prefill, flight.decode = (None if one is handle else one for one in (flight.prefill, flight.decode))
        if request.finished:
            self._retire(request)

    # ---- Loss: of workers, of messages, of pages in transfer ----

    def _gather(self) -> None:
        """Wait until all workers have started. Raise InvalidInput if one of them cannot."""
        give_up = time.monotonic() + START_SECONDS
        while not all(handle.up for handle in self.handles):
            self._listen(0.1)
            if time.monotonic() > give_up:
                raise InvalidInput(f"the workers did not start within {START_SECONDS:.0f} seconds")
        self.gathering = False

    def _worker_up(self, handle: Handle, hello: Hello) -> None:
        """Note that a worker has started, empty. Log it, unless it is one of this process and has just been made."""
        # Two machines have two clocks: the worker's `now` is taken as the present. On one machine they are the same.
        offset = time.perf_counter() - hello.now if hello.host != socket.gethostname() else 0.0
        self.handles[handle.number] = Handle(handle.number, handle.role, hello, offset)
        self.capacity = min(one.hello.num_pages * one.hello.page_size for one in self.handles if one.up)
        if hello.process != os.getpid() or self.lost:
            log.warning("worker %d (%s) is up, process %d", handle.number, handle.role, hello.process)

    def _worker_lost(self, handle: Handle, reason: str) -> None:
        """Begin again what the worker held, unless the other side of a handoff has it still."""
        if self.gathering:
            raise InvalidInput(f"worker {handle.number} ({handle.role}) could not be started: {reason}")
        flights = [self.flights[key] for key in handle.held]
        log.warning("worker %d (%s) is lost with %d requests: %s", handle.number, handle.role, len(flights), reason)
        self.lost += handle.up
        self.handles[handle.number] = Handle(handle.number, handle.role)
        worked_on = set(handle.worked_on())
        for flight in flights:
            computed_there = flight.decode is handle or flight.phase == PREFILL  # Parked pages kill no worker.
            flight.deaths += computed_there and flight.key in worked_on
            self._lose(flight, handle)

    def _lose(self, flight: Flight, handle: Handle) -> None:
        """Take a flight off a worker: hand its parked pages to another one, or begin again."""
        handle.drop(flight.key)
        if flight.decode is handle:
            flight.decode = None
            if flight.prefill is None:
                self._begin_again(flight)
            else:  # The prefill worker still has the pages.
                self._enqueue(flight, READY)
        else:
            flight.prefill = None
            if flight.phase != TRANSFER:  # otherwise the decode worker will say whether it has the pages
                self._begin_again(flight)

    def _begin_again(self, flight: Flight) -> None:
        """Drop the orders of a flight and begin a new attempt; after MAX_DEATHS end its request with "error"."""
        if flight.deaths >= MAX_DEATHS:
            self._fail(flight, f"{flight.deaths} workers have died under it, one after the other")
            return
        for handle in flight.holders:
            handle.drop(flight.key)
        self.resumed += 1
        self._begin(flight)

    def _reconcile(self, handle: Handle, heartbeat: Heartbeat) -> None:
        """Let go of what the worker should not hold, and begin again what it should hold and does not."""
        handle.drops += heartbeat.held - handle.held.keys()
        handle.probe = heartbeat.mail < handle.sent  # When it has read the probe, all mail before that is read or lost.
        for key, mail in list(handle.held.items()):
            flight = self.flights[key]
            told_too_late = flight.phase == PREFILL and key in heartbeat.parked  # the report with the ticket is missing
            if mail <= heartbeat.mail and (key not in heartbeat.held or told_too_late):
                self._lose(flight, handle)

    def _transfer_failed(self, handle: Handle, flight: Flight, reason: str) -> None:
        """Hand over again; after MAX_FAILED_TRANSFERS do without a handoff, after three times as many give up."""
        self.failed_transfers += 1
        flight.failed_transfers += 1
        log.warning("pages of request %s could not be fetched: %s", flight.request.request_id, reason)
        if flight.failed_transfers >= 3 * MAX_FAILED_TRANSFERS:
            self._fail(flight, reason)
            return
        self._lose(flight, handle)
        if flight.phase == READY and flight.failed_transfers >= MAX_FAILED_TRANSFERS:
            self._begin_again(flight)

    def _end_what_waits_too_long(self) -> None:
        """Keep `unavailable` up to date. While no worker at all is up, end what has waited for `wait_seconds`."""
        up = {handle.role for handle in self.handles if handle.up}
        down = [role for role in dict.fromkeys(handle.role for handle in self.handles) if role not in up]
        self.unavailable = f"no {' and no '.join(down)} worker is up" if down else ""
        if up:
            self.last_up = time.monotonic()
            return
        for flight in list(self.flights.values()):
            if time.monotonic() - max(self.last_up, flight.since) > self.wait_seconds:
                self._fail(flight, f"no worker has been up for {self.wait_seconds:.0f} s")

    def _fail(self, flight: Flight, reason: str) -> None:
        """End the request of a flight with "error", and log why."""
        log.error("request %s ends with an error: %s", flight.request.request_id, reason)
        flight.request.finish("error")
        self.changed[flight.request.request_id] = flight.request
        self._retire(flight.request)

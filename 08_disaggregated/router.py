"""NEW in 08: the router: it owns the requests, and reacts to what workers report.

What has to survive is here: prompts, the tokens that clients have seen, seeds. What is large is with the workers:
weights, K and V. The router is not in the path from one decode step to the next: workers have loops of their own, and
go on while it reads. What it does about loss, of messages and of workers, stands in recovery.py.
"""

import heapq
import itertools
import socket
import time

from common.engine import BaseEngine
from common.errors import InvalidInput
from common.loader import Loaded
from common.request import Request

from .fleet import Fleet
from .messages import Gain, Hello, Lost, Mail, Order, Report
from .page_table import PageAllocator
from .recovery import MOST_FAILED_TRANSFERS, Recovery
from .routing import DECODE, PREFILL, QUEUED, READY, TRANSFER, Flight, Handle, add_up, choose_decode, choose_prefill

LISTEN_SECONDS = 0.005  # a step waits this long for events: a request that arrives meanwhile waits as long
MOST_ID = 200  # characters of a request id, which is part of keys
START_SECONDS = 600.0  # for workers to load their model


class Router(BaseEngine):
    """The engine's contract, kept by a fleet of workers.

    roles: "prefill" or "decode" for each worker. wait_seconds: how long requests wait while no worker is up at all;
    then they end with "error".
    """

    scores_prompts = True  # on a worker: a router needs no weights
    idle_seconds = 1.0  # losses are noticed, logged and told by /health also while nothing is asked

    def __init__(self, loaded: Loaded, fleet: Fleet, roles: list[str], wait_seconds: float):
        super().__init__(loaded)
        self.fleet = fleet
        self.handles = [Handle(number, role) for number, role in enumerate(roles)]
        self.by_role = {role: [h for h in self.handles if h.role == role] for role in ("prefill", "decode")}
        self.flights: dict[str, Flight] = {}  # by key, of all unfinished requests
        self.keys: dict[str, str] = {}  # by request id
        # Heaps of (arrival, key): strictly first come, first served. Entries whose flight has moved on are skipped.
        self.queues: dict[str, list[tuple[float, str]]] = {QUEUED: [], READY: []}
        self.changed: dict[str, Request] = {}  # since the last step returned
        self.attempts = itertools.count()
        self.handoffs, self.handoff_bytes, self.handoff_seconds = 0, 0, 0.0  # ever
        self.recovery = Recovery(self, wait_seconds)
        self.smallest: PageAllocator  # a pool as large as that of the smallest worker
        self.gathering = True
        self._gather()

    @property
    def max_model_len(self) -> int:
        """Return the most tokens of a request: the context, or the smallest pool of all workers."""
        return min(self.config.context_length, self.smallest.num_pages * self.smallest.page_size)

    def accept(self, request: Request) -> None:
        """Begin the first attempt. Raise InvalidInput if the id is too long, or the smallest pool too small."""
        if len(request.request_id) > MOST_ID:
            raise InvalidInput(f"a request id has at most {MOST_ID} characters, not {len(request.request_id)}")
        self.smallest.check_fits(len(request.prompt_token_ids) + request.max_tokens)
        self.begin(Flight(request))

    def step(self) -> list[Request]:
        """Send requests where they belong, wait a moment for news of the workers, and react to it."""
        self._route()
        self._listen(LISTEN_SECONDS if self.requests else 0)
        self.recovery.watch()
        self._route()
        changed, self.changed = list(self.changed.values()), {}
        return changed

    def release(self, request: Request) -> None:
        """Free what workers hold for a request: they are told with the next mail."""
        flight = self.flights.pop(self.keys.pop(request.request_id))
        for handle in (flight.prefill, flight.decode):
            if handle is not None:
                handle.drop(flight.key)
        if not self.requests:  # perhaps there is no next step
            self._send_mail()

    def check(self) -> None:
        """Raise AssertionError if the books of the router, or of a worker in this process, do not balance."""
        self.fleet.check()
        assert set(self.keys) == set(self.requests) and set(self.keys.values()) == set(self.flights)
        for key, flight in self.flights.items():
            holders = {QUEUED: (0, 0), PREFILL: (1, 0), READY: (1, 0), DECODE: (0, 1)}
            held = flight.prefill is not None, flight.decode is not None
            assert held == holders.get(flight.phase, held) and (flight.phase != TRANSFER or held[1]), flight
            for handle in self.handles:
                assert (key in handle.held) == (handle in (flight.prefill, flight.decode)), flight
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
        return {"kv_tokens_used": 0, "kv_tokens_reserved": 0} | total | {
            "unfinished": len(self.requests),
            "running": running,
            "waiting": len(self.requests) - running,
            "steps": self.trace.steps,
            "generated_tokens": self._generated_tokens,
            "handoffs": self.handoffs,
            "handoff_bytes": self.handoff_bytes,
            "handoff_seconds": self.handoff_seconds,
            **self.recovery.stats(),
        }  # fmt: skip

    def begin(self, flight: Flight) -> None:
        """Begin a new attempt, from the prompt and the output so far."""
        self.flights.pop(flight.key, None)
        request = flight.request
        flight.key = self.keys[request.request_id] = f"{request.request_id}#{next(self.attempts)}"
        flight.prefill, flight.decode, flight.first = None, None, len(request.token_ids)
        self.flights[flight.key] = flight
        if not self.recovery.isolates(flight):
            self.enqueue(flight, QUEUED)

    def enqueue(self, flight: Flight, phase: str) -> None:
        """Queue a flight for a prefill worker (QUEUED) or a decode worker (READY), by the arrival of its request."""
        flight.phase, flight.since = phase, time.monotonic()
        heapq.heappush(self.queues[phase], (flight.request.timings.arrival, flight.key))

    def fail(self, flight: Flight) -> None:
        """End the request of a flight with "error"."""
        flight.request.finish("error")
        self.changed[flight.request.request_id] = flight.request
        self._retire(flight.request)

    # ---- Requests: down to the workers ----

    def _route(self) -> None:
        """Give each request that waits to the worker that is best for it now, up to the first that has to wait."""
        prefill, decode = self.by_role["prefill"], self.by_role["decode"]
        decode_is_up = any(handle.up for handle in decode)
        while flight := self._oldest(READY):
            if not decode_is_up:
                self.recovery.begin_again(flight)  # where its prompt is cached
            elif found := choose_decode(decode, flight.request.num_tokens):
                self.order(flight, TRANSFER, *found)
            else:
                break
        while flight := self._oldest(QUEUED):
            tokens = flight.request.all_token_ids
            # Either kind can do the whole job, and does if the other kind is down.
            found = choose_prefill(prefill, tokens) or choose_decode(decode, len(tokens))
            if not found:
                break
            handle, task = found
            hand_over = handle.role == "prefill" and decode_is_up and flight.failed_transfers < MOST_FAILED_TRANSFERS
            handle.seen.add(tokens if flight.request.max_tokens else [])  # what is only scored is not cached
            self.order(flight, PREFILL if hand_over else DECODE, handle, task)
        self._send_mail()

    def _oldest(self, phase: str) -> Flight | None:
        """Return the flight in this phase whose request arrived first, and leave it queued; None if there is none."""
        queue = self.queues[phase]
        while queue:
            flight = self.flights.get(queue[0][1])
            if flight is not None and flight.phase == phase:
                return flight
            heapq.heappop(queue)
        return None

    def order(self, flight: Flight, phase: str, handle: Handle, task: int) -> None:
        """Give a flight to a worker. task: tokens to compute, or pages to reserve."""
        request = flight.request
        if phase == PREFILL:
            flight.prefill = handle
        else:
            flight.decode = handle
        flight.phase, flight.since = phase, time.monotonic()
        what = request.prompt_token_ids, list(request.token_ids), request.params, request.seed, request.max_tokens
        ticket = flight.ticket if phase == TRANSFER else None
        handle.order(Order(flight.key, *what, hand_over=phase == PREFILL, ticket=ticket), task)

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
                # Two machines have two clocks: what the worker says was about now. On one machine they are the same.
                there = news.host != socket.gethostname()
                handle.greet(news, time.perf_counter() - news.now if there else 0.0)
                hello = min((one.hello for one in self.handles if one.up), key=lambda hello: hello.num_pages)
                self.smallest = PageAllocator(hello.num_pages, hello.page_size)
                self.recovery.worker_back(handle)
            elif isinstance(news, Lost):
                if self.gathering:
                    raise InvalidInput(f"worker {number} ({handle.role}) could not be started: {news.reason}")
                self.recovery.worker_lost(handle, news.reason)
            elif handle.up:
                self._take(handle, news)

    def _take(self, handle: Handle, report: Report) -> None:
        """React to the report of a worker. Ignore what it says of flights that it no longer has."""
        handle.note(report)
        if record := report.record and handle.in_our_time(report.record, self.trace.steps):
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
            if (flight := self.flights.get(gain.key)) and handle in (flight.prefill, flight.decode):
                self._gain(handle, flight, gain)
        for key, ticket in report.parked:
            if (flight := self.flights.get(key)) and flight.prefill is handle and flight.phase == PREFILL:
                handle.task_done(key)
                flight.ticket = ticket
                self.enqueue(flight, READY)
        for key, reason in report.failed:
            if (flight := self.flights.get(key)) and handle in (flight.prefill, flight.decode):
                self.recovery.transfer_failed(handle, flight, reason)
        if report.heartbeat:
            self.recovery.compare(handle, report.heartbeat)

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
            self.recovery.lose(flight, handle)  # an earlier report is missing
            return
        if flight.phase == TRANSFER and flight.decode is handle:
            self._arrived(flight)  # the report that said so is missing
        if not request.token_ids:
            request.cached_tokens = gain.cached_tokens
        for place, token_id in enumerate(gain.token_ids[known:], known):
            request.append(token_id, gain.logprobs[place] if gain.logprobs else None)
            self._generated_tokens += 1
            if request.finished:  # perhaps by a stop string, of which the worker knows nothing
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
        else:
            self.recovery.progressed(flight)

    def _gather(self) -> None:
        """Wait until all workers have started. Raise InvalidInput if one of them cannot."""
        give_up = time.monotonic() + START_SECONDS
        while not all(handle.up for handle in self.handles):
            self._listen(0.1)
            if time.monotonic() > give_up:
                raise InvalidInput(f"the workers did not start within {START_SECONDS:.0f} seconds")
        self.gathering = False

"""NEW in 08: what the router does about loss: of workers, of messages, of pages in transfer.

A worker that dies takes its K and V along, and nothing else. Its requests run again from their prompt and the tokens
they have, and their streams continue where they stopped. Every worker can do the whole job, so each is a warm spare of
the other kind: as long as one worker is up, every stream goes on.

Four rules keep a request from waiting for ever, whatever is lost. The fleet declares a worker lost that closes its
connection or stays silent. Heartbeats tell what a worker holds, and what should be there and is not begins again. A
handoff that fails again and again is done without. A request under which workers keep dying is suspected, runs alone on
a worker, and ends with an error if that one dies too.
"""

import logging
import os
import time
from collections import deque
from typing import Any

from .messages import Heartbeat
from .routing import DECODE, PREFILL, QUEUED, READY, TRANSFER, Flight, Handle

MOST_FAILED_TRANSFERS = 3  # of one request; then one worker does the whole job
SUSPECT_DEATHS = 2  # workers that have died under a request without progress, until it has to run alone
MOST_DEATHS = 4  # until it ends with an error; those above SUSPECT_DEATHS cannot be another request's fault
PROGRESS_TOKENS = 16  # in one attempt, until a request is beyond suspicion

log = logging.getLogger("router")


class Recovery:
    """The part of a Router that handles losses. wait_seconds: as for Router."""

    def __init__(self, router: Any, wait_seconds: float):
        self.router, self.wait_seconds = router, wait_seconds
        self.suspects: deque[str] = deque()  # keys; the first one has a worker to itself, or waits for it
        self.lost = self.resumed = self.failed_transfers = 0  # ever: workers, requests begun again, transfers
        self.last_up = time.monotonic()  # when any worker was up

    def stats(self) -> dict[str, int]:
        """Return how many workers of each role are up, and what has been lost and resumed so far."""
        up = {f"{role}_workers_up": sum(h.up for h in handles) for role, handles in self.router.by_role.items()}
        counts = {"workers_lost": self.lost, "requests_resumed": self.resumed}
        return up | counts | {"failed_transfers": self.failed_transfers}

    def watch(self) -> None:
        """End what has waited too long, give suspects a worker, and keep `unavailable` true."""
        kinds = [role for role, handles in self.router.by_role.items() if not any(h.up for h in handles)]
        self.router.unavailable = f"no {' and no '.join(kinds)} worker is up" if kinds else ""
        if len(kinds) < len(self.router.by_role):
            self.last_up = time.monotonic()
        else:
            for flight in list(self.router.flights.values()):
                if time.monotonic() - max(self.last_up, flight.since) > self.wait_seconds:
                    self._fail(flight, f"no worker has been up for {self.wait_seconds:.0f} s")
        if self.suspects:
            self._run_suspect_alone()

    # ---- Workers ----

    def worker_back(self, handle: Handle) -> None:
        """Log that a worker is up, unless it is one of this process and has just been made."""
        if handle.hello.process != os.getpid() or self.lost:
            log.warning("worker %d (%s) is up, process %d", handle.number, handle.role, handle.hello.process)

    def worker_lost(self, handle: Handle, reason: str) -> None:
        """Begin again what the worker held, unless the other side of a handoff has it still."""
        flights = [self.router.flights[key] for key in handle.held]
        lost = handle.number, handle.role, len(flights), reason
        log.warning("worker %d (%s) is lost with %d requests: %s", *lost)
        self.lost += handle.up
        suspects = set(handle.suspects())
        handle.__init__(handle.number, handle.role)
        for flight in flights:
            computed_there = flight.decode is handle or flight.phase == PREFILL  # parked pages do no harm
            flight.deaths += computed_there and flight.key in suspects
            self.lose(flight, handle)

    def lose(self, flight: Flight, handle: Handle) -> None:
        """Take a flight off a worker: hand its parked pages to another one, or begin again."""
        handle.drop(flight.key)
        if flight.decode is handle:
            flight.decode = None
            if flight.prefill is None:
                self.begin_again(flight)
            else:  # the pages are where they were
                self.router.enqueue(flight, READY)
        else:
            flight.prefill = None
            if flight.phase != TRANSFER:  # otherwise the decode worker will say whether it has the pages
                self.begin_again(flight)

    def begin_again(self, flight: Flight) -> None:
        """Drop the orders of a flight and begin a new attempt; after MOST_DEATHS end its request with "error"."""
        for handle in (flight.prefill, flight.decode):
            if handle is not None:
                handle.drop(flight.key)
        flight.prefill = flight.decode = None
        if flight.deaths >= MOST_DEATHS:
            flight.phase = QUEUED
            self._fail(flight, f"{flight.deaths} workers have died under it, the last {SUSPECT_DEATHS} with it alone")
        else:
            self.resumed += 1
            self.router.begin(flight)

    def _fail(self, flight: Flight, reason: str) -> None:
        """End the request of a flight with "error", and log why."""
        log.error("request %s ends with an error: %s", flight.request.request_id, reason)
        self.router.fail(flight)

    # ---- Messages and transfers ----

    def compare(self, handle: Handle, heartbeat: Heartbeat) -> None:
        """Let go of what the worker should not hold, and begin again what it should hold and does not."""
        handle.drops += heartbeat.held - handle.held.keys()
        handle.probe = heartbeat.mail < handle.sent  # once it has read one more mail, those before it are read or lost
        for key, mail in list(handle.held.items()):
            flight = self.router.flights[key]
            told_too_late = flight.phase == PREFILL and key in heartbeat.parked  # the report with the ticket is missing
            if mail <= heartbeat.mail and (key not in heartbeat.held or told_too_late):
                self.lose(flight, handle)

    def transfer_failed(self, handle: Handle, flight: Flight, reason: str) -> None:
        """Hand over again; after MOST_FAILED_TRANSFERS do without a handoff, after three times as many give up."""
        self.failed_transfers += 1
        flight.failed_transfers += 1
        log.warning("pages of request %s could not be fetched: %s", flight.request.request_id, reason)
        if flight.failed_transfers >= 3 * MOST_FAILED_TRANSFERS:
            self._fail(flight, reason)
            return
        self.lose(flight, handle)
        if flight.phase == READY and flight.failed_transfers >= MOST_FAILED_TRANSFERS:
            self.begin_again(flight)

    # ---- Requests under which workers die ----

    def isolates(self, flight: Flight) -> bool:
        """Queue a flight that begins for a worker of its own if it is a suspect; return whether it is."""
        if flight.deaths < SUSPECT_DEATHS:
            return False
        flight.phase, flight.since = QUEUED, time.monotonic()
        self.suspects.append(flight.key)
        return True

    def progressed(self, flight: Flight) -> None:
        """Clear a request of suspicion once it has gained enough tokens in one attempt."""
        if flight.deaths and len(flight.request.token_ids) - flight.first >= PROGRESS_TOKENS:
            flight.deaths = 0

    def _run_suspect_alone(self) -> None:
        """Empty a worker for the first suspect, by giving nothing else to it, and run the suspect there."""
        flights, handles = self.router.flights, self.router.handles
        while self.suspects and ((flight := flights.get(self.suspects[0])) is None or not flight.deaths):
            key = self.suspects.popleft()  # it has ended, begun again, or is cleared
            for handle in handles:
                handle.isolated = None if handle.isolated == key else handle.isolated
            if flight is not None:  # it makes room for the next suspect, and goes on where its pages are cached
                self.begin_again(flight)
        if not self.suspects or flight.phase != QUEUED:
            return
        handle = next((one for one in handles if one.isolated == flight.key), None)
        if handle is None:
            handle = min((one for one in handles if one.up), key=lambda one: len(one.held), default=None)
        if handle is not None:
            handle.isolated = flight.key
            for key in list(handle.held):
                if flights[key].phase == READY:  # they wait for another worker, perhaps for long
                    self.begin_again(flights[key])
            if not handle.held:
                self.router.order(flight, DECODE, handle, flight.request.num_tokens)

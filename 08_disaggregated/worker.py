"""NEW in 08: a worker is an engine with a loop of its own. Mail comes in, reports go out, and no step waits for either.

A replica does the whole job. A prefill worker computes a prompt, samples the first token, and parks the request: its
pages keep their contents until the router drops the key. A decode worker reserves pages first, then fetches the
contents into them, and continues with the second token. So nothing is ever in transfer without a place to go to. And no
circle of waiting can arise: parked pages wait for room on a decode worker, and a decode worker gets room whenever one
of its own requests ends.

On the decode side an order passes three queues, which SGLang's decode server has too: `waiting_for_room`,
`in_transfer`, and the scheduler's `running`.
"""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from common.errors import InvalidInput
from common.request import Request
from common.serving.prompt_logprobs import PromptScorer

from .kv_transport import KVTransport, Transfer
from .messages import Arrival, Gain, Heartbeat, Hello, Mail, Order, Report
from .scheduler import Sequence

HEARTBEAT_SECONDS = 1.0
ARRIVAL_SECONDS = 0.003  # A step waits this long for pages: those of a short prompt arrive within it.
LOOK = None  # In a mailbox it says that a transfer is final.


class Worker:
    """An engine, its transport and its orders. `engine` is the stage's WorkerEngine.

    wake: called from any thread when a transfer has ended, since an idle worker sleeps until there is mail.
    """

    def __init__(self, engine, transport: KVTransport, wake: Callable[[], None] = lambda: None):
        self.engine, self.transport, self.wake = engine, transport, wake
        self.scheduler = engine.scheduler
        self.scorer = PromptScorer(engine)
        transport.register(engine.pools)
        self.mail_read = 0  # number of the newest mail
        self.told_available = -1  # pages, by the last report
        self.report = Report()  # the next one
        self.handing_over: set[str] = set()  # prompts whose pages have not been offered yet
        self.begun: set[str] = set()  # whole jobs without a token yet
        self.waiting_for_room: deque[tuple[Request, Any]] = deque()  # with tickets
        self.in_transfer: dict[str, Transfer] = {}
        self.given_up: list[tuple[Transfer, Sequence]] = []  # dropped, but their pages may still be written to

    def hello(self) -> Hello:
        """Return what the router has to know of this worker."""
        allocator = self.scheduler.allocator
        sizes = allocator.num_pages, allocator.page_size, self.scheduler.max_running
        notes = self.engine.startup_notes, self.transport.description
        host_pages = self.scheduler.tiers.slots if self.scheduler.tiers else 0
        return Hello(socket.gethostname(), time.perf_counter(), os.getpid(), *sizes, *notes, host_pages)

    def run(self, mailbox: "SimpleQueue[Mail | None]") -> Iterator[Hello | Report]:
        """Say hello. Then take turn after turn while there is something to compute, else one for each mail."""
        yield self.hello()
        busy, beat = False, time.monotonic()
        while True:
            patience = 0 if busy else max(0, beat - time.monotonic())
            for mail in collect(mailbox, patience):
                if mail is not LOOK:
                    self.read(mail)
            due = time.monotonic() >= beat
            report = self.turn(heartbeat=due)
            if due:
                beat = time.monotonic() + HEARTBEAT_SECONDS
            if report:
                yield report
            busy = report.record is not None or bool(report.parked or report.failed or self.scorer.texts)

    def turn(self, heartbeat: bool = False) -> Report:
        """Start and finish transfers, run one step of the engine, score a piece of a prompt, and report.

        If a turn was interrupted, the next one also reports what it has done.
        """
        report = self.report
        self._start_transfers()
        self._finish_transfers(report)
        if not self._hand_over(report):
            self._step(report)
        if scored := self.scorer.step():
            report.gains.append(Gain(scored.request_id, 0, [], scored.logprobs, 0, True))
        available = self._available()
        if heartbeat or available != self.told_available:
            report.available = self.told_available = available
        if heartbeat:
            held, offered = frozenset(self.held), frozenset(self.scheduler.parked) - self.handing_over
            report.heartbeat = Heartbeat(self.mail_read, held, offered, self.engine.stats())
        self.report = Report()
        return report

    @property
    def held(self) -> list[str]:
        """Return the keys of all orders that are here."""
        waiting = (request.request_id for request, _ in self.waiting_for_room)
        return [*self.engine.requests, *self.scorer.texts, *waiting]

    def check(self) -> None:
        """Raise AssertionError if the bookkeeping is inconsistent."""
        self.engine.check()
        assert self.in_transfer.keys() == self.scheduler.reserved.keys(), "pages arrive for which there is no place"
        assert {*self.scheduler.parked, *self.handing_over} <= self.engine.requests.keys()

    def read(self, mail: Mail) -> None:
        """Drop and take what the mail says. Refuse orders that can never fit here, in the next report."""
        self.mail_read = max(self.mail_read, mail.number)
        for key in mail.drops:
            self._drop(key)
        held = set(self.held) if mail.orders else ()
        for order in mail.orders:
            if order.key not in held:  # otherwise it has come twice
                try:
                    self._take(order)
                except InvalidInput as error:  # The pool is smaller than the router believes. The other orders go on.
                    self.report.failed.append((order.key, str(error)))

    def _available(self) -> int:
        """Return how many pages are free, or taken by orders that the router still counts in its load itself.

        It counts them until pages have arrived, or a whole job has its first token. No page may be counted twice.
        """
        running = [self.scheduler.running[key] for key in self.begun if key in self.scheduler.running]
        counted = [*self.scheduler.reserved.values(), *running]
        return self.scheduler.allocator.available + sum(len(sequence.page_table.pages) for sequence in counted)

    def _take(self, order: Order) -> None:
        """Begin an order, or queue it for pages if it has a ticket. Raise InvalidInput if it can never fit here."""
        request = order.request(self.engine.eos_token_ids)
        if request.params.adapter is not None:  # its folder may have changed since the router read it
            self.engine.adapter_key(request.params.adapter)
        self.scheduler.allocator.check_fits(len(request.prompt_token_ids) + request.max_tokens)
        if order.ticket is not None:
            self.waiting_for_room.append((request, order.ticket))
            return
        if not order.max_tokens:  # only its prompt is to be scored
            self.scorer.add(request)
            return
        self.engine.accept(request)
        self.engine.requests[order.key] = request
        (self.handing_over if order.hand_over else self.begun).add(order.key)

    def _start_transfers(self) -> None:
        """Reserve pages for queued orders, in turn, until one does not fit; start to fetch their contents."""
        started: list[Transfer] = []
        while self.waiting_for_room and (sequence := self.scheduler.reserve(self.waiting_for_room[0][0])) is not None:
            request, ticket = self.waiting_for_room.popleft()
            self.engine.requests[request.request_id] = request
            table, count = sequence.page_table, self.scheduler.allocator.pages_for(request.num_tokens - 1)
            cached = len(table.path)  # Pages in this worker's own tree need not travel.
            started.append(self.transport.receive(ticket, cached, table.pages[cached:count], self.wake))
            self.in_transfer[request.request_id] = started[-1]
        deadline = time.monotonic() + ARRIVAL_SECONDS  # for all together: meanwhile no request decodes
        for transfer in started:
            transfer.wait(max(0.0, deadline - time.monotonic()))

    def _finish_transfers(self, report: Report) -> None:
        """Resume the requests whose pages have arrived; drop those whose transfer has failed."""
        for transfer, sequence in list(self.given_up):
            if transfer.final:
                self.given_up.remove((transfer, sequence))
                self.scheduler.release_given_up(sequence)
        for key, transfer in list(self.in_transfer.items()):
            try:
                if not transfer.done():
                    continue
            except ConnectionError as error:
                self._drop(key)
                report.failed.append((key, str(error)))
            else:
                del self.in_transfer[key]
                self.scheduler.resume(self.engine.requests[key])
                report.arrived.append(Arrival(key, transfer.bytes, transfer.seconds))

    def _step(self, report: Report) -> None:
        """Run one step of the engine if it has work; report tokens gained, and park finished prompts."""
        if not self.scheduler.running and not self.scheduler.waiting:
            return
        known = {key: len(request.token_ids) for key, request in self.engine.requests.items()}
        for request in self.engine.step():
            key, first = request.request_id, known[request.request_id]
            self.begun.discard(key)
            new = request.token_ids[first:], request.logprobs[first:]
            report.gains.append(Gain(key, first, *new, request.cached_tokens, request.finished))
            if request.finished:
                self.handing_over.discard(key)
            elif key in self.handing_over:
                self.scheduler.park(request)
        if self.engine.trace[-1].works:  # otherwise nothing fits before parked pages are dropped
            report.record = self.engine.trace[-1]

    def _hand_over(self, report: Report) -> bool:
        """Offer the pages of prompts parked in the turn before, and report the tickets; return whether there are any.

        Their first tokens have left with that turn's report: they need not wait until the draft model has read.
        """
        keys = [key for key in self.scheduler.parked if key in self.handing_over]
        for key in keys:
            sequence = self.scheduler.parked[key]
            self.engine.read_ahead(sequence)
            pages = sequence.page_table.pages[: self.scheduler.allocator.pages_for(sequence.computed)]
            report.parked.append((key, self.transport.send(key, pages)))
            self.handing_over.discard(key)
        return bool(keys)

    def _drop(self, key: str) -> None:
        """Let go of an order and its pages, wherever it stands; unknown keys are ignored."""
        self.handing_over.discard(key)
        self.begun.discard(key)
        self.scorer.remove(key)
        self.waiting_for_room = deque(pair for pair in self.waiting_for_room if pair[0].request_id != key)
        if transfer := self.in_transfer.pop(key, None):
            transfer.cancel()
            if not transfer.final:  # its pages stay taken, or late bytes would end up in another request's pages
                self.given_up.append((transfer, self.scheduler.give_up(self.engine.requests.pop(key))))
        self.transport.abort(key)
        self.engine.abort(key)


def collect(mailbox: "SimpleQueue[Mail | None]", seconds: float) -> list[Mail | None]:
    """Return all mail in the mailbox; if there is none, wait up to `seconds` for the first."""
    mail = []
    try:
        mail.append(mailbox.get(timeout=seconds) if seconds else mailbox.get_nowait())
        while True:
            mail.append(mailbox.get_nowait())
    except Empty:
        return mail

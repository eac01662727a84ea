"""NEW in 08: a worker at its station: it takes orders, does a step for each call, and reports what has become of them.

A prefill worker computes the prompt and samples the first token. Then the request is parked: it holds its pages, and
they change no more, until the router says that they are needed no longer. A decode worker first reserves pages, then
fetches the contents into them, and goes on with the second token. So nothing is ever on the way that has no place to go
to. And nobody waits for each other in a circle: the prefill worker's pages wait for room on a decode worker, and a
decode worker gets room whenever one of its own requests ends, for which it needs nobody.
"""

import secrets
import socket
import time
from collections import deque
from collections.abc import Sequence as List

from common.request import Request

from .orders import Arrival, Gain, Hello, Order, Report
from .transport import KVTransport, Transfer, TransferFailed

PATIENCE_SECONDS = 0.02  # how long a call waits for pages if it has nothing else to do
AT_ONCE_SECONDS = 0.003  # the pages of a short prompt are here before the others' step would have begun: it joins them


class Station:
    """One worker as the router sees it. `worker` is the stage's Worker; all methods are for one thread."""

    def __init__(self, worker, transport: KVTransport):
        self.worker, self.transport = worker, transport
        self.scheduler = worker.scheduler
        transport.register(worker.pools)
        self.incarnation = secrets.token_hex(8)
        self.told: deque[Order] = deque()  # filled by another thread
        self.taken = -1  # the number of the newest order
        self.handing_over: set[str] = set()
        self.expected: deque[tuple[Request, object]] = deque()  # with tickets: they wait for room
        self.arriving: dict[str, Transfer] = {}  # they have room, and wait for their pages

    def hello(self) -> Hello:
        allocator = self.scheduler.allocator
        sizes = allocator.num_pages, allocator.page_size, self.scheduler.max_running
        return Hello(self.incarnation, socket.gethostname(), time.perf_counter(), *sizes, self.worker.why)

    def tell(self, orders: List[Order]) -> None:
        """Orders that will come with a call behind those that wait: the next one takes them already. From any thread.

        With the call they come again. A word that is late, and comes after the call, changes nothing.
        """
        self.told.extend(orders)

    def work(self, orders: List[Order]) -> Report:
        """Takes the orders, lets in what has arrived, and does one step for everybody who can get on."""
        report = Report()
        self._take(orders)
        self._receive(report)
        if self.scheduler.running or self.scheduler.waiting:
            self._step(report)
        elif self.arriving:
            next(iter(self.arriving.values())).wait(PATIENCE_SECONDS)
        return self._complete(report)

    def drop(self, orders: List[Order], key: str) -> Report:
        """Takes the orders, then lets go of one request, wherever it is, and of its pages; unknown ones are ignored."""
        self._take(orders)
        self._let_go(key)
        return self._complete(Report())

    def check(self) -> None:
        """Raises AssertionError if the books do not balance, or somebody is parked whom nobody knows."""
        self.worker.check()
        assert set(self.scheduler.parked) <= set(self.worker.requests)
        assert set(self.arriving) <= set(self.scheduler.parked), "pages are on their way to no place"
        assert self.handing_over <= set(self.worker.requests)

    def _take(self, orders: List[Order]) -> None:
        told = [self.told.popleft() for _ in range(len(self.told))]
        for order in sorted([*told, *orders], key=lambda order: order.number):
            if order.number > self.taken:
                self.taken = order.number
                self._begin(order)

    def _begin(self, order: Order) -> None:
        request = order.request(self.worker.eos_token_ids)
        if order.ticket is not None:
            self.expected.append((request, order.ticket))
            return
        self.worker.accept(request)
        self.worker.requests[order.key] = request
        if order.hand_over:
            self.handing_over.add(order.key)

    def _receive(self, report: Report) -> None:
        """Pages that have come belong to requests that can run; those for whom there is room now are sent for."""
        self._let_in(report)
        if started := self._send_for():
            started[-1].wait(AT_ONCE_SECONDS)
            self._let_in(report)

    def _let_in(self, report: Report) -> None:
        """Requests whose pages have come."""
        for key, transfer in list(self.arriving.items()):
            try:
                if not transfer.done():
                    continue
            except TransferFailed:
                self._let_go(key)
                report.lost.append(key)
                continue
            del self.arriving[key]
            self.scheduler.resume(self.worker.requests[key])
            report.arrived.append(Arrival(key, transfer.bytes, transfer.seconds))

    def _send_for(self) -> list[Transfer]:
        """Starts the transfers of those for whom there is room."""
        started = []
        while self.expected and (sequence := self.scheduler.reserve(self.expected[0][0])) is not None:
            request, ticket = self.expected.popleft()
            self.worker.requests[request.request_id] = request
            table, count = sequence.page_table, self.scheduler.allocator.pages_for(request.num_tokens - 1)
            cached = len(table.path)  # these are in this worker's own tree already, and need not travel
            started.append(self.transport.receive(ticket, cached, table.pages[cached:count]))
            self.arriving[request.request_id] = started[-1]
        return started

    def _step(self, report: Report) -> None:
        known = {key: len(request.token_ids) for key, request in self.worker.requests.items()}
        for request in self.worker.step():
            key, first = request.request_id, known[request.request_id]
            new = request.token_ids[first:], request.logprobs[first:]
            report.gains.append(Gain(key, first, *new, request.cached_tokens, request.finished))
            if request.finished:
                self._forget(key)
            elif key in self.handing_over:
                sequence = self.scheduler.park(request)
                self.worker.read_ahead(sequence)
                pages = self.scheduler.allocator.pages_for(sequence.computed)
                report.ready.append((key, self.transport.send(key, sequence.page_table.pages[:pages])))
        if self.worker.trace[-1].works:
            report.record = self.worker.trace[-1]

    def _let_go(self, key: str) -> None:
        self._forget(key)
        self.worker.abort(key)

    def _forget(self, key: str) -> None:
        self.handing_over.discard(key)
        self.expected = deque(pair for pair in self.expected if pair[0].request_id != key)
        if transfer := self.arriving.pop(key, None):
            transfer.cancel()
        self.transport.abort(key)

    def _complete(self, report: Report) -> Report:
        report.available = self.scheduler.allocator.available
        report.stats = self.worker.stats()
        return report

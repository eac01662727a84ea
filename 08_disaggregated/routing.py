"""NEW in 08: which worker gets a request. The router decides by what it has sent, and by what it was last told.

A prompt goes to the worker that will have computed it first, counted in tokens:

    cost = tokens in that worker's queue + tokens of the prompt that it has not cached + requests there

So a cached prefix attracts a request only as long as the queue in front of it is shorter than what the prefix saves,
and a request that decodes costs a token of every step. (NVIDIA Dynamo's router weighs prompt work and decode load in
such a formula.) A request that only decodes goes to the worker with the most free pages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.request import Request
from common.trace import StepRecord, Work

from .messages import Hello, Order, Report
from .prefix_tree import Node, PrefixTree

# The phases of a flight; in brackets, the workers that hold something of it.
QUEUED = "queued"  # [none]
PREFILL = "prefill"  # [its prefill worker]
READY = "ready"  # [its prefill worker] waits for room on a decode worker
TRANSFER = "transfer"  # [both]
DECODE = "decode"  # [its decode worker], which also computes the prompt if there is no handoff

MAX_BEGUN = 16  # orders that a worker may have begun since its last report


class SeenPages:
    """What one worker has probably cached: the pages of the prompts it was sent, as many as it has room for.

    A wrong guess costs time, never a wrong token: the worker evicts in its own order.
    """

    def __init__(self, page_size: int, most: int):
        self.page_size, self.most = page_size, most
        self.tree = PrefixTree()

    def longest(self, tokens: list[int]) -> int:
        """Return how many tokens the longest known prefix has."""
        node: Node | None = self.tree.root
        for start in range(0, len(tokens), self.page_size):
            node = node.children.get(tuple(tokens[start : start + self.page_size]))
            if node is None:
                return start
        return len(tokens)

    def add(self, tokens: list[int]) -> None:
        """Note that the full pages of these tokens are being computed."""
        path: list[Node] = []
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            page = tokens[start : start + self.page_size]
            path.append(self.tree.follow(path, page) or self.tree.insert(path, page, -1))
        self.tree.release(path)
        while self.tree.size > self.most:
            self.tree.evict()


@dataclass(eq=False)
class Flight:
    """A request on its way through the workers. Each attempt has a key of its own."""

    request: Request
    key: str = ""
    since: float = 0.0  # when the phase began, on the clock of `time.monotonic`
    phase: str = QUEUED
    prefill: "Handle | None" = None
    decode: "Handle | None" = None
    ticket: object = None
    failed_transfers: int = 0
    deaths: int = 0  # workers that have died under it since its last token

    @property
    def holders(self) -> "list[Handle]":
        """Return the workers that hold something of it."""
        return [handle for handle in (self.prefill, self.decode) if handle is not None]


@dataclass(eq=False)
class Handle:
    """The router's notes about one life of a worker.

    Sums are updated with every change: reading one costs the same with 1,000 flights.
    """

    number: int
    role: str  # "replica", "prefill" or "decode"
    hello: Hello | None = None  # None: it is down
    clock_offset: float = 0.0  # seconds to add to the worker's clock
    available: int = 0  # free pages, by its last report
    stats: dict[str, float] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)  # to go with the next mail
    drops: list[str] = field(default_factory=list)
    sent: int = 0  # number of the last mail
    probe: bool = False  # whether the next mail goes even if it is empty
    held: dict[str, int] = field(default_factory=dict)  # key of an order -> number of the mail it went with
    tasks: dict[str, int] = field(default_factory=dict)  # key -> tokens to compute, or pages to reserve
    load: int = 0  # sum of the tasks
    computing: set[str] = field(default_factory=set)  # keys, in its last step

    def __post_init__(self):
        if self.hello is not None:
            self.available = self.hello.num_pages
            self.seen = SeenPages(self.hello.page_size, self.hello.num_pages + self.hello.host_pages)

    @property
    def up(self) -> bool:
        """Return whether the worker has started and is not lost."""
        return self.hello is not None

    @property
    def open(self) -> bool:
        """Return whether one more request may go there."""
        return self.hello is not None and len(self.held) < self.hello.max_running

    def order(self, order: Order, task: int) -> None:
        """Put an order into the next mail. task: tokens to compute, or pages to reserve."""
        self.orders.append(order)
        self.held[order.key] = self.sent + 1
        self.tasks[order.key] = task
        self.load += task

    def task_done(self, key: str) -> None:
        """Take the task of an order off the load."""
        self.load -= self.tasks.pop(key, 0)

    def forget(self, key: str) -> None:
        """Note that the worker no longer has this order."""
        self.task_done(key)
        self.held.pop(key, None)

    def drop(self, key: str) -> None:
        """Tell the worker to let go of this order. One for the same pages may follow, also in the same mail."""
        self.forget(key)
        self.orders = [order for order in self.orders if order.key != key]
        self.drops.append(key)

    def note(self, report: Report) -> None:
        """Note the free pages, the last step and the stats that a report brings."""
        if report.available is not None:
            self.available = report.available
        if report.record:
            self.computing = {work.request_id for work in report.record.works}
        if report.heartbeat:
            self.stats = report.heartbeat.stats

    def worked_on(self) -> list[str]:
        """Return the keys that it may have worked on: those of its last step, and the first of those that wait."""
        waiting = [key for key in self.held if key not in self.computing]
        return [key for key in self.held if key in self.computing] + waiting[:MAX_BEGUN]

    def in_our_time(self, record: StepRecord, index: int, flights: Mapping[str, Flight]) -> StepRecord:
        """Return a step of this worker for the router's trace: by the router's clock, under the requests' own ids.

        All steps share the request's own string: the copies that reports bring would take 20 MB in a full trace.
        """

        def name(key: str) -> str:
            return flights[key].request.request_id if key in flights else key.rpartition("#")[0]

        start, end = record.start + self.clock_offset, record.end + self.clock_offset
        works = [Work(name(one.request_id), one.phase, one.tokens) for one in record.works]
        return StepRecord(index, start, end, works, record.counters | {"worker": self.number})


def choose_for_prompt(handles: Iterable[Handle], tokens: list[int]) -> tuple[Handle, int] | None:
    """Return the worker with the lowest cost, and how many tokens it has to compute; None if no worker is open."""
    each = [(handle, len(tokens) - handle.seen.longest(tokens)) for handle in handles if handle.open]
    return min(each, key=lambda pair: pair[0].load + pair[1] + len(pair[0].held), default=None)


def choose_for_decode(handles: Iterable[Handle], tokens: int) -> tuple[Handle, int] | None:
    """Return the worker with the most free pages, and how many the request takes; None if none has room for it now.

    A worker has room for pages for all its tokens and one more for each request there, as its scheduler demands.
    """
    fitting = []
    for handle in handles:
        if handle.open:
            needed, free = -(-tokens // handle.hello.page_size), handle.available - handle.load
            if needed + len(handle.held) <= free:
                fitting.append((free, handle, needed))
    return max(fitting, key=lambda one: one[0])[1:] if fitting else None


def add_up(each: Iterable[tuple[str, dict[str, float]]]) -> dict[str, float]:
    """Return the sum of all workers' stats, given with their roles. What decode workers look up does not count."""
    total: dict[str, float] = {}
    for role, stats in each:
        for name, value in stats.items():
            if role != "decode" or not name.startswith("prefix_"):
                total[name] = total.get(name, 0) + value
    return total

"""NEW in 08: which worker gets a request. The router decides by what it has sent where, and by what it was told last.

Prefill goes where the longest beginning of the prompt lies already, and among equals to the worker with the fewest
tokens still to compute. Decode goes where the most pages are free.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.request import Request
from common.trace import StepRecord, Work

from .orders import Hello, Order
from .prefix_tree import Node, PrefixTree

# Where a request stands; what is in brackets holds something of it.
QUEUED = "queued"  # [nobody]
PREFILL = "prefill"  # [its prefill worker]
READY = "ready"  # [its prefill worker] waits for room on a decode worker
TRANSFER = "transfer"  # [both]
DECODE = "decode"  # [its decode worker]


class SeenPages:
    """What one prefill worker has probably cached: pages of the prompts that it was sent, at most as many as it has.

    Probably, since the worker forgets by its own order. A wrong guess costs time, and never a wrong token.
    """

    def __init__(self, page_size: int, most: int):
        self.page_size, self.most = page_size, most
        self.tree = PrefixTree()

    def longest(self, tokens: list[int]) -> int:
        """Tokens of the longest beginning that is there."""
        node: Node | None = self.tree.root
        for start in range(0, len(tokens), self.page_size):
            node = node.children.get(tuple(tokens[start : start + self.page_size]))
            if node is None:
                return start
        return len(tokens)

    def add(self, tokens: list[int]) -> None:
        """These tokens are being computed; their full pages will be there."""
        path: list[Node] = []
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            page = tokens[start : start + self.page_size]
            path.append(self.tree.follow(path, page) or self.tree.insert(path, page, -1))
        self.tree.release(path)
        while self.tree.size > self.most:
            self.tree.evict()


@dataclass(eq=False)
class Handle:
    """The router's notes about one worker."""

    number: int
    role: str  # "prefill" or "decode"
    up: bool = False
    hello: Hello | None = None
    clock_offset: float = 0.0  # to add to its clock's seconds
    orders: list[Order] = field(default_factory=list)  # to go with the next call
    told: int = -1  # the number of the newest one of which the worker was told before that
    calls: deque[str] = field(default_factory=deque)  # methods, open ones
    heard: float = 0.0  # when it last answered, or was called after a silence
    not_before: float = 0.0  # when it is to be greeted again
    tasks: dict[str, int] = field(default_factory=dict)  # key -> tokens to compute, or pages to find room for
    seen: SeenPages | None = None
    available: int = 0  # pages, by its last report
    stats: dict[str, float] = field(default_factory=dict)

    def greet(self, hello: Hello) -> None:
        """It is there, new and empty."""
        self.up, self.hello, self.available = True, hello, hello.num_pages
        self.seen = SeenPages(hello.page_size, hello.num_pages)

    def take_orders(self) -> list[Order]:
        """Those that go with this call."""
        orders, self.orders = self.orders, []
        return orders

    def as_seen_here(self, record: StepRecord, index: int) -> StepRecord:
        """A step of this worker for the router's trace: by the router's clock, and under the requests' own ids."""
        start, end = record.start + self.clock_offset, record.end + self.clock_offset
        works = [Work(work.request_id.rpartition("#")[0], work.phase, work.tokens) for work in record.works]
        return StepRecord(index, start, end, works, record.counters | {"worker": self.number})

    def reset(self) -> None:
        """It is gone, with everything."""
        self.up, self.stats = False, {}
        self.orders.clear()
        self.calls.clear()
        self.tasks.clear()


@dataclass(eq=False)
class Flight:
    """A request on its way through the workers. A new attempt has a new key."""

    request: Request
    key: str
    since: float  # when it began to wait
    phase: str = QUEUED
    prefill: Handle | None = None
    decode: Handle | None = None
    ticket: object = None
    attempts: int = 1


def choose_prefill(handles: Iterable[Handle], tokens: list[int]) -> tuple[Handle, int] | None:
    """The worker that computes these tokens, and how many of them it probably has; None if no worker is up."""
    up = [(handle, handle.seen.longest(tokens)) for handle in handles if handle.up]
    return max(up, key=lambda pair: (pair[1], -sum(pair[0].tasks.values())), default=None)


def choose_decode(handles: Iterable[Handle], tokens: int, running: dict[Handle, int]) -> tuple[Handle, int] | None:
    """The worker with the most free pages, and how many the request takes; None if no worker has room for it now.

    A worker has room for pages for all its tokens and one more for everybody who runs there, the rule of its scheduler.
    running: how many requests each has.
    """
    fitting = []
    for handle in handles:
        if handle.up and running.get(handle, 0) < handle.hello.max_running:
            needed = -(-tokens // handle.hello.page_size)
            free = handle.available - sum(handle.tasks.values())
            if needed + running.get(handle, 0) <= free:
                fitting.append((free, handle, needed))
    return max(fitting, key=lambda one: one[0])[1:] if fitting else None


def add_up(each: Iterable[tuple[str, dict[str, float]]]) -> dict[str, float]:
    """The stats of all workers, given with their roles. What decode workers look up again does not count."""
    total: dict[str, float] = {}
    for role, stats in each:
        for name, value in stats.items():
            if role == "prefill" or not name.startswith("prefix_"):
                total[name] = total.get(name, 0) + value
    return total

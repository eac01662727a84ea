"""Stage 08's router against workers that die and hang at any moment, and messages that are lost, repeated and delayed:
no request waits forever, and no token is missing or comes twice. All workers are without a model."""

import time
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.stages import load_stage_module
from tests.helpers.engine_options import endless
from tests.helpers.faulty_fleet import (
    WorkerWithoutModel,
    fingerprint,
    fleet_without_model,
    kv_transport,
    messages,
    next_token,
    scheduler_module,
    worker_module,
)
from tests.helpers.scheduler_machine import machine_test, make_request, write

router_module, routing, speculation = (load_stage_module("08", name) for name in ("router", "routing", "speculation"))

ACCIDENTS = ["lose", "repeat", "delay"]


def undisturbed(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class RouterMachine(RuleBasedStateMachine):
    """Two prefill and two decode workers with too little memory. Turns, deaths, aborts and accidents, in any order.

    Its workers have stage 08's scheduler and pages, and no model.
    """

    workers = {"prefill": 2, "decode": 2}

    def __init__(self):
        super().__init__()
        self.usual, router_module.MAX_DEATHS = router_module.MAX_DEATHS, 10**6
        self.router, self.fleet = fleet_without_model(**self.workers)
        self.decode = [number for number, handle in enumerate(self.router.handles) if handle.role != "prefill"]
        self.fleet.at_once = False
        self.open = {}
        self.cached = {}  # by request: its cached tokens, as first reported
        self.disturbed = set()  # workers whose messages were lost, repeated or delayed

    @initialize(calm=st.booleans())
    def begin(self, calm):
        self.calm = calm

    @property
    def in_transfer(self) -> list:
        return [flight for flight in self.router.flights.values() if flight.phase == routing.TRANSFER]

    def pick(self, choice: int, several, delicate: list):
        """Return one of several, or, more often, one of those for which the moment is delicate."""
        return [*several, *delicate * 4][choice % (len(several) + 4 * len(delicate))]

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10), output=st.integers(1, 8))
    def add(self, prompt, output):
        request = self.router.add(prompt, endless(output))
        self.open[request] = undisturbed(prompt, output)

    @rule(choice=st.integers(0, 100))
    def abort(self, choice):
        if self.open:
            by_id = sorted(self.open, key=lambda request: request.request_id)
            request = self.pick(choice, by_id, [flight.request for flight in self.in_transfer])
            self.router.abort(request.request_id)
            assert request.token_ids == self.open.pop(request)[: len(request.token_ids)]

    @rule(number=st.integers(0, 3), turns=st.integers(1, 3), heartbeat=st.booleans())
    def turn(self, number, turns, heartbeat):
        for _ in range(turns):
            self.fleet.turn(number, heartbeat)

    @precondition(lambda self: self.open and not self.calm)
    @rule(number=st.integers(0, 3), down=st.booleans(), place=st.integers(0, 3), what=st.sampled_from(ACCIDENTS))
    def accident(self, number, down, place, what):
        """To a message from the router or from a worker, which first has the opportunity to send one."""
        if down:
            self.step()
        else:
            self.fleet.turn(number)
        self.fleet.tamper((self.fleet.mail if down else self.fleet.reports)[number], what, place)
        self.disturbed.add(number)

    @precondition(lambda self: self.open and not self.calm)
    @rule(choice=st.integers(0, 100), returns=st.booleans())
    def die(self, choice, returns):
        number = self.pick(choice, range(4), [flight.prefill.number for flight in self.in_transfer if flight.prefill])
        self.fleet.die(number, returns)
        self.disturbed.discard(number)

    @precondition(lambda self: self.open and not self.calm)
    @rule(number=st.integers(2, 3))
    def break_the_data_path(self, number):
        """No page arrives there any more: after a few attempts one worker does the whole job."""
        self.fleet.workers[number].transport.broken = True

    @initialize(small=st.booleans())
    def set_budgets(self, small):
        """small: that of the first workers, so that prompts run in pieces."""
        for worker in self.fleet.workers if small else ():
            worker.scheduler.token_budget = worker.scheduler.max_running

    @rule(rounds=st.integers(1, 3))
    def go_on(self, rounds):
        """Let all workers and the router take turns until pages travel: with single workers that is very rare."""
        for _ in range(rounds):
            for number in range(4):
                self.fleet.turn(number)
            self.step()
            if self.in_transfer:
                break

    @rule()
    def step(self):
        before = {request: len(request.token_ids) for request in self.open}
        for request in self.router.step():
            if request in self.open:
                assert len(request.token_ids) > before[request] or request.finished
                assert self.cached.setdefault(request, request.cached_tokens) == request.cached_tokens
        for request in [request for request in self.open if request.finished]:
            assert request.token_ids == self.open.pop(request) and request.finish_reason == "length"

    @invariant()
    def the_books_balance(self):
        self.router.check()
        assert {request.request_id for request in self.open} <= set(self.router.requests)
        for request, tokens in self.open.items():
            assert request.token_ids == tokens[: len(request.token_ids)]
        for handle in self.router.handles:
            assert len(handle.held) <= 4, "more than a worker runs: the rest should go where there is room first"

    @invariant()
    def without_accidents_nothing_is_run_twice(self):
        router = self.router
        assert not self.calm or (router.resumed, router.lost, router.failed_transfers) == (0, 0, 0)

    @invariant()
    def a_page_is_counted_once(self):
        """Where all has been said, the router knows what each decode worker has free: pages in transfer are not."""
        for handle in [handle for handle in self.router.handles if handle.role == "decode"]:
            number, scheduler = handle.number, self.fleet.workers[handle.number].scheduler
            unsaid = self.fleet.mail[number] or self.fleet.reports[number] or handle.orders or handle.drops
            if handle.up and not unsaid and number not in self.disturbed:
                placed = scheduler.running.keys() | scheduler.reserved.keys()
                to_come = sum(task for key, task in handle.tasks.items() if key not in placed)
                assert handle.available - handle.load == scheduler.allocator.available - to_come

    def teardown(self):
        self.fleet.at_once = self.fleet.heartbeats = True
        if len(self.fleet.dead) == 4:  # one of either kind would do
            self.fleet.revive(0)
        for _ in range(2000):
            if not self.open:
                break
            self.step()
        router_module.MAX_DEATHS = self.usual
        assert not self.open, "a request waits forever"
        for _ in range(5):  # for orders and drops that were lost, and for transfers that were given up
            self.router.step()
        for handle, worker in zip(self.router.handles, self.fleet.workers, strict=True):
            assert handle.up == (handle.number not in self.fleet.dead)
            allocator = worker.scheduler.allocator
            assert len(allocator.free) + len(allocator.tree.unused) == allocator.num_pages, "a page is lost"
            assert not worker.held and not worker.transport.offers and not worker.handing_over


class ReplicaMachine(RouterMachine):
    """The same with replicas."""

    workers = {"prefill": 0, "decode": 0, "replicas": 4}


TestRouter = machine_test(RouterMachine, 350, 60)
TestReplicas = machine_test(ReplicaMachine, 60, 60)


def until(router, condition) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        router.step()
        router.check()
        assert time.monotonic() < give_up, [flight.phase for flight in router.flights.values()]


# ---- Requests under which workers die, or for which there is no room ----


def test_replicas_share_prompts_by_what_they_have_cached_and_have_to_do():
    """Requests that begin alike go to one replica, others to the one with less to do; each has one job."""
    router, fleet = fleet_without_model(0, 0, replicas=2, pages=100)
    router.generate([[1] * 8], endless(4))
    alike, other = router.add([1] * 8 + [0], endless(4)), router.add([0] * 8, endless(4))
    router.step()
    assert [requests_worker(router, request) for request in (alike, other)] == [0, 1]
    until(router, lambda: not router.has_unfinished)
    assert other.token_ids == undisturbed([0] * 8, 4) and router.stats()["handoffs"] == 0


def test_a_request_that_gets_on_does_not_end_however_many_workers_die_under_it():
    """A request that has gained a token since the last death is not to blame."""
    router, fleet = fleet_without_model(0, 0, replicas=2, pages=100)
    requests = [router.add([n, 2, 3], endless(30)) for n in range(2)]
    for _ in range(2 * router_module.MAX_DEATHS):
        gained = len(requests[0].token_ids)
        until(router, lambda gained=gained: len(requests[0].token_ids) > gained)
        fleet.die(requests_worker(router, requests[0]))
    until(router, lambda: not router.has_unfinished)
    assert [request.token_ids for request in requests] == [undisturbed([n, 2, 3], 30) for n in range(2)]


def requests_worker(router, request) -> int:
    return router.flights[router.keys[request.request_id]].holders[0].number


def test_requests_that_wait_for_room_are_served_in_order():
    """A large one is not passed forever by small ones for which there is room."""
    router, _ = fleet_without_model(1, 1, pages=14)
    first = [router.add([n, 1], endless(6)) for n in range(3)]
    large = router.add([1] * 16, endless(8))
    small = [router.add([n, 0], endless(6)) for n in range(3, 30)]
    ended = []
    while router.has_unfinished:
        ended += [request for request in router.step() if request.finished]
    assert ended.index(large) <= len(first) + 4, "at most those that came in the same steps"
    assert len(ended) == len(first) + 1 + len(small)


def test_a_worker_that_comes_back_with_less_memory_is_not_killed_by_what_never_fits():
    router, fleet = fleet_without_model(1, 1)
    long = router.add([1] * 4, endless(18))
    fleet.makers[1] = lambda: WorkerWithoutModel(5)
    fleet.die(1)
    until(router, lambda: long.finished)
    assert router.max_model_len == 10 and long.finish_reason in ("length", "error")
    short = router.add([1, 2], endless(4))
    until(router, lambda: short.finished)
    assert short.token_ids == undisturbed([1, 2], 4)


# ---- A worker by itself ----


def test_a_reservation_leaves_a_page_to_grow_for_each_other():
    scheduler = scheduler_module.Scheduler(8, 8, 14, 4, speculation.Speculation(0))
    taken = [scheduler.reserve(make_request(name, [1] * 8, 40)) is not None for name in "abcdef"]
    assert taken == [True] * 5 + [False]


def test_a_pool_full_of_parked_pages_does_not_spin():
    """A prefill worker with nothing to compute has nothing to report, and its loop sleeps until there is mail."""
    router, fleet = fleet_without_model(1, 1, pages=6)
    for n in range(6):
        router.add([n, 1, 2, 3], endless(6))
    for number in range(16):
        fleet.hanging = {1} if number > 5 else set()
        router.step()
    reports = [fleet.workers[0].turn() for _ in range(5)]
    assert fleet.workers[0].scheduler.waiting and not any(reports)


def test_an_idle_worker_wakes_when_its_pages_have_arrived():
    """Its loop sleeps meanwhile. What ends then is told to it in its own mailbox, from whatever thread."""
    arrived = []

    class Mailbox(SimpleQueue):
        def get(self, timeout):
            arrived.append(True)
            transport.on_done()
            assert not self.empty(), "it sleeps on, though its pages are here"
            return self.get_nowait()

    class Transport(kv_transport.LocalTransport):
        def receive(self, ticket, skip, pages, on_done):
            self.on_done = on_done
            write(engine.memory.view(-1), engine.scheduler.reserved["a#0"].page_table, [1, 2, 3], 0, fingerprint)
            return SimpleNamespace(done=lambda: bool(arrived), wait=float, final=True, bytes=0, seconds=0.0)

    engine, transport, mailbox = WorkerWithoutModel(12), Transport(), Mailbox()
    running = worker_module.Worker(engine, transport, partial(mailbox.put, worker_module.LOOK)).run(mailbox)
    assert isinstance(next(running), messages.Hello)
    order = messages.Order("a#0", [1, 2, 3], [next_token([1, 2, 3])], endless(6), 0, 6, ticket="pages")
    mailbox.put(messages.Mail(1, [order], []))
    assert not next(running).arrived and [arrival.key for arrival in next(running).arrived] == ["a#0"]

"""Stage 08's router against workers that die and hang at any moment: no request is lost, and no token comes twice."""

import time

from faulty_fleet import fleet_without_model, next_token, router_module
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.sampling import SamplingParams
from common.stages import load_stage_module

routing = load_stage_module("08", "routing")


def endless(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def undisturbed(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class RouterMachine(RuleBasedStateMachine):
    """Two prefill and two decode workers with too little memory. Calls, deaths and aborts come in any order."""

    def __init__(self):
        super().__init__()
        self.router, self.fleet = fleet_without_model(2, 2)
        self.fleet.at_once = False
        self.open = {}
        self.done = []
        self.usual = router_module.AGAIN_SECONDS, router_module.MOST_ATTEMPTS
        router_module.AGAIN_SECONDS, router_module.MOST_ATTEMPTS = 0.0, 10**6

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10), output=st.integers(1, 8))
    def add(self, prompt, output):
        request = self.router.add(prompt, endless(output))
        self.open[request] = undisturbed(prompt, output)

    @rule(choice=st.integers(0, 100))
    def abort(self, choice):
        if self.open:
            request = sorted(self.open, key=lambda request: request.request_id)[choice % len(self.open)]
            self.router.abort(request.request_id)
            assert request.token_ids == self.open.pop(request)[: len(request.token_ids)]

    @rule(number=st.integers(0, 3), calls=st.integers(1, 3))
    def work(self, number, calls):
        for _ in range(calls):
            self.fleet.carry_out(number)

    @rule(number=st.integers(0, 3))
    def hear(self, number):
        """Before the call that brings it too, or after."""
        self.fleet.hear(number)

    @rule(number=st.integers(0, 3))
    def die(self, number):
        self.fleet.die(number)

    @rule(number=st.integers(0, 3))
    def hang_until_noticed(self, number):
        if self.router.handles[number].calls:
            self.router.handles[number].heard = -1e12

    @rule()
    def step(self):
        before = {request: len(request.token_ids) for request in self.open}
        for request in self.router.step():
            if request in self.open:
                assert len(request.token_ids) > before[request] or request.finished
        for request in [request for request in self.open if request.finished]:
            assert request.token_ids == self.open.pop(request) and request.finish_reason == "length"

    @invariant()
    def the_books_balance(self):
        self.router.check()
        assert {request.request_id for request in self.open} <= set(self.router.requests)
        for request, tokens in self.open.items():
            assert request.token_ids == tokens[: len(request.token_ids)]

    def teardown(self):
        self.fleet.at_once = True
        for _ in range(2000):
            if not self.open:
                break
            self.step()
        router_module.AGAIN_SECONDS, router_module.MOST_ATTEMPTS = self.usual
        assert not self.open, "somebody waits for ever"
        self.router.step()  # hears the workers out
        for station in self.fleet.stations:
            allocator = station.scheduler.allocator
            assert len(allocator.free) + len(allocator.tree.unused) == allocator.num_pages, "a page is lost"
            assert not station.worker.requests and not station.transport.offers and not station.handing_over


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_requests_wait_for_workers_up_to_a_limit():
    router, fleet = fleet_without_model(1, 1, wait_seconds=0.2)
    request, short = router.add([1, 2, 3], endless(5)), router.add([1], endless(1))
    fleet.die(1, returns=False)
    give_up = time.monotonic() + 5
    while router.has_unfinished and time.monotonic() < give_up:
        changed = router.step()
    assert changed == [request] and request.finish_reason == "error" and len(request.token_ids) == 1
    assert short.finish_reason == "length", "it needed no decode worker"
    assert router.step() == [] and router.stats()["kv_tokens_used"] == 0


def test_who_comes_back_in_time_is_not_missed():
    router, fleet = fleet_without_model(1, 1, wait_seconds=30)
    request = router.add([1, 2, 3], endless(5))
    fleet.die(1, returns=False)
    for _ in range(5):
        router.step()
    assert not request.finished and router.stats()["workers_up"] == 1
    fleet.dead.clear()
    give_up = time.monotonic() + 5
    while router.has_unfinished and time.monotonic() < give_up:
        router.step()
    assert request.token_ids == undisturbed([1, 2, 3], 5)


def test_a_worker_that_hangs_is_noticed_by_the_deadline():
    router, fleet = fleet_without_model(1, 2, hang_seconds=0.1)
    requests = [router.add([n, 2, 3], endless(6)) for n in range(4)]
    for _ in range(3):
        router.step()
    fleet.hanging = {1, 2}
    give_up = time.monotonic() + 5
    while router.has_unfinished and time.monotonic() < give_up:
        router.step()
    assert [request.token_ids for request in requests] == [undisturbed([n, 2, 3], 6) for n in range(4)]
    assert router.stats()["workers_lost"] == 2


def test_a_request_that_kills_workers_is_given_up(monkeypatch):
    monkeypatch.setattr(router_module, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(router_module, "MOST_ATTEMPTS", 3)
    router, fleet = fleet_without_model(1, 1)
    request = router.add([1, 2, 3], endless(20))
    for _ in range(200):
        if request.finished:
            break
        router.step()
        if router.flights and next(iter(router.flights.values())).phase == routing.DECODE:
            fleet.die(1)
    assert request.finish_reason == "error" and router.lost == router_module.MOST_ATTEMPTS


# ---- Routing ----


def handle(number: int, **attributes):
    one = routing.Handle(number, "any")
    one.greet(load_stage_module("08", "orders").Hello("", "", 0.0, 100, 4, 8, ""))
    for name, value in attributes.items():
        setattr(one, name, value)
    return one


def test_prefill_goes_to_the_longest_prefix_then_to_the_least_work():
    a, b, c = handle(0), handle(1, tasks={"x": 50}), handle(2, tasks={"y": 5})
    tokens = list(range(20))
    assert routing.choose_prefill([a, b, c], tokens) == (a, 0)
    b.seen.add(tokens[:9])
    c.seen.add(tokens[:4])
    assert routing.choose_prefill([a, b, c], tokens) == (b, 8), "two pages of four are full, and that beats its queue"
    assert routing.choose_prefill([a, b, c], [7, *tokens]) == (a, 0), "the same pages elsewhere in a text are others"
    b.up = False
    assert routing.choose_prefill([a, b, c], tokens) == (c, 4)
    assert routing.choose_prefill([], tokens) is None


def test_decode_goes_where_most_pages_are_free():
    a, b = handle(0, available=30), handle(1, available=50)
    assert routing.choose_decode([a, b], 10, {}) == (b, 3)
    b.tasks["promised"] = 25
    assert routing.choose_decode([a, b], 10, {}) == (a, 3)
    assert routing.choose_decode([a, b], 100, {}) == (a, 25)
    assert routing.choose_decode([a, b], 100, {a: 6, b: 6}) is None, "nobody may be thrown out for it at once"
    assert routing.choose_decode([a, b], 1, {a: 8, b: 8}) is None


def test_what_a_worker_has_seen_is_bounded():
    seen = routing.SeenPages(2, 4)
    for first in range(10):
        seen.add([first, 1, 2, 3])
    assert seen.tree.size <= 4 and seen.longest([9, 1, 2, 3]) == 4 and seen.longest([0, 1]) == 0

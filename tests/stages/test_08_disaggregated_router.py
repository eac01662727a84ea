"""Stage 08's router against workers that die and hang at any moment, and messages that are lost, repeated and delayed:
no request waits for ever, and no token is missing or comes twice."""

import re
import time
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.stages import load_stage_module
from tests.helpers.engine_options import endless
from tests.helpers.faulty_fleet import fleet_without_model, messages, next_token

routing, recovery_module = (load_stage_module("08", name) for name in ("routing", "recovery"))


ACCIDENTS = ["lose", "repeat", "delay"]


def undisturbed(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class RouterMachine(RuleBasedStateMachine):
    """Two prefill and two decode workers with too little memory. Turns, deaths, aborts and accidents, in any order.

    It shares nothing with SchedulerMachine, since a router schedules no tokens.
    """

    def __init__(self):
        super().__init__()
        self.usual = recovery_module.MOST_DEATHS, recovery_module.PROGRESS_TOKENS
        recovery_module.MOST_DEATHS, recovery_module.PROGRESS_TOKENS = 10**6, 2
        self.router, self.fleet = fleet_without_model(2, 2)
        self.fleet.at_once = False
        self.open = {}
        self.disturbed = set()  # workers whose messages were lost, repeated or delayed

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

    @rule(number=st.integers(0, 3), turns=st.integers(1, 3), heartbeat=st.booleans())
    def turn(self, number, turns, heartbeat):
        for _ in range(turns):
            self.fleet.turn(number, heartbeat)

    @rule(number=st.integers(0, 3), down=st.booleans(), place=st.integers(0, 3), what=st.sampled_from(ACCIDENTS))
    def accident(self, number, down, place, what):
        self.fleet.tamper((self.fleet.mail if down else self.fleet.reports)[number], what, place)
        self.disturbed.add(number)

    @rule(number=st.integers(0, 3))
    def die(self, number):
        self.fleet.die(number)
        self.disturbed.discard(number)

    @rule(number=st.integers(0, 3))
    def lose_the_connection(self, number):
        """The same process, greeted once more."""
        self.fleet.mail[number].clear()
        self.fleet.reports[number].clear()
        self.fleet.workers[number].clear()
        self.fleet.greeted[number] = False
        self.fleet.reports[number] += [messages.Lost("cut off"), self.fleet.workers[number].hello()]

    @rule(rounds=st.integers(1, 3))
    def go_on(self, rounds):
        """All workers, and the router: in turns of single workers pages hardly ever travel."""
        for _ in range(rounds):
            for number in range(4):
                self.fleet.turn(number)
            self.step()

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

    @invariant()
    def a_page_is_counted_once(self):
        """Where all has been said, the router knows what each decode worker has free: pages in transfer are not."""
        for handle in self.router.by_role["decode"]:
            number, scheduler = handle.number, self.fleet.workers[handle.number].scheduler
            unsaid = self.fleet.mail[number] or self.fleet.reports[number] or handle.orders or handle.drops
            if handle.open and not unsaid and number not in self.disturbed:
                placed = scheduler.running.keys() | scheduler.reserved.keys()
                to_come = sum(task for key, task in handle.tasks.items() if key not in placed)
                assert handle.available - handle.load == scheduler.allocator.available - to_come

    def teardown(self):
        self.fleet.at_once = self.fleet.heartbeats = True
        for _ in range(2000):
            if not self.open:
                break
            self.step()
        recovery_module.MOST_DEATHS, recovery_module.PROGRESS_TOKENS = self.usual
        assert not self.open, "a request waits for ever"
        for _ in range(3):  # for orders and drops that were lost
            self.router.step()
        assert not self.router.recovery.suspects and all(handle.open for handle in self.router.handles)
        for worker in self.fleet.workers:
            allocator = worker.scheduler.allocator
            assert len(allocator.free) + len(allocator.tree.unused) == allocator.num_pages, "a page is lost"
            assert not worker.held and not worker.transport.offers and not worker.handing_over


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def until(router, condition, seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        router.step()
        router.check()
        assert time.monotonic() < give_up, [flight.phase for flight in router.flights.values()]


def test_an_order_that_is_overtaken_is_not_lost():
    """The schedule that once left requests in prefill for ever."""
    router, fleet = fleet_without_model(1, 1)
    fleet.at_once = False
    requests = []
    for number in range(3):
        requests.append(router.add([number, 1], endless(4)))
        router.step()
    fleet.mail[0].reverse()
    for _ in range(3):
        fleet.mail[0], later = fleet.mail[0][:1], fleet.mail[0][1:]
        fleet.turn(0)
        fleet.mail[0] += later
    fleet.at_once = True
    until(router, lambda: not router.has_unfinished)
    assert [request.token_ids for request in requests] == [undisturbed([n, 1], 4) for n in range(3)]
    assert router.recovery.resumed == 0


@pytest.mark.parametrize("down", [True, False], ids=["mail", "reports"])
def test_every_message_can_be_lost(down):
    """One after the other: whichever is lost, heartbeats bring the request to its end."""
    lost = 0
    while True:
        router, fleet = fleet_without_model(1, 1)
        fleet.heartbeats, fleet.at_once = True, False
        request, seen = router.add([1, 2, 3], endless(5)), Counter()
        until_lost = lost
        for _ in range(200):
            if not router.has_unfinished:
                break
            router.step()
            for number in range(2):
                for queue, mine in ((fleet.mail, down), (fleet.reports, not down)):
                    if queue is fleet.reports:
                        fleet.turn(number)
                    for place, message in reversed(list(enumerate(queue[number]))):
                        if mine and isinstance(message, (messages.Mail, messages.Report)):
                            seen["all"] += 1
                            if seen["all"] == until_lost + 1:
                                del queue[number][place]
        assert request.token_ids == undisturbed([1, 2, 3], 5)
        if seen["all"] <= until_lost:
            break
        lost += 1
    assert lost >= 3


def test_requests_wait_for_workers_up_to_a_limit():
    router, fleet = fleet_without_model(1, 1, wait_seconds=0.2)
    request = router.add([1, 2, 3], endless(5))
    until(router, lambda: len(request.token_ids) >= 2)
    fleet.die(0, returns=False)
    fleet.die(1, returns=False)
    until(router, lambda: request.finished)
    assert request.finish_reason == "error" and request.token_ids == undisturbed([1, 2, 3], 5)[: len(request.token_ids)]
    assert router.unavailable == "no prefill and no decode worker is up"
    assert router.step() == [] and router.stats()["kv_tokens_used"] == 0
    fleet.revive(0)
    fleet.revive(1)
    later = router.add([1, 2, 3], endless(5))
    until(router, lambda: later.finished)
    assert later.finish_reason == "length" and router.unavailable == ""


@pytest.mark.parametrize("number", [0, 1], ids=["prefill", "decode"])
def test_each_kind_of_worker_is_a_spare_of_the_other(number):
    router, fleet = fleet_without_model(1, 1)
    requests = [router.add([n, 2, 3], endless(8)) for n in range(3)]
    for _ in range(4):
        router.step()
    fleet.die(number, returns=False)
    later = router.add([5, 2, 3], endless(8))
    until(router, lambda: not router.has_unfinished)
    assert [one.token_ids for one in [*requests, later]] == [undisturbed([n, 2, 3], 8) for n in (0, 1, 2, 5)]
    stats = router.stats()
    assert (stats["prefill_workers_up"], stats["decode_workers_up"]) == ((0, 1), (1, 0))[number]
    assert router.unavailable == f"no {('prefill', 'decode')[number]} worker is up"


def test_a_broken_data_path_is_done_without():
    """No pages ever arrive: after a few attempts one worker does the whole job, and the operator can read why."""
    router, fleet = fleet_without_model(1, 1)

    class Failed:
        bytes = seconds = 0

        def done(self):
            raise ConnectionError("no route")

        def wait(self, seconds):
            pass

        def cancel(self):
            pass

    fleet.workers[1].transport.receive = lambda *_: Failed()
    requests = [router.add([n, 2, 3], endless(6)) for n in range(4)]
    until(router, lambda: not router.has_unfinished)
    assert [request.token_ids for request in requests] == [undisturbed([n, 2, 3], 6) for n in range(4)]
    assert router.stats()["failed_transfers"] == 4 * recovery_module.MOST_FAILED_TRANSFERS
    assert router.handoffs == 0


def test_a_request_that_kills_workers_ends_alone(caplog):
    """Each worker dies as soon as it has run this one for a moment; its neighbours finish."""
    router, fleet = fleet_without_model(2, 2, pages=60)
    killer = router.add([7, 7, 7], endless(30))
    others = [router.add([n, 2, 3], endless(8)) for n in range(12)]
    deaths = 0
    for _ in range(3000):
        if not router.has_unfinished:
            break
        router.step()
        router.check()
        for number, worker in enumerate(fleet.workers):
            if any(key.startswith(f"{killer.request_id}#") for key in worker.scheduler.running):
                fleet.die(number)
                deaths += 1
    assert killer.finish_reason == "error" and deaths == recovery_module.MOST_DEATHS
    assert [one.token_ids for one in others] == [undisturbed([n, 2, 3], 8) for n in range(12)]
    assert f"request {killer.request_id} ends with an error: 4 workers have died under it" in caplog.text
    assert re.search(r"worker \d \((prefill|decode)\) is lost with \d+ requests: killed", caplog.text)
    assert re.search(r"worker \d \((prefill|decode)\) is up", caplog.text)
    assert all(handle.open for handle in router.handles)


def test_requests_that_wait_for_room_are_served_in_order():
    """A large one is not passed for ever by small ones for which there is room."""
    router, _ = fleet_without_model(1, 1, pages=14)
    first = [router.add([n, 1], endless(6)) for n in range(3)]
    large = router.add([1] * 16, endless(8))
    small = [router.add([n, 0], endless(6)) for n in range(3, 30)]
    ended = []
    while router.has_unfinished:
        ended += [request for request in router.step() if request.finished]
    assert ended.index(large) <= len(first) + 4, "at most those that came in the same steps"
    assert len(ended) == len(first) + 1 + len(small)


def test_a_pool_full_of_parked_pages_does_not_spin():
    """A prefill worker with nothing to compute has nothing to report, and its loop sleeps until there is mail."""
    router, fleet = fleet_without_model(1, 1, pages=6)
    for n in range(6):
        router.add([n, 1, 2, 3], endless(6))
    for _ in range(6):
        router.step()
    fleet.hanging = {1}
    for _ in range(10):
        router.step()
    reports = [fleet.workers[0].turn() for _ in range(5)]
    assert fleet.workers[0].scheduler.waiting and not any(reports)

"""What stage 08 makes of pages that never come, and of messages that come late or twice."""

from types import SimpleNamespace

from test_08_disaggregated_router import undisturbed, until

from common.stages import load_stage_module
from tests.helpers.engine_options import endless
from tests.helpers.faulty_fleet import (
    WorkerWithoutModel,
    fleet_without_model,
    kv_transport,
    messages,
    scheduler_module,
    worker_module,
)
from tests.helpers.scheduler_machine import make_request


def test_a_transfer_has_ended_before_its_pages_are_free():
    """A dropped order's pages are still being written to until `cancel` returns."""
    pages, transport = [], kv_transport.LocalTransport()

    def cancel() -> None:
        assert pages and not set(pages) & set(worker.scheduler.allocator.free), "free, and being written to"
        pages.clear()

    transfer = SimpleNamespace(done=lambda: False, wait=lambda seconds: None, cancel=cancel)
    transport.receive = lambda ticket, skip, into, on_done: pages.extend(into) or transfer
    worker = worker_module.Worker(WorkerWithoutModel(8), transport)
    order = messages.Order("a#0", [1, 2, 3], [4], endless(5), 0, 5, ticket="elsewhere")
    worker.read(messages.Mail(1, [order], []))
    worker.turn()
    assert len(pages) == 2
    worker.read(messages.Mail(2, [], ["a#0"]))
    assert not pages, "the transfer goes on"
    worker.check()


def test_requests_in_transfer_keep_their_place():
    """Whole jobs may come meanwhile: a step must not have more requests than its budget has tokens."""
    scheduler = scheduler_module.Scheduler(2, 8, 20, 4, load_stage_module("08", "speculation").Speculation(8))
    arriving = make_request("a", [1, 2, 3])
    scheduler.reserve(arriving)
    for name in "bc":
        scheduler.add(make_request(name, [1, 2], 40))
    for step in range(4):
        chunks = scheduler.schedule()
        assert len(scheduler.running) <= 2 and 1 <= sum(chunk.room + len(chunk.token_ids) for chunk in chunks) <= 8
        if step == 1:
            assert chunks[0].room == 7, "c waits for a place, not for tokens: drafts get all that is left"
        for chunk in chunks:
            if chunk.completes:
                chunk.sequence.request.append(5)
        scheduler.count_accepted(chunks)
        if step and arriving.request_id not in scheduler.running:
            scheduler.resume(arriving)


def test_an_order_on_its_way_is_not_missing_in_a_heartbeat():
    """The heartbeat is as old as its journey: it cannot know of an order that was sent meanwhile."""
    router, fleet = fleet_without_model(1, 1)
    fleet.at_once = False
    request = router.add([1, 2, 3], endless(4))
    router.step()
    fleet.reports[0].append(fleet.workers[0].turn(heartbeat=True))
    router.step()
    assert router.recovery.resumed == 0
    fleet.at_once = True
    until(router, lambda: request.finished)
    assert request.token_ids == undisturbed([1, 2, 3], 4) and router.recovery.resumed == 0


def test_pages_that_were_withdrawn_have_not_arrived():
    """The prefill worker dies after the decode worker was told to fetch, and before it does."""
    router, fleet = fleet_without_model(1, 1)
    fleet.at_once = False
    request = router.add([1, 2, 3], endless(5))
    router.step()
    fleet.turn(0)
    router.step()
    assert [flight.phase for flight in router.flights.values()] == ["transfer"]
    fleet.die(0)
    fleet.at_once = True
    until(router, lambda: request.finished)
    assert request.token_ids == undisturbed([1, 2, 3], 5) and router.stats()["failed_transfers"] == 1


def test_every_report_may_come_twice():
    router, fleet = fleet_without_model(1, 1)
    deliver = fleet.events
    fleet.events = lambda seconds: [event for event in deliver(seconds) for _ in range(2)]
    requests = [router.add([number, 2, 3], endless(5)) for number in range(3)]
    until(router, lambda: not router.has_unfinished)
    assert [request.token_ids for request in requests] == [undisturbed([n, 2, 3], 5) for n in range(3)]


def test_a_new_attempt_does_not_change_what_was_cached():
    """Usage is about the prompt as it was first computed: the tokens that a new attempt finds are the request's own."""
    router, fleet = fleet_without_model(1, 1)
    request = router.add(list(range(1, 9)), endless(12))
    until(router, lambda: len(request.token_ids) > 3)
    assert request.cached_tokens == 0
    fleet.die(1, returns=False)  # the other worker has the prompt in its cache, and does the whole job
    until(router, lambda: request.finished)
    assert router.stats()["requests_resumed"] == 1
    assert request.cached_tokens == 0


def test_room_of_a_cancelled_request_is_told():
    """Its worker has nothing to compute, and so no results to tell it with."""
    router, fleet = fleet_without_model(1, 1)
    first = router.add([1, 2, 3], endless(18))
    until(router, lambda: len(first.token_ids) > 12)
    router.abort(first.request_id)
    second = router.add([2] * 12, endless(6))  # 7 of 12 pages; the first had 8
    for _ in range(100):
        router.step()
    assert second.token_ids == undisturbed([2] * 12, 6)

"""Which worker stage 08's router chooses: prefix against load, room for pages, and what it believes to be cached."""

from common.stages import load_stage_module
from tests.helpers.engine_options import endless
from tests.helpers.faulty_fleet import fleet_without_model, messages

routing = load_stage_module("08", "routing")


def handle(number: int, tasks: dict[str, int] | None = None, **attributes):
    one = routing.Handle(number, "any")
    one.greet(messages.Hello("", 0.0, 1, 100, 4, 8, ""), 0.0)
    for key, task in (tasks or {}).items():
        one.order(messages.Order(key, [], [], None, 0, 0), task)
    for name, value in attributes.items():
        setattr(one, name, value)
    return one


def test_one_shared_page_does_not_send_everything_to_one_worker():
    handles = [handle(number) for number in range(4)]
    for n in range(400):
        tokens = [1, 2, 3, 4, *(1000 * n + i for i in range(60))]
        chosen, missing = routing.choose_prefill(handles, tokens)
        chosen.seen.add(tokens)
        chosen.order(messages.Order(str(n), [], [], None, 0, 0), missing)
        if n >= 40:
            oldest = min(handles, key=lambda one: min(map(int, one.tasks), default=10**6))
            oldest.task_done(next(iter(oldest.tasks)))
    assert max(one.load for one in handles) < 2 * min(one.load for one in handles)


def test_decode_goes_where_most_pages_are_free():
    a, b = handle(0, available=30), handle(1, available=50)
    assert routing.choose_decode([a, b], 10) == (b, 3)
    b.order(messages.Order("promised", [], [], None, 0, 0), 25)
    assert routing.choose_decode([a, b], 10) == (a, 3)
    assert routing.choose_decode([a, b], 100) == (a, 25)
    for one in (a, b):
        one.held = {str(n): 1 for n in range(6)}
    assert routing.choose_decode([a, b], 100) is None, "no request may be preempted for it at once"
    for one in (a, b):
        one.held = {str(n): 1 for n in range(8)}
    assert routing.choose_decode([a, b], 1) is None


def test_decode_workers_that_do_the_whole_job_get_what_they_have_room_for():
    """Without a prefill worker the rest is queued at the router, and goes to the worker that has room first."""
    router, fleet = fleet_without_model(1, 2)
    fleet.die(0, returns=False)
    for number in range(12):
        router.add([1, 2, 3, 4, 5, number], endless(6))
    most = {1: 0, 2: 0}
    for _ in range(500):
        if not router.has_unfinished:
            break
        router.step()
        for number in most:
            worker = fleet.workers[number]
            most[number] = max(most[number], len(worker.held))
            assert len(worker.held) <= worker.scheduler.max_running
    assert not router.has_unfinished and min(most.values()) >= 2

"""What stage 08's router does in rarer trouble: idle workers, many suspects, memory that shrinks."""

import faulty_fleet
from faulty_fleet import fleet_without_model
from test_08_disaggregated_router import endless, undisturbed, until


def test_room_that_comes_back_while_a_worker_is_idle_is_told():
    """The router ends a request itself, by an abort, and the decode worker has nothing else to report."""
    router, fleet = fleet_without_model(1, 1)
    first = router.add([1, 2, 3], endless(18))
    until(router, lambda: len(first.token_ids) > 12)
    router.abort(first.request_id)
    second = router.add([2, 2, 3], endless(18))
    until(router, lambda: second.finished)
    assert second.token_ids == undisturbed([2, 2, 3], 18)


def test_suspects_do_not_hold_each_other_up():
    """Two deaths make suspects of all that a worker was running; each runs alone, and only until it is cleared."""
    router, fleet = fleet_without_model(1, 1, pages=100)
    requests = [router.add([n, 2, 3], endless(60)) for n in range(4)]
    for _ in range(2):
        until(router, lambda: all(len(request.token_ids) >= 1 for request in requests))
        for _ in range(3):
            router.step()
        fleet.die(1)
        fleet.die(0)
    until(router, lambda: router.recovery.suspects)
    steps = 0
    while router.recovery.suspects:
        router.step()
        router.check()
        steps += 1
        assert steps < 4 * 40, "the second waits for the whole answer of the first"
    until(router, lambda: not router.has_unfinished)
    assert [request.token_ids for request in requests] == [undisturbed([n, 2, 3], 60) for n in range(4)]


def test_a_worker_that_comes_back_with_less_memory_is_not_killed_by_what_never_fits():
    router, fleet = fleet_without_model(1, 1, pages=12)
    long = router.add([1] * 4, endless(18))
    fleet.makers[1] = lambda: faulty_fleet.WorkerWithoutModel(5)
    fleet.die(1)
    until(router, lambda: long.finished)
    assert router.max_model_len == 10 and long.finish_reason in ("length", "error")
    short = router.add([1, 2], endless(4))
    until(router, lambda: short.finished)
    assert short.token_ids == undisturbed([1, 2], 4)

"""The trace: its records return what was recorded, and cost the garbage collector nothing."""

import gc

from common.trace import Trace, Work


def test_a_record_returns_the_works_it_was_given():
    trace = Trace()
    with trace.step() as record:
        record.work("a", "prefill", 5)
        record.work("b", "decode", 1)
    assert trace[-1].works == [Work("a", "prefill", 5), Work("b", "decode", 1)] and trace[-1].tokens == 6
    assert trace[-1].works[0].phase == "prefill" and trace[-1].start <= trace[-1].end


def test_the_garbage_collector_visits_a_step_and_not_what_it_did_for_each_request():
    trace, steps, requests = Trace(), 500, 64
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(steps):
        with trace.step() as record:
            for number in range(requests):
                record.work(f"request-{number}", "decode", 1)
            record.counters["waiting"] = 0
    gc.collect()
    assert len(gc.get_objects()) - before < 3 * steps

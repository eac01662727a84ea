"""The trace costs the garbage collector nothing; what it records, the contract reads."""

import gc

import torch

from common.trace import Trace


def test_the_garbage_collector_visits_a_step_and_not_what_it_did_for_each_request():
    trace, steps, requests = Trace(torch.device("cpu")), 500, 64
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(steps):
        with trace.step() as record:
            for number in range(requests):
                record.work(f"request-{number}", "decode", 1)
            record.counters["waiting"] = 0
    gc.collect()
    assert len(gc.get_objects()) - before < 3 * steps

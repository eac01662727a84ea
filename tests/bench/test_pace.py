"""What doctor says of this machine's pace: from decode steps alone, compared with what is recorded of another."""

import json
import subprocess

from common.bench import pace
from common.bench.steps import decode_seconds
from common.stages import load_engine

PACE = {"step_ms": 6.0, "ready_seconds": 3.0, "device": "cpu", "cuda": None}
RECORDED = {
    "device": "cpu", "cpu": "AMD EPYC", "cpu_cores": 2, "date": "2026-11-22", "step_ms": 4.0, "ready_seconds": 2.0,
    "demo_seconds": {"01": 10.0, "02": 2.0},
}  # fmt: skip


def test_the_pace_is_that_of_steps_in_which_all_requests_decode(loaded):
    engine = load_engine("05")(loaded, kv_memory="64M")
    seconds = decode_seconds(engine, pace.REQUESTS, pace.PROMPT, pace.WARM_UP, pace.STEPS)
    decoding = [step.seconds for step in engine.trace if step.tokens == len(step.works) == pace.REQUESTS]
    assert min(decoding) <= seconds <= max(decoding) and len(decoding) >= pace.STEPS


def test_kernels_that_were_not_compiled_yet_are_told_and_do_not_count(monkeypatch):
    ready = iter([14.0, 3.0])

    def run(command, **options):
        seconds = next(ready)
        said = f"{pace.COMPILING} for this processor\n" * (seconds > 3)
        return subprocess.CompletedProcess(command, 0, json.dumps(PACE | {"ready_seconds": seconds}), said)

    monkeypatch.setattr(pace.subprocess, "run", run)
    measured, said = pace.measure_apart()
    assert measured == PACE and said.endswith("were not compiled yet, which took 11 s, once on this machine")


def test_expectations_scale_with_a_step_and_not_with_the_start():
    """A step takes 1.5 times as long here: a demo of 10 s, 2 s of them to start, takes 3 + 1.5 * 8 = 15 s."""
    reference, demos, whole = pace.expectations(PACE, RECORDED)
    assert "2 cores, 2026-11-22) that step takes 4.0 ms: what follows is 1.50 times as long" in reference
    assert demos == "Expect of `demo`: 01 in 15 s, 02 in 3 s."
    assert whole == "Expect of all demos together 0.3 minutes."
    for other in (RECORDED | {"device": "cuda"}, {}):
        assert "No times of demos are recorded for cpu" in pace.expectations(PACE, other)[-1]

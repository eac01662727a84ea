"""What stage 04 promises beyond the contract and its milestones: a fair scheduler, and static batches beside it."""

from functools import partial

import pytest

from common.acceleration.accelerate import overlapped
from common.bench.engine_load import engine_load
from common.bench.workloads import Job, mixed_length_jobs
from common.stages import load_stage_module
from tests.helpers.engine_options import GREEDY, endless
from tests.helpers.scheduler_machine import SchedulerMachine, machine_test

Engine, Scheduler = load_stage_module("04", "engine").Engine, load_stage_module("04", "scheduler").Scheduler
StaticEngine = load_stage_module("04", "static_batching").StaticEngine


# ---- The scheduler, without a model ----


class ContinuousBatchingMachine(SchedulerMachine):
    def __init__(self):
        super().__init__(Scheduler(max_running=3, token_budget=5))

    def schedule(self):
        decoding = {name for name, sequence in self.scheduler.running.items() if sequence.remaining == 1}
        prefilling = [name for name, sequence in self.scheduler.running.items() if sequence.remaining > 1]
        chunks = super().schedule()
        ran = {chunk.sequence.request.request_id for chunk in chunks}
        assert decoding <= ran, "every request that decodes gets a token in every step"
        assert not prefilling or prefilling[0] in ran, "the oldest prompt gets ahead in every step"
        price, incomplete = self.price, [chunk for chunk in chunks if not chunk.completes]
        rest = 5 - sum(price(chunk.start, len(chunk.token_ids)) for chunk in chunks)
        for chunk in incomplete:
            more = price(chunk.start, len(chunk.token_ids) + 1) - price(chunk.start, len(chunk.token_ids))
            assert rest < more + 1e-9, "budget is left over while there is work"
        late = len(ran) < len(self.scheduler.running)
        assert rest < 1 or incomplete or late or not self.scheduler.waiting or len(self.scheduler.running) == 3
        return chunks


TestScheduler = machine_test(ContinuousBatchingMachine, 60, 40)


# ---- Static batching, and the overlapped loop ----


OTHER_LOOPS = {
    "static": partial(StaticEngine, max_running=3),
    "overlapped": partial(overlapped(Engine), token_budget=256),  # given: not measured
}


@pytest.mark.parametrize("make", OTHER_LOOPS.values(), ids=OTHER_LOOPS)
def test_other_loops_give_the_same_tokens(loaded, prompts, expected, make):
    completions = make(loaded).generate(prompts[:7], GREEDY)
    assert [completion.token_ids for completion in completions] == expected[:7]


def test_a_static_group_waits_for_its_slowest(loaded, prompts):
    engine = StaticEngine(loaded, max_running=2)
    _, second, _ = engine.generate([(prompt * 10)[:10] for prompt in prompts[:3]], [endless(n) for n in (9, 2, 1)])
    assert engine.trace.steps == 9 + 1
    works = [work for step in engine.trace for work in step.works if work.request_id == second.request_id]
    assert [(work.phase, work.tokens) for work in works] == [("prefill", 10), ("decode", 1), *[("padding", 1)] * 7]


# ---- The load of benchmarks ----


def test_the_closed_loop_keeps_four_requests_under_way(loaded):
    engine = Engine(loaded, max_running=8)
    jobs = mixed_length_jobs(9)
    jobs = [Job(job.prompt[:20], 3 + i) for i, job in enumerate(jobs)]
    result = engine_load(engine, jobs, concurrency=4)
    assert sorted(record.output_tokens for record in result.records) == list(range(3, 12))
    assert max(len(step.works) for step in engine.trace) == 4
    assert all(record.start <= record.chunks[0] <= record.end for record in result.records)


def test_the_mixed_workload_is_that_of_the_committed_results():
    jobs = mixed_length_jobs()
    assert jobs[0].prompt[:3] == [1579, 3106, 3648] and sum(job.max_tokens for job in jobs) == 4543


# ---- Memory ----


def test_there_are_as_many_slots_as_fit_into_the_memory(loaded):
    slot_bytes = loaded.config.context_length * loaded.config.kv_bytes_per_token(loaded.dtype)
    engine = Engine(loaded, max_running=8, kv_memory=3 * slot_bytes + 1)
    assert engine.startup_notes.startswith("3 slots")
    engine.generate([[5], [6], [7], [8]], endless(2))
    assert [len(step.works) for step in engine.trace] == [3, 3, 1, 1]

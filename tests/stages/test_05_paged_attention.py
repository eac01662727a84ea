"""What stage 05 promises beyond the contract and its milestones: pages are owned once, in any order of requests."""

from dataclasses import replace

import pytest

from common.memory import parse_bytes
from common.stages import load_stage_module
from tests.helpers.engine_options import TOKEN_BYTES, endless, pool
from tests.helpers.scheduler_machine import PagedMachine, machine_test

engine_module, scheduler_module = (load_stage_module("05", name) for name in ("engine", "scheduler"))
Engine = engine_module.Engine

# ---- The scheduler, without a model ----


class PagedSchedulerMachine(PagedMachine):
    def __init__(self):
        super().__init__(scheduler_module.Scheduler(max_running=4, token_budget=9, num_pages=7, page_size=3))


TestPagedScheduler = machine_test(PagedSchedulerMachine, 80)


# ---- Memory ----


def test_sizes_of_memory():
    sizes = {"512M": 2**29, "1.5G": 3 * 2**29, "2GiB": 2**31, "64 kb": 2**16, "1000": 1000, 1000: 1000}
    assert [parse_bytes(text) for text in sizes] == [*sizes.values()]


def test_a_pool_without_a_page_is_refused(loaded):
    with pytest.raises(ValueError, match="one page of 16 tokens takes .*,... bytes, .*larger --kv-memory"):
        Engine(loaded, kv_memory=15 * TOKEN_BYTES)
    with pytest.raises(ValueError, match="page_size must be at least 1 token, not 0"):
        Engine(loaded, page_size=0)


def test_with_k_and_v_in_8_bits_fewer_requests_are_preempted(loaded, prompts):
    preemptions = []
    for kv_int8 in (False, True):
        engine = Engine(replace(loaded, config=replace(loaded.config, kv_int8=kv_int8)), **pool(9))
        engine.generate([prompt[:40] for prompt in prompts[:8]], endless(28))
        preemptions.append(engine.stats()["preemptions"])
    assert preemptions == [2, 0], "the same memory has 3.76 times as many pages"


@pytest.mark.parametrize("kv_memory", ["4000000000G", "99999999999G"])
def test_no_page_is_listed_that_memory_does_not_hold(loaded, monkeypatch, kv_memory):
    monkeypatch.setattr(engine_module, "Scheduler", None)  # its list of pages would take all memory before the pages do
    with pytest.raises(MemoryError):
        Engine(loaded, kv_memory=kv_memory)

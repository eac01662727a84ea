"""What stage 05 promises beyond the contract: pages are owned once, and running out of them changes no token."""

import importlib.util

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from common.memory import parse_bytes, zeros
from common.sampling import SamplingParams
from common.stages import load_stage_module
from tests.helpers.engine_options import endless, pool
from tests.helpers.random_aborts import abort_at_random
from tests.helpers.scheduler_machine import SchedulerMachine

engine_module, scheduler_module, table_module = (
    load_stage_module("05", name) for name in ("engine", "scheduler", "page_table")
)
Engine = engine_module.Engine


# ---- The scheduler, without a model ----


class PagedSchedulerMachine(SchedulerMachine):
    """In a pool that is always too small."""

    def __init__(self):
        super().__init__(scheduler_module.Scheduler(max_running=4, token_budget=9, num_pages=7, page_size=3))

    @rule(prompt=st.integers(1, 18), output=st.integers(1, 9))
    def add(self, prompt, output):
        if prompt + output > 21:
            with pytest.raises(ValueError, match="and the cache has 7"):
                self.submit([7] * prompt, output)
        else:
            self.submit([7] * prompt, output)

    def schedule(self):
        chunks = super().schedule()
        assert sum(len(chunk.token_ids) for chunk in chunks) <= 9
        slots = [
            slot
            for chunk in chunks
            for slot in chunk.sequence.page_table.slot_mapping(chunk.start, chunk.sequence.computed)
        ]
        assert len(slots) == len(set(slots)), "two tokens are written to one place"
        decodes = [len(chunk.token_ids) == 1 and chunk.phase == "decode" for chunk in chunks]
        assert decodes == sorted(decodes, reverse=True), "decodes come first"
        return chunks


TestPagedScheduler = PagedSchedulerMachine.TestCase
TestPagedScheduler.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


# ---- The engine ----


@pytest.fixture(scope="module")
def roomy(loaded, prompts) -> list:
    """The completions of 16 requests in memory for all of them."""
    return Engine(loaded).generate([prompt[:60] for prompt in prompts[:16]], endless(40))


@pytest.mark.parametrize("page_size", [1, 7, 16, 32])
def test_a_pool_that_is_too_small_changes_no_token(loaded, roomy, page_size):
    """All at once, in memory for a few: many requests are preempted, some of them more than once."""
    engine = Engine(loaded, **pool(-(-480 // page_size), page_size))
    completions = engine.generate([completion.prompt_token_ids for completion in roomy], endless(40))
    assert [completion.token_ids for completion in completions] == [completion.token_ids for completion in roomy]
    assert engine.stats()["preemptions"] > 0
    assert max(len(step.works) for step in engine.trace) > 4
    engine.check()


def test_seeded_sampling_goes_on_after_a_preemption(loaded, prompts):
    each = [endless(24, temperature=1.0, seed=i) for i in range(6)]
    short = [prompt[:20] for prompt in prompts[:6]]
    roomy = Engine(loaded)
    alone = [roomy.generate([prompt], params)[0] for prompt, params in zip(short, each, strict=True)]
    engine = Engine(loaded, **pool(12, 8))
    together = engine.generate(short, each)
    assert engine.stats()["preemptions"] > 0
    assert [completion.token_ids for completion in together] == [completion.token_ids for completion in alone]
    assert [completion.text for completion in together] == [completion.text for completion in alone]


def test_the_youngest_gives_way_and_comes_back_first(loaded):
    engine = Engine(loaded, **pool(4))
    params = endless(40)
    old, young, late = (engine.add([5 + i] * 14, params, request_id=f"{i}") for i in range(3))
    while not engine.stats()["preemptions"]:
        engine.step()
    assert list(engine.scheduler.running) == [old.request_id]
    assert [request.request_id for request in engine.scheduler.waiting] == [young.request_id, late.request_id]
    while engine.has_unfinished:
        engine.step()
    assert old.timings.finished < young.timings.finished < late.timings.finished
    recomputed = [work for step in engine.trace for work in step.works if work.request_id == young.request_id]
    assert [work.phase for work in recomputed].count("prefill") == 2, "its prompt, and later all that was lost"


def test_what_never_fits_is_refused_with_the_numbers(loaded):
    engine = Engine(loaded, **pool(4))
    says = r"(?s)(?=.*\b7\b)(?=.*\b4\b)(?=.*--kv-memory)"
    with pytest.raises(ValueError, match=says):
        engine.add([7] * 50, SamplingParams(max_tokens=50))
    assert not engine.has_unfinished
    assert len(engine.generate([[7] * 44], endless(20))[0].token_ids) == 20


def test_aborts_give_all_pages_back(loaded, prompts):
    engine = Engine(loaded, **pool(24, 8))
    abort_at_random(engine, [prompt[:60] for prompt in prompts], seed=2)
    assert sorted(engine.scheduler.allocator.free) == list(range(24))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: kernels in the engine")
def test_the_kernels_give_the_same_tokens_in_the_engine(loaded, reference):
    engine = Engine(loaded, attention="triton", max_running=3, token_budget=32)
    assert engine.cache.attention.name == "triton" and engine.startup_notes == "attention=triton (asked for)"
    prompts = [[9, 8, 7, 6, 5] * 7, [40, 41], [77] * 17]
    completions = engine.generate(prompts, endless(2))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.token_ids == reference.generate(prompt, 2, ignore_eos=True)


# ---- Memory ----


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 2**29), ("1.5G", 3 * 2**29), ("2GiB", 2**31), ("64 kb", 2**16), ("1000", 1000), (1000, 1000)],
)
def test_sizes_of_memory(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "1T", "G"])
def test_what_is_no_size_is_refused(loaded, text):
    with pytest.raises(ValueError, match="such as 512M"):
        Engine(loaded, kv_memory=text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros(dtype):
    tensor = zeros((3, 5, 2), torch.device("cpu"), dtype)
    assert tensor.shape == (3, 5, 2) and tensor.dtype == dtype and not tensor.any()
    tensor[1] = 1.5
    assert tensor.sum() == 15
    with pytest.raises(MemoryError):  # which is reported in one sentence
        zeros((2**59, 2), torch.device("cpu"), dtype)

"""What stage 06 promises beyond the contract: equal beginnings are computed once and kept, and no token shows it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import endless, pool
from tests.helpers.random_aborts import abort_at_random
from tests.helpers.scheduler_machine import SchedulerMachine

engine_module, scheduler_module, tree_module = (
    load_stage_module("06", name) for name in ("engine", "scheduler", "prefix_tree")
)
Engine = engine_module.Engine


# ---- The scheduler, without a model, but with a memory that is written and read ----


class PrefixCacheMachine(SchedulerMachine):
    """Requests over two tokens, so that many begin alike, in a pool that is always too small.

    K and V of a token depend on all tokens up to it. So the memory holds, for each place, the text up to there: what is
    read must be what was written for exactly this beginning.
    """

    def __init__(self):
        super().__init__(scheduler_module.Scheduler(max_running=4, token_budget=9, num_pages=8, page_size=2))
        self.memory: dict[int, tuple[int, ...]] = {}

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10), output=st.integers(1, 6))
    def add(self, prompt, output):
        self.submit(prompt, output)

    def run(self, chunks):
        for chunk in chunks:
            sequence, start = chunk.sequence, chunk.start
            assert len(chunk.token_ids) >= 1
            for position, slot in enumerate(sequence.page_table.slot_mapping(start, sequence.computed), start):
                self.memory[slot] = tuple(sequence.request.all_token_ids[: position + 1])
        for chunk in chunks:  # everything is written before anything is read, as in a layer of the model
            tokens, end = chunk.sequence.request.all_token_ids, chunk.sequence.computed
            for position, slot in enumerate(chunk.sequence.page_table.slot_mapping(0, end)):
                assert self.memory[slot] == tuple(tokens[: position + 1]), "another request's K and V"
        for request in [chunk.sequence.request for chunk in chunks if chunk.completes]:
            request.append(len(request.token_ids) % 2)

    def commit(self, chunks):
        self.scheduler.cache_full_pages()
        super().commit(chunks)

    def teardown(self):
        super().teardown()
        allocator = self.scheduler.allocator
        assert len(allocator.free) + len(allocator.tree.unused) == 8, "without requests, every page is available"


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


# ---- The engine ----


@pytest.mark.parametrize("length", [16, 32, 33, 31])
def test_at_least_one_token_is_computed(loaded, reference, length):
    """A prompt that is an exact multiple of the page size, and wholly cached: its logits are still wanted."""
    engine = Engine(loaded)
    prompt = list(range(300, 300 + length))
    engine.generate([[*prompt, 7, 7, 7]], endless(2))
    [again] = engine.generate([prompt], endless(6))
    assert again.token_ids == reference.generate(prompt, 6, ignore_eos=True)
    work = next(work for step in engine.trace for work in step.works if work.request_id == again.request_id)
    assert work.tokens == (length - 1) % 16 + 1


def test_what_was_generated_is_cached_for_the_next_turn(loaded):
    engine = Engine(loaded)
    [first] = engine.generate([[9] * 20], endless(30))
    [second] = engine.generate([[*first.all_token_ids, 5, 6, 7]], endless(3))
    work = next(work for step in engine.trace for work in step.works if work.request_id == second.request_id)
    assert work.tokens == 53 - 48, "49 tokens have been run, and 48 of them fill three pages"


def test_two_that_come_together_converge_on_one_copy(loaded, reference):
    engine = Engine(loaded)
    prompt = list(range(500, 600))
    requests = [engine.add(prompt, endless(8)) for _ in range(2)]
    engine.step()
    a, b = (engine.scheduler.running[request.request_id].page_table.pages for request in requests)
    assert a[:6] == b[:6] and a[6] != b[6]
    assert engine.stats()["kv_tokens_reserved"] == (6 + 1 + 1) * 16 and engine.stats()["kv_tokens_used"] == 96 + 4 + 4
    engine.check()
    while engine.has_unfinished:
        engine.step()
    assert [request.token_ids for request in requests] == [reference.generate(prompt, 8, ignore_eos=True)] * 2


def test_a_pool_that_is_too_small_changes_no_token(loaded, prompts):
    """Preempted, evicted, hit again: the tokens are those of an engine with all the memory it wants."""
    short, params = [prompt[:60] for prompt in prompts[:12]] * 2, endless(40)
    roomy = Engine(loaded).generate(short, params)
    engine = Engine(loaded, **pool(40))
    for _ in range(2):
        completions = engine.generate(short, params)
        assert [completion.token_ids for completion in completions] == [one.token_ids for one in roomy]
        engine.check()
    stats = engine.stats()
    assert stats["preemptions"] > 0 and 0 < stats["prefix_tokens_hit"] < stats["prefix_tokens_asked"]


def test_a_text_is_forgotten_from_its_end(loaded):
    """A page is found through those before it, so the deepest goes first: what is left of a prompt is of use."""
    engine, prompt = Engine(loaded, **pool(6)), list(range(300, 365))
    engine.generate([prompt], endless(1))  # leaves four pages in the tree, and two are free
    engine.generate([[5] * 33], endless(1))  # takes three
    [again] = engine.generate([prompt], endless(1))
    assert again.cached_tokens == 3 * 16


def test_a_preempted_request_finds_its_own_pages_again(loaded):
    engine = Engine(loaded, **pool(5))
    old, young = engine.add([5] * 30, endless(30)), engine.add([6] * 30, endless(18))
    while engine.has_unfinished:
        engine.step()
    assert engine.stats()["preemptions"] > 0
    prefills = [work.tokens for step in engine.trace for work in step.works if work.request_id == young.request_id]
    assert prefills[0] == 30 and max(prefills[1:]) < 30, "its first page was still there"
    assert old.finished


@pytest.mark.parametrize("stage", ["06", "07"])
def test_what_a_request_finds_after_a_preemption_is_no_hit(loaded, stage):
    """Of two requests with nothing in common, the younger is preempted in decode: it finds what it had computed."""
    options = {"draft": "lookup", "num_draft_tokens": 0} if stage == "07" else {}
    engine = load_engine(stage)(loaded, **pool(5), **options)
    requests = [engine.add([5] * 30, endless(30)), engine.add([6] * 30, endless(18))]
    while engine.has_unfinished:
        engine.step()
    stats = engine.stats()
    assert stats["preemptions"] > 0
    assert (stats["prefix_tokens_asked"], stats["prefix_tokens_hit"]) == (60, 0)
    assert [request.cached_tokens for request in requests] == [0, 0]


@pytest.mark.parametrize("stage", ["06", "07"])
def test_what_is_found_for_a_later_piece_of_a_prompt_counts_for_the_request(loaded, stage):
    options = {"draft": "lookup", "num_draft_tokens": 0} if stage == "07" else {}
    engine = load_engine(stage)(loaded, max_running=2, token_budget=64, **options)
    prompt = [11 + i % 97 for i in range(400)]
    requests = [engine.add(prompt, endless(2)) for _ in range(2)]
    while engine.has_unfinished:
        engine.step()
    assert requests[0].cached_tokens == 0 < requests[1].cached_tokens == engine.stats()["prefix_tokens_hit"]


@pytest.mark.parametrize("stage", ["06", "07"])
def test_a_long_prompt_at_the_head_of_the_queue_is_not_looked_up_in_every_step(loaded, stage):
    options = {"draft": "lookup", "num_draft_tokens": 0} if stage == "07" else {}
    engine = load_engine(stage)(loaded, **pool(40), **options)
    prompt = [11 + i % 97 for i in range(330)]
    engine.generate([prompt], endless(1))  # 20 pages of it are in the tree
    requests = [engine.add([5 + i] * 16, endless(100)) for i in range(3)]
    for _ in range(3):
        engine.step()
    waiting = engine.add(prompt + [5] * 200, endless(1))
    tree, looked_up = engine.scheduler.allocator.tree, 0
    follow = tree.follow

    def counted(path, tokens):
        nonlocal looked_up
        looked_up += tokens[0] != tokens[-1]  # those of the long prompt
        return follow(path, tokens)

    tree.follow = counted
    for _ in range(60):
        engine.step()
    assert waiting.cached_tokens == 0 and looked_up <= 2 * 21, "once, and not in 60 steps"
    while engine.has_unfinished:
        engine.step()
    assert waiting.finished and all(request.finished for request in requests)


@pytest.mark.parametrize("stage", ["06", "07"])
def test_a_refused_request_is_admitted_once_its_prefix_is_cached(loaded, stage):
    """Of two equal prompts that arrive together the second lacks pages in the first step, and only one in the next."""
    options = {"draft": "lookup", "num_draft_tokens": 0} if stage == "07" else {}
    engine = load_engine(stage)(loaded, **pool(6), **options)
    requests = [engine.add(list(range(300, 350)), endless(8)) for _ in range(2)]
    running = []
    while engine.has_unfinished:
        engine.step()
        running.append(len(engine.trace[-1].works))
    assert running == [1, *[2] * 7, 1]
    assert requests[0].token_ids == requests[1].token_ids


def test_random_aborts_leave_only_cached_pages(loaded, prompts):
    engine = Engine(loaded, **pool(24, 8))
    abort_at_random(engine, [prompt[:60] for prompt in prompts[:4]], seed=3)
    allocator = engine.scheduler.allocator
    assert len(allocator.free) + len(allocator.tree.unused) == 24 and engine.stats()["kv_tokens_used"] == 0

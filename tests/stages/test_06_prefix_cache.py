"""What stage 06 promises beyond the contract and its milestones: equal beginnings are computed once and kept."""

import pytest
from hypothesis import settings

from common.stages import load_stage_module
from tests.helpers.engine_options import endless, pool
from tests.helpers.scheduler_machine import PagedMachine

Engine, scheduler_module = load_stage_module("06", "engine").Engine, load_stage_module("06", "scheduler")

# ---- The scheduler, without a model ----


class PrefixCacheMachine(PagedMachine):
    def __init__(self):
        super().__init__(scheduler_module.Scheduler(max_running=4, token_budget=9, num_pages=8, page_size=2))

    def commit(self, chunks):
        self.scheduler.cache_full_pages()
        super().commit(chunks)


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


# ---- The engine ----


def drain(engine) -> None:
    while engine.has_unfinished:
        engine.step()


def tokens_run(engine, request) -> list[int]:
    """Return how many tokens of a request each of its steps ran."""
    return [work.tokens for step in engine.trace for work in step.works if work.request_id == request.request_id]


@pytest.mark.parametrize("length", [16, 32, 33, 31])
def test_at_least_one_token_is_computed(loaded, reference, length):
    """A prompt that is an exact multiple of the page size, and wholly cached: its logits are still wanted."""
    engine = Engine(loaded)
    prompt = list(range(300, 300 + length))
    engine.generate([[*prompt, 7, 7, 7]], endless(2))
    [again] = engine.generate([prompt], endless(6))
    assert again.token_ids == reference.generate(prompt, 6, ignore_eos=True)
    assert tokens_run(engine, again)[0] == (length - 1) % 16 + 1


def test_what_was_generated_is_cached_for_the_next_turn(loaded):
    engine = Engine(loaded)
    [first] = engine.generate([[9] * 20], endless(30))
    [second] = engine.generate([[*first.all_token_ids, 5, 6, 7]], endless(3))
    assert tokens_run(engine, second)[0] == 53 - 48, "49 tokens have been run, and 48 of them fill three pages"


def test_a_text_is_forgotten_from_its_end(loaded):
    """A page is found through those before it, so the deepest goes first: what is left of a prompt is of use."""
    engine, prompt = Engine(loaded, **pool(6)), list(range(300, 365))
    engine.generate([prompt], endless(1))  # leaves four pages in the tree, and two are free
    engine.generate([[5] * 33], endless(1))  # takes three
    [again] = engine.generate([prompt], endless(1))
    assert again.cached_tokens == 3 * 16


def test_what_a_request_finds_after_a_preemption_is_no_hit(loaded):
    """Of two requests with nothing in common, the younger is preempted in decode: it finds what it had computed."""
    engine = Engine(loaded, **pool(5))
    old, young = engine.add([5] * 30, endless(30)), engine.add([6] * 30, endless(18))
    drain(engine)
    stats = engine.stats()
    assert stats["preemptions"] > 0
    assert tokens_run(engine, young)[0] == 30 and max(tokens_run(engine, young)[1:]) < 30, "its first page was there"
    assert (stats["prefix_tokens_asked"], stats["prefix_tokens_hit"]) == (60, 0)
    assert (old.cached_tokens, young.cached_tokens) == (0, 0)

"""What stage 06 promises beyond the contract and its milestones: equal beginnings are computed once and kept."""

from hypothesis import settings

from common.stages import load_stage_module
from tests.helpers.engine_options import endless
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


def test_what_was_generated_is_cached_for_the_next_turn(loaded):
    engine = Engine(loaded)
    [first] = engine.generate([[9] * 20], endless(30))
    [second] = engine.generate([[*first.all_token_ids, 5, 6, 7]], endless(3))
    assert second.cached_tokens == 48, "49 tokens have been run, and 48 of them fill three pages"

"""What stage 06 promises beyond the contract and its milestones: equal beginnings are computed once and kept."""

from common.stages import load_stage_module
from tests.helpers.scheduler_machine import PagedMachine, machine_test

scheduler_module = load_stage_module("06", "scheduler")


class PrefixCacheMachine(PagedMachine):
    def __init__(self):
        super().__init__(scheduler_module.Scheduler(max_running=4, token_budget=9, num_pages=8, page_size=2))


TestPrefixCache = machine_test(PrefixCacheMachine, 100)

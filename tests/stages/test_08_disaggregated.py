"""What stage 08's Engine promises beyond the contract, with workers in this process."""

from common.serving.prompt_logprobs import PromptLogprobs, PromptLogprobsParams
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import drain, endless
from tests.helpers.faulty_fleet import FaultyFleet
from tests.helpers.scheduler_machine import PagedMachine, machine_test

Engine, WorkerEngine = load_engine("08"), load_stage_module("08", "engine").WorkerEngine
scheduler_module, speculation_module = (load_stage_module("08", name) for name in ("scheduler", "speculation"))


def test_what_decode_has_already_does_not_travel(loaded):
    token_bytes = 9216  # K and V of one token of the bundled model and of its draft model
    engine = Engine(loaded, num_draft_tokens=0)
    [first] = engine.generate([list(range(300, 364))], endless(40))
    before = engine.stats()["handoff_bytes"]
    assert before == 64 * token_bytes
    engine.generate([[*first.all_token_ids, 5, 6, 7]], endless(3))
    assert engine.stats()["handoff_bytes"] - before == 16 * token_bytes, "6 of 7 pages were in its tree"
    engine.generate([[5, 6, 7]], endless(1))
    assert engine.stats()["handoffs"] == 2, "one token needs no handing over"
    assert sum(step.counters.get("handoff_bytes", 0) for step in engine.trace) == engine.stats()["handoff_bytes"]


def test_the_draft_models_pages_travel_too(loaded, prompts):
    """Otherwise it would have to read every prompt again, or guess without having read it.

    Pages of an earlier turn do not travel again: what the draft model lacks in them, it computes.
    """
    together, apart = WorkerEngine(loaded, num_draft_tokens=3), Engine(loaded, num_draft_tokens=3)
    decode = apart.fleet.workers[1].engine
    for prompt in prompts[:4]:
        for _ in range(2):
            first, second = (engine.generate([prompt], endless(20))[0] for engine in (together, apart))
            assert first.token_ids == second.token_ids
            prompt = [*first.all_token_ids, 5]
            for pool in decode.pools[2:]:  # as if no draft token had paid in this turn
                pool.zero_()
            for node in decode.scheduler.allocator.tree.unused:
                node.draft_computed = False
    figures = [[engine.stats()[name] for name in ("draft_tokens", "accepted_tokens")] for engine in (together, apart)]
    assert figures[0] == figures[1] and figures[0][1] > 0


def test_a_prompt_may_exceed_the_draft_models_context(loaded, expect, monkeypatch):
    """The draft model reads as much as it has positions for, and drafts nothing behind them."""
    engine = Engine(loaded, num_draft_tokens=3)
    drafters = [worker.engine.drafter for worker in engine.fleet.workers]
    run, read = drafters[0].model.forward, []  # both have the same model

    def forward(token_ids, positions, attend):
        read.append(positions.max())
        return run(token_ids, positions, attend)

    monkeypatch.setitem(vars(drafters[0].model), "forward", forward)
    for drafter in drafters:
        monkeypatch.setattr(drafter, "context_length", 40)
    long = [11 + i % 97 for i in range(100)]
    [request] = engine.generate([long], endless(8))
    assert request.token_ids == expect(long, max_tokens=8, ignore_eos=True).token_ids and max(read) == 39


def test_a_router_without_weights_has_prompts_scored(loaded, monkeypatch):
    """By a worker, between its steps; by the next one, as it dies. It pays with no page and counts as no output."""
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    router = Engine(loaded, num_draft_tokens=0)
    engine, router.model = PromptLogprobs(router), None
    text, params = [11 + i % 97 for i in range(300)], PromptLogprobsParams(logprobs=2)
    alone = PromptLogprobs(WorkerEngine(loaded, num_draft_tokens=0))
    expected = alone.add(text, params)
    drain(alone)
    scored, story = engine.add(text, params), engine.add("Once upon a time", endless(12))
    for _ in range(4):
        engine.step()
    assert not scored.finished and router.fleet.workers[0].held
    router.fleet.die(0)
    drain(engine)
    engine.check()
    engine.step()  # delivers the mail
    assert scored.logprobs == expected.logprobs and (scored.finish_reason, scored.token_ids) == ("length", [])
    assert len(story.token_ids) == 12 == engine.stats()["generated_tokens"]
    assert not any(worker.held for worker in router.fleet.workers)


# ---- The scheduler, without a model ----


class PassingMachine(PagedMachine):
    """Short prompts pass long ones, and draft tokens are paid for. Transfers are in the router's machine."""

    def __init__(self):
        super().__init__(scheduler_module.Scheduler(4, 9, 8, 2, speculation_module.Speculation(3)))

    def assert_progress(self, ran):
        assert not self.open or next(iter(self.scheduler.running)) in ran, "the first request advances"

    def assert_order(self):
        waiting = [request.request_id for request in self.scheduler.waiting]
        assert sorted([*self.scheduler.running, *waiting]) == sorted(self.open)


TestPassing = machine_test(PassingMachine, 100)

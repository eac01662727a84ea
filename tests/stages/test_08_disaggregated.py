"""What stage 08 promises beyond the contract: pages travel as far as they have to, and whatever happens to a worker, no
token shows it."""

import pytest

from common.serving.metrics import Measured
from common.serving.scoring import Scoring, ScoringParams
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import GREEDY, endless
from tests.helpers.faulty_fleet import FaultyFleet

engine_module, routing = (load_stage_module("08", name) for name in ("engine", "routing"))
Engine, WorkerEngine = load_engine("08"), engine_module.WorkerEngine
TOKEN_BYTES = 9216  # K and V of one token of the bundled model and of its draft model, in float32


def drain(engine) -> None:
    while engine.has_unfinished:
        engine.step()
        engine.check()


# ---- Handing over ----


def test_what_decode_has_already_does_not_travel(loaded):
    engine = Engine(loaded)
    [first] = engine.generate([list(range(300, 364))], endless(40))
    before = engine.stats()["handoff_bytes"]
    assert before == 64 * TOKEN_BYTES
    engine.generate([[*first.all_token_ids, 5, 6, 7]], endless(3))
    assert engine.stats()["handoff_bytes"] - before == 16 * TOKEN_BYTES, "6 of 7 pages were in its tree"
    engine.generate([[5, 6, 7]], endless(1))
    assert engine.stats()["handoffs"] == 2, "one token needs no handing over"


def test_the_draft_models_pages_travel_too(loaded, prompts):
    """Otherwise it would have to read every prompt again, or guess without having read it."""
    together, apart = WorkerEngine(loaded, num_draft_tokens=3), Engine(loaded, num_draft_tokens=3)
    for prompt in prompts[:4]:
        tokens = [engine.generate([prompt], endless(20))[0].token_ids for engine in (together, apart)]
        assert tokens[0] == tokens[1]
    figures = [[engine.stats()[name] for name in ("draft_tokens", "accepted_tokens")] for engine in (together, apart)]
    assert figures[0] == figures[1] and figures[0][1] > 0


def test_a_prompt_may_exceed_the_draft_models_context(loaded, monkeypatch):
    """The draft model reads as much as it has positions for, and drafts nothing behind them."""
    engine = Engine(loaded, num_draft_tokens=3)
    drafters = [worker.engine.drafter for worker in engine.fleet.workers]
    run, read = drafters[0].model.forward, []  # both have the same model

    def forward(token_ids, positions, attend):
        read.append(positions.max())
        return run(token_ids, positions, attend)

    monkeypatch.setattr(drafters[0].model, "forward", forward)
    for drafter in drafters:
        monkeypatch.setattr(drafter, "context_length", 40)
    long = [11 + i % 97 for i in range(100)]
    [apart] = engine.generate([long], endless(8))
    [together] = WorkerEngine(loaded, num_draft_tokens=0).generate([long], endless(8))
    assert apart.token_ids == together.token_ids and max(read) == 39


# ---- Workers that die ----


@pytest.fixture
def faulty(loaded, monkeypatch):
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    return lambda **options: Engine(loaded, **options)


@pytest.fixture(scope="module")
def twins(loaded, prompts) -> list:
    """Requests of many kinds, the last with a long prompt, whose workers have lived. None is random."""
    calm, story = Engine(loaded), "Once upon a time, there was"
    stop = calm.generate([story], endless(60))[0].text[60:70]
    kinds = [
        (prompts[0], GREEDY),
        (prompts[1], endless(30, temperature=1.0, seed=11)),
        (prompts[2], endless(30, temperature=0.8, top_p=0.9, seed=12)),
        (prompts[3], endless(25, logprobs=2)),
        (story, endless(60, stop=stop)),
        (
            (sum(prompts, []) * 2)[:400],
            endless(30, repetition_penalty=1.3, frequency_penalty=0.5, temperature=1.0, seed=3),
        ),
    ]
    requests = [calm.add(prompt, params) for prompt, params in kinds]
    drain(calm)
    assert requests[4].stop_reason == stop
    return requests


@pytest.mark.parametrize(
    ("number", "moments"),
    [
        (0, [routing.PREFILL, routing.READY, routing.TRANSFER]),
        (1, [routing.READY, routing.TRANSFER, routing.DECODE]),
    ],
    ids=["prefill", "decode"],
)
def test_a_death_costs_time_and_no_token(faulty, twins, number, moments):
    """At three moments, each as soon as a request is in that phase. Memory is too small, so that some wait for room."""
    engine = faulty(num_draft_tokens=2, token_budget=64, kv_memory=30 * 16 * TOKEN_BYTES)
    engine.fleet.at_once = False  # so that every phase can be seen from outside
    requests = [engine.add(twin.prompt_token_ids, twin.params) for twin in twins]
    seen, left, next_turn = {}, list(moments), 0
    for turn in range(4000):
        if not engine.has_unfinished:
            break
        engine.fleet.turn(turn % 2)
        if left and turn >= next_turn and left[0] in [flight.phase for flight in engine.flights.values()]:
            engine.fleet.die(number)
            next_turn = turn + 10
            del left[0]
        for request in engine.step():
            assert len(request.token_ids) > seen.get(request, 0) or request.finished
            seen[request] = len(request.token_ids)
        engine.check()
    assert not left and engine.stats()["requests_resumed"] >= 1
    for request, twin in zip(requests, twins, strict=True):
        for name in ("token_ids", "text", "finish_reason", "stop_reason"):
            assert getattr(request, name) == getattr(twin, name)
        assert [entry and entry.logprob for entry in request.logprobs] == pytest.approx(
            [entry and entry.logprob for entry in twin.logprobs], abs=1e-4
        )
    engine.step()
    assert engine.stats()["kv_tokens_used"] == 0


@pytest.mark.parametrize("dies", [False, True])
def test_a_router_without_weights_has_prompts_scored(loaded, faulty, dies):
    """By a worker, between its steps; by the next one if it dies. It pays with no page and counts as no output."""
    router = faulty()
    engine = Scoring(Measured(router, "m"))
    router.model = None
    text, params = [11 + i % 97 for i in range(300)], ScoringParams(logprobs=2)
    alone = Scoring(WorkerEngine(loaded))
    expected = alone.add(text, params)
    drain(alone)
    scored, story = engine.add(text, params), engine.add("Once upon a time", endless(12))
    for _ in range(4):
        engine.step()
    assert not scored.finished and router.fleet.workers[0].held
    if dies:
        router.fleet.die(0)
    drain(engine)
    engine.step()  # delivers the mail
    assert scored.logprobs == expected.logprobs and (scored.finish_reason, scored.token_ids) == ("length", [])
    assert len(story.token_ids) == 12 == engine.stats()["generated_tokens"]
    assert 'request_success_total{finished_reason="length",model_name="m"} 1.0' in engine.exposition().decode()
    assert router.handles[0].seen.longest(text) == 0 and not any(worker.held for worker in router.fleet.workers)
    left = engine.add(text, params)
    engine.step()
    engine.abort(left.request_id)
    engine.step()
    assert not any(worker.held for worker in router.fleet.workers) and not engine.has_unfinished

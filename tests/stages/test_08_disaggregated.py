"""What stage 08 promises beyond the contract: pages arrive as they were sent, into room that was kept for them, and
whatever happens to a worker, no token shows it."""

import zlib

import pytest
import torch

from common.sampling import SamplingParams
from common.serving.metrics import Measured
from common.serving.scoring import Scoring, ScoringParams
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import GREEDY, endless
from tests.helpers.faulty_fleet import FaultyFleet

engine_module, routing = (load_stage_module("08", name) for name in ("engine", "routing"))
Engine, WorkerEngine = load_engine("08"), engine_module.WorkerEngine
TOKEN_BYTES = 9216  # K and V of one token of the bundled model and of its draft model, in float32


def pool(pages: int) -> dict[str, int]:
    return {"kv_memory": pages * 16 * TOKEN_BYTES}


def drain(engine) -> None:
    while engine.has_unfinished:
        engine.step()
        engine.check()


def phases(engine) -> list[str]:
    return [flight.phase for flight in engine.flights.values()]


def checksum(worker, pages: list[int]) -> int:
    return zlib.crc32(b"".join(bytes(pool[:, pages].contiguous().view(torch.uint8).numpy()) for pool in worker.pools))


# ---- Handing over ----


def test_the_pages_that_arrive_are_those_that_were_computed(loaded, prompts, monkeypatch):
    """Checksums of both ends at the moment of arrival, before a token is written behind them."""
    engine = Engine(loaded)
    sender, receiver = (worker.engine for worker in engine.fleet.workers)
    resume, compared = receiver.scheduler.resume, []

    def resume_compared(request):
        sent = sender.scheduler.parked[request.request_id].page_table
        got = receiver.scheduler.reserved[request.request_id].page_table
        count = -(-(request.num_tokens - 1) // 16)
        assert checksum(sender, sent.pages[:count]) == checksum(receiver, got.pages[:count])
        compared.append(request.request_id)
        resume(request)

    monkeypatch.setattr(receiver.scheduler, "resume", resume_compared)
    engine.generate(prompts[:8], endless(6))
    assert len(compared) == engine.stats()["handoffs"] == 8


def test_the_draft_models_pages_travel_too(loaded, prompts):
    """Otherwise it would have to read every prompt again, or guess without having read it."""
    together, apart = WorkerEngine(loaded, num_draft_tokens=3), Engine(loaded, num_draft_tokens=3)
    for prompt in prompts[:4]:
        tokens = [engine.generate([prompt], endless(20))[0].token_ids for engine in (together, apart)]
        assert tokens[0] == tokens[1]
    figures = [[engine.stats()[name] for name in ("draft_tokens", "accepted_tokens")] for engine in (together, apart)]
    assert figures[0] == figures[1] and figures[0][1] > 0


def test_a_prompt_may_exceed_the_draft_models_context(loaded, prompts, monkeypatch):
    """The draft model reads as much as it has positions for, and drafts nothing behind them."""
    engine = Engine(loaded, num_draft_tokens=3)
    drafters = [worker.engine.drafter for worker in engine.fleet.workers]
    run = drafters[0].model.forward  # both have the same model

    def forward(token_ids, positions, attend):
        assert positions.max() < 40
        return run(token_ids, positions, attend)

    monkeypatch.setattr(drafters[0].model, "forward", forward)
    for drafter in drafters:
        monkeypatch.setattr(drafter, "context_length", 40)
    long = [11 + i % 97 for i in range(100)]
    completions = engine.generate([long, prompts[0]], endless(8))
    assert [one.token_ids for one in completions] == [
        one.token_ids for one in WorkerEngine(loaded, num_draft_tokens=0).generate([long, prompts[0]], endless(8))
    ]


def test_one_token_needs_no_handing_over(loaded, prompts, expected):
    engine = Engine(loaded)
    completions = engine.generate(prompts[:6], SamplingParams(max_tokens=1))
    assert [completion.token_ids for completion in completions] == [tokens[:1] for tokens in expected[:6]]
    assert engine.stats()["handoffs"] == 0


def test_each_kind_of_worker_does_its_own(loaded, prompts):
    engine = Engine(loaded, prefill=2, decode=2, num_draft_tokens=0)
    engine.generate(prompts[:12], endless(5))
    for step in engine.trace:
        assert {work.phase for work in step.works} == {"prefill" if step.counters["worker"] < 2 else "decode"}
    assert {step.counters["worker"] for step in engine.trace} == {0, 1, 2, 3}
    tokens = sum(len(prompt) for prompt in prompts[:12])
    assert sum(work.tokens for step in engine.trace for work in step.works) <= tokens + 12 * 4, "nothing is run twice"


def test_without_room_for_them_requests_wait_and_nothing_is_lost(loaded, prompts):
    """Decode has room for two or three of them: the others keep their pages where they were computed."""
    short = [prompt[:60] for prompt in prompts if len(prompt) >= 60][:8]
    roomy = Engine(loaded).generate(short, endless(30))
    engine = Engine(loaded, **pool(18))
    requests = [engine.add(prompt, endless(30)) for prompt in short]
    waited = 0
    while engine.has_unfinished:
        engine.step()
        engine.check()
        waited = max(waited, phases(engine).count(routing.READY))
    assert waited >= 2
    assert [request.token_ids for request in requests] == [one.token_ids for one in roomy]


def test_what_decode_has_already_does_not_travel(loaded):
    engine = Engine(loaded)
    [first] = engine.generate([list(range(300, 364))], endless(40))
    before = engine.stats()["handoff_bytes"]
    assert before == 64 * TOKEN_BYTES
    engine.generate([[*first.all_token_ids, 5, 6, 7]], endless(3))
    assert engine.stats()["handoff_bytes"] - before == 16 * TOKEN_BYTES, "6 of 7 pages were in its tree"


def test_the_same_beginning_goes_to_the_same_worker(loaded):
    engine = Engine(loaded, prefill=2)
    beginning = list(range(500, 600))
    engine.generate([beginning], endless(2))
    engine.generate([[*beginning, n] for n in range(6)], endless(2))
    [one, other] = (engine.fleet.workers[n].engine.stats()["prefix_tokens_asked"] for n in (0, 1))
    assert min(one, other) == 0 and engine.stats()["prefix_tokens_hit"] == 6 * 96


# ---- Workers that die, in every phase ----


@pytest.fixture
def faulty(loaded, monkeypatch):
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    return lambda **options: Engine(loaded, num_draft_tokens=2, **options)


MIXED = [
    GREEDY,
    endless(30, temperature=1.0, seed=11),
    endless(30, temperature=0.8, top_p=0.9, seed=12),
    endless(25, logprobs=2),
    endless(30, repetition_penalty=1.3, frequency_penalty=0.5, temperature=1.0, seed=3),
]


@pytest.fixture(scope="module")
def twins(loaded, prompts) -> list:
    """Requests with the parameters of MIXED, the last with a long prompt, whose workers have lived. None is random."""
    calm = Engine(loaded)
    several = [*prompts[:4], (sum(prompts, []) * 2)[:400]]
    requests = [calm.add(prompt, params) for prompt, params in zip(several, MIXED, strict=True)]
    drain(calm)
    return requests


@pytest.mark.parametrize("phase", [routing.PREFILL, routing.READY, routing.TRANSFER, routing.DECODE])
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_death_costs_time_and_no_token(faulty, twins, phase, side):
    engine = faulty(token_budget=64, **pool(30))  # too small for all, so that some wait for room
    seen: dict = {}
    requests = [engine.add(twin.prompt_token_ids, twin.params) for twin in twins]
    engine.fleet.at_once = False  # so that every phase can be seen from outside
    deaths, next_turn = 0, 0
    for turn in range(4000):
        if not engine.has_unfinished:
            break
        engine.fleet.turn(turn % 2)
        if phase in phases(engine) and deaths < 3 and turn >= next_turn:
            engine.fleet.die(0 if side == "prefill" else 1)
            deaths, next_turn = deaths + 1, turn + 10
        for request in engine.step():
            assert len(request.token_ids) > seen.get(request, 0) or request.finished
            seen[request] = len(request.token_ids)
        engine.check()
    assert deaths >= 1
    for request, twin in zip(requests, twins, strict=True):
        assert (request.token_ids, request.text, request.finish_reason) == (
            twin.token_ids, twin.text, twin.finish_reason
        )  # fmt: skip
        assert [entry and entry.logprob for entry in request.logprobs] == pytest.approx(
            [entry and entry.logprob for entry in twin.logprobs], abs=1e-4
        )


@pytest.mark.parametrize("dies", [False, True])
def test_a_router_without_weights_has_prompts_scored(loaded, monkeypatch, dies):
    """By a worker, between its steps; by the next one if it dies. It pays with no page and counts as no output."""
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    router = Engine(loaded)
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


def test_a_stop_string_across_a_death(loaded, faulty):
    story = "Once upon a time, there was"
    [full] = Engine(loaded).generate([story], endless(60))
    stop = full.text[60:70]
    engine = faulty()
    request = engine.add(story, endless(60, stop=stop))
    while len(request.token_ids) < 5:
        engine.step()
    engine.fleet.die(1)
    while engine.has_unfinished:
        engine.step()
    assert request.text == full.text[: full.text.index(stop)] and request.stop_reason == stop
    assert engine.step() == [] and engine.stats()["kv_tokens_used"] == 0 and engine.stats()["requests_resumed"] >= 1

"""The overlapped loop gives the tokens of the plain one, and is a step ahead. (The contract suite runs on it, too.)"""

import random
from collections.abc import Callable
from functools import cache

import pytest

from common.acceleration.accelerate import make_engine
from common.acceleration.overlap import NOTHING
from common.sampling import Drawn, SamplingParams
from common.stages import load_engine

STAGES = ["04", "05", "06"]
each_stage = pytest.mark.parametrize("stage", STAGES)


def engine_of(stage: str, loaded, **options):
    return make_engine(load_engine(stage), loaded, overlap=True, **options)


def little_memory(stage: str, loaded) -> dict:
    """So little that requests wait for a slot, or are preempted."""
    pages = 16 * 16 * loaded.config.kv_bytes_per_token(loaded.dtype)
    return {"max_running": 3} if stage == "04" else {"kv_memory": pages}


def some_of_everything(prompts, count: int, seed: int) -> tuple[list, list[SamplingParams]]:
    rng = random.Random(seed)
    params = [
        SamplingParams(
            max_tokens=rng.choice([1, 2, 7, 60]),
            temperature=rng.choice([0, 0, 1]),
            seed=i,
            repetition_penalty=rng.choice([1, 1, 1, 1, 1.3]),
            logprobs=rng.choice([None, 2]),
            ignore_eos=rng.random() < 0.5,
        )
        for i in range(count)
    ]
    return [rng.choice(prompts)[: rng.randint(1, 120)] for _ in range(count)], params


@pytest.fixture(scope="module")
def plain(loaded, prompts) -> Callable:
    """A function that returns prompts and parameters, and what the plain loop answers, once for all stages."""

    @cache
    def answered(count: int, seed: int) -> tuple[list, list[SamplingParams], list]:
        asked, params = some_of_everything(prompts, count, seed)
        return asked, params, load_engine("06")(loaded).generate(asked, params)

    return answered


@each_stage
def test_the_same_tokens_whatever_is_asked_for(stage, loaded, plain):
    asked, params, answers = plain(30, seed=1)
    engine = engine_of(stage, loaded, **little_memory(stage, loaded))
    requests = [engine.add(*one) for one in zip(asked, params, strict=True)]
    while engine.has_unfinished:
        engine.step()
        engine.check()
    for request, expected in zip(requests, answers, strict=True):
        assert request.token_ids == expected.token_ids and request.text == expected.text
        assert request.finish_reason == expected.finish_reason
        assert [entry.top[0][0] for entry in request.logprobs] == [entry.top[0][0] for entry in expected.logprobs]
    assert stage == "04" or engine.stats()["preemptions"] > 0, "nothing was preempted, so that was not tested"


@each_stage
def test_aborts_at_any_moment(stage, loaded, plain):
    engine, rng = engine_of(stage, loaded, **little_memory(stage, loaded)), random.Random(2)
    asked, params, expected = plain(24, seed=3)
    requests = []
    for prompt, one in zip(asked, params, strict=True):
        requests.append(engine.add(prompt, one))
        for _ in range(rng.randint(0, 3)):
            engine.step()
        if rng.random() < 0.4:
            engine.abort(rng.choice(requests).request_id)
            engine.check()
    while engine.has_unfinished:
        engine.step()
        engine.check()
    for request, whole in zip(requests, expected, strict=True):
        if request.finish_reason == "abort":
            assert request.token_ids == whole.token_ids[: len(request.token_ids)]
        else:
            assert request.token_ids == whole.token_ids
    assert engine.launched is NOTHING and not engine.leaving


@each_stage
def test_a_step_is_launched_before_the_last_ones_tokens_are_waited_for(stage, loaded, prompts, monkeypatch):
    events = []
    launch, wait = Drawn.__init__, Drawn.tokens
    monkeypatch.setattr(Drawn, "__init__", lambda self, *rest: (events.append("launch"), launch(self, *rest))[0])
    monkeypatch.setattr(Drawn, "tokens", lambda self: (events.append("wait"), wait(self))[1])
    engine_of(stage, loaded).generate([prompts[0][:9]], SamplingParams(max_tokens=5, ignore_eos=True))
    assert events == ["launch", *["launch", "wait"] * 4, "wait"]
    events.clear()  # penalties want to see the tokens first
    engine_of(stage, loaded).generate(
        [prompts[0][:9]], SamplingParams(max_tokens=5, ignore_eos=True, presence_penalty=1)
    )
    assert events == ["launch", "wait"] * 5


@each_stage
def test_only_an_answer_that_ends_by_itself_costs_a_step(stage, loaded, prompts, expected):
    def tokens_run(engine, prompt, params) -> int:
        engine.generate([prompt], params)
        return sum(step.tokens for step in engine.trace)

    prompt = prompts[0][:9]
    by_length = SamplingParams(max_tokens=5, ignore_eos=True)
    assert tokens_run(engine_of(stage, loaded), prompt, by_length) == 9 + 4
    ended = next(i for i, tokens in enumerate(expected) if tokens[-1] in loaded.eos_token_ids)
    by_itself = len(prompts[ended]) + len(expected[ended]) - 1
    greedy = SamplingParams(max_tokens=40)
    assert tokens_run(load_engine(stage)(loaded), prompts[ended], greedy) == by_itself
    assert tokens_run(engine_of(stage, loaded), prompts[ended], greedy) == by_itself + (len(expected[ended]) < 40)


def test_pages_are_found_again_as_soon_as_in_the_plain_loop(loaded):
    """After a single token, of which nothing is committed before its request has left; and one step after a prompt."""
    once, twice = list(range(100, 200)), list(range(200, 300))
    found = []
    for engine in (load_engine("06")(loaded), engine_of("06", loaded)):
        requests = engine.generate([once], SamplingParams(max_tokens=1, ignore_eos=True))
        requests += engine.generate([once], SamplingParams(max_tokens=1, ignore_eos=True))
        for _ in range(2):
            requests.append(engine.add(twice, SamplingParams(max_tokens=8, ignore_eos=True)))
            engine.step()
        while engine.has_unfinished:
            engine.step()
        found.append([request.cached_tokens for request in requests])
    assert found == [[0, 96, 0, 96]] * 2


def test_no_placeholder_is_ever_seen(loaded, prompts):
    engine = engine_of("06", loaded)
    requests = [engine.add(prompt, SamplingParams(max_tokens=40, ignore_eos=True)) for prompt in prompts[:8]]
    while engine.has_unfinished:
        engine.step()
        assert all(token >= 0 for request in requests for token in request.token_ids)
        tree = [engine.scheduler.allocator.tree.root]
        while tree:
            node = tree.pop()
            assert all(token >= 0 for tokens in node.children for token in tokens)
            tree += node.children.values()


@pytest.mark.parametrize(("stage", "reason"), [("02", "batch continuously"), ("07", "must know the last tokens")])
def test_where_it_cannot_be_had(stage, reason, loaded):
    with pytest.raises(ValueError, match=reason):
        engine_of(stage, loaded)
    assert type(make_engine(load_engine(stage), loaded)) is load_engine(stage)

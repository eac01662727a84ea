"""What every stage promises. A learner's own engine is graded by the same suite:

    cp -r 02_kv_cache my_02
    pytest tests/test_contract.py tests/test_contract_claims.py --engine my_02

All of it runs on the bundled checkpoint in float32, against transformers' `generate`. After each test the engine must
hold nothing any more: no request, no tensor (see `make_engine` in conftest.py).
"""

import json
import random
from contextlib import suppress
from functools import cache

import pytest
import torch.nn.functional as F

from common.engine import BaseEngine
from common.inspector.watched import Watched
from common.loader import load_model
from common.reference import Reference
from common.sampling import SamplingParams, sample
from common.serving.metrics import Measured
from common.serving.prompt_logprobs import PromptLogprobs
from tests.helpers.engine_options import GREEDY, MAX_TOKENS, drain, endless
from tests.helpers.interruptions import MOMENTS, Interruptions
from tests.helpers.quantized_reference import take_weights

STORY = "Once upon a time, there was"


# ---- Tokens ----


def test_greedy_tokens_are_those_of_transformers(engine, loaded, prompts, expected):
    completions = engine.generate(prompts, GREEDY)
    assert [completion.token_ids for completion in completions] == expected
    for completion, prompt in zip(completions, prompts, strict=True):
        assert completion.prompt_token_ids == prompt
        whole = loaded.tokenizer.decode(prompt + completion.token_ids, skip_special_tokens=True)
        assert whole.endswith(completion.text)
        ended = completion.token_ids[-1] in loaded.eos_token_ids
        assert completion.finish_reason == ("stop" if ended else "length")


def test_a_long_prompt(engine, reference, prompts):
    prompt = (sum(prompts, []) * 2)[:1100]
    assert engine.generate([prompt], endless(3))[0].token_ids == reference.generate(prompt, 3, ignore_eos=True)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_give_the_tokens_of_what_they_stand_for(engine_class, prompts, request, quantization):
    """In batches of every size: products of few and of many tokens differ. --quantization runs the whole suite so."""
    if request.config.getoption("--device") != "cpu":
        pytest.skip("quantised weights are for a CPU")
    loaded, expected = quantized_model(quantization, tuple(map(tuple, prompts)))
    engine = engine_class(loaded)
    assert [completion.token_ids for completion in engine.generate(prompts, GREEDY)] == expected
    assert engine.generate(prompts[:1], GREEDY)[0].token_ids == expected[0]


@cache
def quantized_model(quantization: str, prompts: tuple) -> tuple:
    """Return the bundled model with these weights, and the reference's tokens."""
    loaded = load_model(device="cpu", dtype="float32", quantization=quantization)
    reference = take_weights(Reference(), loaded)
    return loaded, [reference.generate(prompt, MAX_TOKENS) for prompt in prompts]


def test_engines_share_nothing(make_engine, prompts, expected):
    engines = [make_engine(), make_engine()]
    requests = [engine.add(prompt, GREEDY, "one") for engine, prompt in zip(engines, prompts, strict=False)]
    while any(engine.has_unfinished for engine in engines):
        for engine in engines:
            engine.step()
    assert [request.token_ids for request in requests] == expected[:2]


def test_ignore_eos_goes_on_to_max_tokens(engine, reference, prompts, expected, loaded):
    ended = [i for i, tokens in enumerate(expected) if tokens[-1] in loaded.eos_token_ids][:2]
    assert ended, "no prompt of the suite makes the model end its answer"
    for i, completion in zip(ended, engine.generate([prompts[i] for i in ended], endless(20)), strict=True):
        assert completion.token_ids == reference.generate(prompts[i], 20, ignore_eos=True)
        assert completion.finish_reason == "length"


def test_max_tokens_of_each_request(engine, prompts, expected):
    limits = [1, 2, MAX_TOKENS - 1, 1]
    each = [SamplingParams(max_tokens=limit) for limit in limits]
    for completion, tokens, limit in zip(engine.generate(prompts[:4], each), expected, limits, strict=False):
        assert completion.token_ids == tokens[:limit]
        assert completion.finish_reason == "length" or len(tokens) <= limit
    assert engine.generate([]) == []
    with pytest.raises(ValueError, match="4 prompts came with 3"):
        engine.generate(prompts[:4], each[:3])


def test_without_max_tokens_the_context_is_the_limit(make_engine, prompts):
    engine = make_engine(context_length=64)
    prompt = max(prompts, key=len)[:60]
    [completion] = engine.generate([prompt], endless(None))
    assert (len(completion.token_ids), completion.finish_reason) == (4, "length")


def test_attention_may_lie_otherwise_in_memory(engine, prompts, expected, monkeypatch):
    """PyTorch does not promise the strides of what its attention returns, and on a GPU they differ from a CPU's."""
    attention = F.scaled_dot_product_attention

    def elsewhere(*arguments, **options):
        return attention(*arguments, **options).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(F, "scaled_dot_product_attention", elsewhere)
    assert engine.generate(prompts[:1], SamplingParams(max_tokens=3))[0].token_ids == expected[0][:3]


# ---- Stopping ----


def test_stop_strings_end_inside_tokens(engine, loaded):
    """A stop string may begin and end in the middle of a token; the text is cut there, the tokens are kept."""
    [full] = engine.generate([STORY], endless())
    assert full.prompt_token_ids == loaded.tokenizer(STORY)["input_ids"]
    stops = [full.text[start : start + 6] for start in (3, 24, 75)]
    each = [endless(stop=[stop, "never to be seen"]) for stop in stops]
    each += [endless(stop=stop, include_stop_str_in_output=True) for stop in stops]
    completions = engine.generate([STORY] * len(each), each)
    for stop, cut, kept in zip(stops, completions, completions[len(stops) :], strict=False):
        assert cut.text == full.text[: full.text.index(stop)]
        assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
        assert cut.token_ids == full.token_ids[: len(cut.token_ids)]
        before = loaded.tokenizer.decode(cut.token_ids[:-1], skip_special_tokens=True)
        assert stop not in before, "the engine went on after the stop string was complete"
        assert kept.text == cut.text + stop


def test_stop_token_ids(engine):
    [full] = engine.generate([STORY], endless(12))
    stop = full.token_ids[9]
    [cut] = engine.generate([STORY], endless(12, stop_token_ids=[stop]))
    assert cut.token_ids == full.token_ids[: full.token_ids.index(stop) + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


# ---- Sampling ----

SAMPLINGS = [
    endless(8, temperature=1.0, seed=1),
    endless(8, temperature=0.7, top_k=20, top_p=0.9, seed=2),
    endless(8, temperature=1.5, min_p=0.05, seed=3, repetition_penalty=1.3),
    endless(8, presence_penalty=1.5, frequency_penalty=0.5, seed=4),
]


def test_sampled_tokens_are_those_of_the_reference_logits(engine, reference, prompts):
    """Seeded sampling is the sampler applied to the model's logits, whatever else runs beside it, or before it."""
    engine.add(prompts[4], endless(8, temperature=1.0))  # without a seed
    requests = [engine.add(prompts[i], params) for i, params in enumerate(SAMPLINGS)]
    drain(engine)
    for request in requests:
        produced, request.token_ids = request.token_ids, []
        for token in produced:
            assert sample(reference.next_logits(request.all_token_ids)[None], [request])[0].token_id == token
            request.token_ids.append(token)


def test_seeds_differ_and_without_a_seed_chance_decides(engine):
    seeds = [*range(6), *[None] * 6]
    each = [SamplingParams(max_tokens=8, temperature=1.5, seed=seed) for seed in seeds]
    answers = [tuple(completion.token_ids) for completion in engine.generate([STORY] * 12, each)]
    assert len(set(answers[:6])) >= 4 and len(set(answers[6:])) >= 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_model(engine, reference, prompts, loaded, temperature):
    # In 8 bits a difference of 1e-6 may round a number of K or V to the neighbour of the reference's.
    near = 3e-2 if loaded.config.kv_int8 else 1e-4
    [completion] = engine.generate([prompts[0]], endless(12, logprobs=3, temperature=temperature, seed=1))
    assert len(completion.logprobs) == len(completion.token_ids) == 12
    for i, (token, entry) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        wanted = reference.next_logits(prompts[0] + completion.token_ids[:i]).log_softmax(-1)
        assert entry.logprob == pytest.approx(wanted[token].item(), abs=near)
        assert [value for _, value in entry.top] == pytest.approx(wanted.topk(3).values.tolist(), abs=near)


# ---- Bad input ----

BAD = [  # prompt, max_tokens, what the error says
    ("", 8, "empty"),
    ([], 8, "empty"),
    ("\ud800", 8, "surrogate"),
    ([4096], 8, "vocabulary"),
    ([5, -1], 8, "vocabulary"),
    ([1.5], 8, "integer"),
    ([True], 8, "integer"),
    ([7] * 60, 5, "context"),
    ([7] * 64, None, "context"),
]


def test_bad_requests_are_refused_and_nothing_else_suffers(make_engine, prompts):
    engine = make_engine(context_length=64)
    good = engine.add(prompts[0][:20], SamplingParams(max_tokens=4))
    for prompt, max_tokens, says in BAD:
        params = SamplingParams(max_tokens=max_tokens)
        with pytest.raises(ValueError, match=says):
            engine.add(prompt, params)
        with pytest.raises(ValueError, match=says):
            engine.generate([prompts[1][:20], prompt], params)
        assert list(engine.requests) == [good.request_id]
    drain(engine)
    assert good.finish_reason in ("stop", "length") and good.token_ids


def test_an_id_in_use_is_refused_and_never_chosen(engine):
    for request_id in ("one", "request-0"):
        engine.add(STORY, GREEDY, request_id)
        with pytest.raises(ValueError, match=f"'{request_id}'"):
            engine.add(STORY, GREEDY, request_id)
    assert engine.add(STORY, GREEDY).request_id not in ("one", "request-0")
    for request_id in list(engine.requests):
        engine.abort(request_id)


# ---- Steps, aborting, bookkeeping ----


def test_a_step_reports_what_changed(engine, prompts):
    assert engine.step() == []
    requests = [engine.add(prompt, GREEDY) for prompt in prompts[:3]]
    lengths = dict.fromkeys(requests, 0)
    while engine.has_unfinished:
        for request in engine.step():
            assert len(request.token_ids) > lengths[request] or request.finished
            lengths[request] = len(request.token_ids)
    assert engine.step() == []
    assert lengths == {request: len(request.token_ids) for request in requests}
    assert engine.stats()["generated_tokens"] == sum(lengths.values())


def test_any_order_of_adding_stepping_and_aborting(engine, prompts, expected):
    """An abort frees at any moment, and once more is harmless. The others have their tokens."""
    rng, requests, aborted = random.Random(4), {}, {}
    for _ in range(60):
        action = rng.random()
        if action < 0.2:
            i = rng.randrange(len(prompts))
            requests[engine.add(prompts[i], GREEDY)] = expected[i]
        elif action < 0.32 and requests:
            victim = rng.choice(list(requests))
            aborted.setdefault(victim, len(victim.token_ids))
            for request_id in (victim.request_id, victim.request_id, "unknown"):
                engine.abort(request_id)
        else:
            engine.step()
    drain(engine)
    for request, tokens in requests.items():
        gained = aborted.get(request, len(tokens))
        assert request.token_ids == tokens[:gained]
        assert (request.finish_reason == "abort") == (gained < len(tokens))
    assert {"abort", "stop"} < {request.finish_reason for request in requests}


def test_interrupted_generate_leaves_nothing(engine, prompts, monkeypatch):
    original, steps = engine.step, iter(range(4))

    def step():
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original()

    monkeypatch.setattr(engine, "step", step)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts[:3], GREEDY)


def test_interrupted_steps_harm_no_request(engine, prompts, expected, monkeypatch):
    """Each step is interrupted once, within `run` or behind it, and then done again. What it was to compute counts as
    computed only if it was: the others have their tokens, then and when the same prompts come again.
    """
    runners = [worker.engine for worker in engine.fleet.workers] if hasattr(engine, "fleet") else [engine]
    with monkeypatch.context() as patch:
        interruptions = [Interruptions(runner, patch) for runner in runners]
        patch.setattr(engine, "hooks", [Measured(engine, "model"), Watched(engine)])
        for around in (engine, PromptLogprobs(engine)):
            requests = [around.add(prompt, GREEDY) for prompt in prompts[:4]]
            while not all(request.finished for request in requests):
                with suppress(KeyboardInterrupt):  # each time, one more request is aborted
                    BaseEngine.generate(around, [prompts[7][:20]], endless(3))
                engine.check()
            assert [request.token_ids for request in requests] == expected[:4]
    assert {*MOMENTS[:3]} <= set().union(*(one.reached for one in interruptions))
    assert [request.token_ids for request in engine.generate(prompts[:8], GREEDY)] == expected[:8]


def test_timings_and_trace(engine, prompts, tmp_path):
    [completion] = engine.generate([prompts[0]], endless(5))
    timings = completion.timings
    assert len(timings.tokens) == 5
    assert timings.arrival < timings.tokens[0] <= timings.tokens[-1] <= timings.finished
    assert 0 < timings.time_to_first_token <= timings.end_to_end_latency
    assert sum(step.tokens for step in engine.trace) >= len(prompts[0])
    assert all(step.start < step.end and step.works for step in engine.trace)
    engine.trace.write_chrome_trace(tmp_path / "run.trace.json")
    assert json.loads((tmp_path / "run.trace.json").read_text())["traceEvents"]

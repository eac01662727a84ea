"""What every stage promises. A learner's own engine is graded by the same suite:

    cp -r 02_kv_cache my_02
    pytest tests/test_contract.py tests/test_contract_claims.py --engine my_02

All of it runs on the bundled checkpoint in float32, against transformers' `generate`. After each test the engine must
hold nothing any more: no request, no tensor (see `make_engine` in conftest.py). What common/engine.py does for every
stage is in tests/stages/test_stages.py.
"""

import random
from contextlib import suppress

import pytest
import torch.nn.functional as F

from common.engine import BaseEngine
from common.inspector.watched import Watched
from common.sampling import SamplingParams, sample
from common.serving.metrics import Measured
from common.serving.prompt_logprobs import PromptLogprobs
from tests.helpers.engine_options import GREEDY, MAX_TOKENS, drain, endless
from tests.helpers.interruptions import MOMENTS, Interruptions

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


def test_max_tokens_of_each_request(engine, prompts, expected):
    limits = [1, 2, MAX_TOKENS - 1, 1]
    each = [SamplingParams(max_tokens=limit) for limit in limits]
    for completion, tokens, limit in zip(engine.generate(prompts[:4], each), expected, limits, strict=False):
        assert completion.token_ids == tokens[:limit]
        assert completion.finish_reason == "length" or len(tokens) <= limit


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
    [full] = engine.generate([STORY], endless(24))
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


def test_logprobs_are_those_of_the_model(engine, reference, prompts):
    """Of its own distribution, which no temperature changes."""
    [completion] = engine.generate([prompts[0]], endless(12, logprobs=3, temperature=0.7, seed=1))
    assert len(completion.logprobs) == len(completion.token_ids) == 12
    for i, (token, entry) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        wanted = reference.next_logits(prompts[0] + completion.token_ids[:i]).log_softmax(-1)
        assert entry.logprob == pytest.approx(wanted[token].item(), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(wanted.topk(3).values.tolist(), abs=1e-4)


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


def test_interrupted_steps_harm_no_request(engine, prompts, expected, monkeypatch):
    """Each step is interrupted once, within `run` or behind it, and then done again. What it was to compute counts as
    computed only if it was: the others have their tokens, then and when the same prompts come again.
    """
    runners = [worker.engine for worker in engine.fleet.workers] if hasattr(engine, "fleet") else [engine]
    with monkeypatch.context() as patch:
        interruptions = [Interruptions(runner, patch) for runner in runners]
        patch.setattr(engine, "hooks", [Measured(engine, "model"), Watched(engine)])
        around = PromptLogprobs(engine)  # as in a server
        requests = [around.add(prompt, GREEDY) for prompt in prompts[:4]]
        while not all(request.finished for request in requests):
            with suppress(KeyboardInterrupt):  # each time, one more request is aborted
                BaseEngine.generate(around, [prompts[7][:20]], endless(3))
            engine.check()
        assert [request.token_ids for request in requests] == expected[:4]
    assert {*MOMENTS[:3]} <= set().union(*(one.reached for one in interruptions))
    assert [request.token_ids for request in engine.generate(prompts[:8], GREEDY)] == expected[:8]


def test_each_step_is_in_the_trace(engine, prompts):
    engine.generate([prompts[0]], endless(5))
    assert sum(step.tokens for step in engine.trace) >= len(prompts[0])
    assert all(step.start < step.end and step.works for step in engine.trace)

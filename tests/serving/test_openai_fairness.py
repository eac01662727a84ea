"""Fairness: calls for many answers, the longest prompts and the largest bodies do not hold up other clients."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest
from pydantic import ValidationError

from common.serving.openai_api import answers
from common.serving.openai_api.bodies import ChatBody, CompletionBody
from common.serving.prompt_logprobs import PromptLogprobs, PromptLogprobsParams
from common.stages import load_engine
from tests.helpers.serving_openai import CHAT, PROMPT, openai_server
from tests.helpers.serving_stage_03 import SteppingEngine, wait_until

# ---- Calls for many answers ----


@pytest.mark.parametrize("options", [[], ["--api-process"]])
def test_the_answers_of_one_call_are_computed_together(loaded, engine, options):
    with openai_server("06", loaded, *options, engine=engine) as service:
        answer = service.post(prompt=[PROMPT] * 16, n=2, max_tokens=2, ignore_eos=True)
        assert len(answer.json()["choices"]) == 32
    assert [len(step.works) for step in engine.trace] == [32, 32]


@pytest.mark.parametrize("options", [[], ["--api-process"]])
def test_a_call_is_queued_whole_or_refused(loaded, engine, options):
    with openai_server("06", loaded, "--max-queue", "3", *options, engine=engine) as service:
        for _ in range(3):  # a refused call keeps no place in the queue
            answer = service.post(prompt=[[5], [6], [4096]], max_tokens=200, ignore_eos=True)
            assert answer.status_code == 400
        assert service.post(prompt=[[5], [6], [7]], max_tokens=1).status_code == 200
        wait_until(service.idle)
    assert engine.trace.steps == 1, "a part of a refused call was computed"


def test_a_burst_finds_no_more_places_than_one_client_after_the_other(loaded):
    """Each takes its place before its prompt is tokenized: others come meanwhile."""
    engine = SteppingEngine(loaded)
    with openai_server("03", loaded, "--max-queue", "2", engine=engine) as service, ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(service.post, prompt=PROMPT, max_tokens=1) for _ in range(8)]
        wait_until(lambda: sum(answer.done() for answer in answers) >= 6)
        engine.allow()
        assert Counter(answer.result().status_code for answer in answers) == {200: 2, 429: 6}


# ---- Long texts, and long lists ----


def test_the_engine_and_its_tokenizer_belong_to_one_thread(loaded, monkeypatch):
    """An engine in the middle of a step, and a tokenizer that is in use, must not be asked by another thread.

    Prompts are tokenized by another tokenizer, on one thread beside the engine's.
    """
    engine, users = load_engine("03")(loaded), set()

    def watch(owner, name):
        function = getattr(owner, name)

        def call(*arguments, **options):
            of_engine = owner is engine or arguments[0] is engine.tokenizer
            users.add((of_engine, threading.current_thread().name.partition("_")[0]))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for name in ("add", "step", "abort", "stats"):
        watch(engine, name)
    for name in ("__call__", "apply_chat_template"):
        watch(type(loaded.tokenizer), name)
    with openai_server("03", loaded, engine=engine) as service:
        users.clear()  # building a server asks the engine, too
        for path, body in (
            ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "echo": True, "logprobs": 1}),
            ("/v1/chat/completions", CHAT),
            ("/generate", {"prompt": PROMPT, "max_tokens": 1}),
            ("/tokenize", {"prompt": "a text"}),
        ):
            assert service.post(path, **body).status_code == 200
        assert service.get("/metrics").status_code == service.get("/health").status_code == 200
        assert users == {(True, "engine"), (False, "tokenizer")}


@pytest.mark.parametrize(("name", "wrong"), [("prompt", -1), ("stop", 1), ("stop_token_ids", "a"), ("messages", {})])
def test_validation_stops_at_the_first_mistakes(name, wrong):
    """Without `fail_fast` pydantic lists every mistake: a megabyte of them takes seconds, in which no stream moves."""
    with pytest.raises(ValidationError) as error:
        (ChatBody if name == "messages" else CompletionBody).model_validate({"prompt": "a", name: [wrong] * 100_000})
    assert len(error.value.errors()) <= 8


# ---- Prompts that are scored ----

LONG_ECHO = {"prompt": [5] * 200, "max_tokens": 0, "echo": True, "logprobs": 20}


def test_a_prompt_is_scored_in_pieces_between_steps(loaded, engine):
    """Meanwhile another request gains a token after each piece. The answer, too, is written in slices, with pauses."""
    sizes = []  # tokens in each pass
    watching = engine.model.register_forward_hook(lambda model, inputs, hidden: sizes.append(len(inputs[0])))
    pauses = mock.patch.object(answers.asyncio, "sleep", wraps=asyncio.sleep)
    with watching, pauses as sleep, openai_server("06", loaded, engine=engine) as service, ThreadPoolExecutor() as pool:
        streaming = pool.submit(service.post, prompt=PROMPT, max_tokens=80, ignore_eos=True, stream=True)
        wait_until(lambda: engine.trace.steps > 5)
        answer = service.post(**LONG_ECHO)
        assert streaming.result().status_code == 200
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 200
    assert sleep.mock_calls.count(mock.call(answers.PAUSE)) == 200 // answers.SLICE
    pieces = [place for place, size in enumerate(sizes) if size > 6]
    assert [sizes[place] for place in pieces] == [64] * 3 + [7]
    assert all(after - before == 2 for before, after in pairwise(pieces)), "a step between pieces"


def test_prompts_to_be_scored_count_against_the_queue(loaded):
    engine = SteppingEngine(loaded)
    with openai_server("03", loaded, "--max-queue", "4", engine=engine) as service, ThreadPoolExecutor() as pool:
        scoring = pool.submit(service.post, **LONG_ECHO | {"prompt": PROMPT, "max_tokens": 1}, n=2)
        wait_until(lambda: engine.requests)
        refused = service.post(**LONG_ECHO | {"prompt": ["a", "b"], "stream": True})  # there is room for one
        assert refused.status_code == 429 and refused.headers["retry-after"]
        assert refused.json()["error"]["type"] == "rate_limit_error"
        engine.allow()
        assert scoring.result().status_code == 200


def test_scoring_stops_when_its_client_disconnects_and_when_a_shutdown_has_waited_long_enough(loaded, engine):
    with mock.patch("common.serving.prompt_logprobs.scores", endless_scores), ThreadPoolExecutor() as pool:
        with openai_server("06", loaded, "--api-process", engine=engine) as service:
            service.hang_up_after(LONG_ECHO)
            wait_until(service.idle)
            scoring = pool.submit(service.post, **LONG_ECHO)
            wait_until(lambda: service.thread.stats["unfinished"])
            service.thread.deadline = 0
        assert scoring.result().status_code == 503


def endless_scores(*_):
    while True:
        time.sleep(0.001)
        yield []


def test_scoring_uses_the_model_without_the_engines_wrappers(engine):
    """The wrapper of CUDA graphs keeps the logits of its last replay, for the rows of that batch."""
    engine.model = SimpleNamespace(model=engine.model)
    scoring = PromptLogprobs(engine)
    request = scoring.add([5, 6, 7], PromptLogprobsParams(logprobs=1))
    assert scoring.step() == [request] and len(request.logprobs) == 3

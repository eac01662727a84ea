"""What one client may do to the others: calls for many answers, the longest prompts, the most of everything."""

import copy
import threading
from unittest import mock

import httpx
import pytest
from pydantic import ValidationError
from serving_openai import openai_server
from serving_stage_03 import wait_until

from common.serving.openai_api.bodies import ChatBody, CompletionBody
from common.stages import load_engine

PROMPT = "Once upon a time"


@pytest.fixture
def engine(loaded):
    return load_engine("06")(loaded)


def post(service, path="/v1/completions", **body) -> httpx.Response:
    return httpx.post(f"{service.url}{path}", json=body, timeout=120)


# ---- Calls for many answers ----


@pytest.mark.parametrize("many", [{"prompt": [PROMPT] * 32}, {"prompt": PROMPT, "n": 32}], ids=["prompts", "choices"])
def test_the_answers_of_one_call_are_computed_together(loaded, engine, many):
    with openai_server("06", loaded, engine=engine) as service:
        answer = post(service, max_tokens=2, ignore_eos=True, **many)
        assert len(answer.json()["choices"]) == 32
    assert [len(step.works) for step in engine.trace] == [32, 32]


@pytest.mark.parametrize("last", [[5] * 5000, [4096]], ids=["too long", "no token"])
def test_a_call_is_taken_whole_or_not_at_all(loaded, engine, last):
    with openai_server("06", loaded, "--max-queue", "3", engine=engine) as service:
        for _ in range(3):  # what is refused keeps no room
            answer = post(service, prompt=[[5], [6], last], max_tokens=200, ignore_eos=True)
            assert answer.status_code == 400
        assert post(service, prompt=[[5], [6], [7]], max_tokens=1).status_code == 200
        wait_until(service.idle)
    assert engine.trace.steps == 1, "a part of a refused call was computed"


# ---- Long texts, and long lists ----


def test_prompts_are_tokenized_beside_the_engine(loaded, engine):
    threads = set()

    class Watched(type(loaded.tokenizer)):
        def __call__(self, *arguments, **options):
            threads.add(threading.current_thread().name)
            return super().__call__(*arguments, **options)

    engine.tokenizer = copy.deepcopy(loaded.tokenizer)
    engine.tokenizer.__class__ = Watched
    with openai_server("06", loaded, engine=engine) as service:
        messages = [{"role": "user", "content": "Hi"}]
        assert post(service, prompt=[PROMPT, "a"], max_tokens=1).status_code == 200
        assert post(service, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1).status_code == 200
        assert post(service, "/v1/chat/completions", messages=messages, max_tokens=1).status_code == 200
        assert post(service, "/generate", prompt=PROMPT, max_tokens=1).status_code == 200
        assert post(service, "/tokenize", prompt=PROMPT).status_code == 200
    assert len(threads) == 1 and threads.pop().startswith("tokenizer")


def test_a_text_that_cannot_fit_is_not_tokenized(loaded, engine):
    tokenizer = engine.tokenizer = copy.deepcopy(loaded.tokenizer)
    with openai_server("06", loaded, engine=engine) as service:
        longest = max(map(len, tokenizer.get_vocab()))
        text = "a" * (loaded.config.context_length * longest + 1)
        with mock.patch.object(type(tokenizer), "__call__", side_effect=AssertionError("it was tokenized")):
            for path in ("/v1/completions", "/generate", "/tokenize", "/v1/chat/completions"):
                body = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
                answer = post(service, path, **body)
                assert answer.status_code == 400 and f"{len(text)} characters" in answer.text, path


def test_a_body_full_of_mistakes_is_refused_at_the_first():
    """Pydantic lists every mistake if it is let: a megabyte of them takes seconds, in which no stream moves."""
    many = 100_000
    for name, value in {
        "prompt": [-1] * many,
        "stop": [1] * many,
        "stop_token_ids": ["a"] * many,
        "messages": [{}] * many,
    }.items():
        model = ChatBody if name == "messages" else CompletionBody
        with pytest.raises(ValidationError) as error:
            model.model_validate({"prompt": "a", name: value})
        assert len(error.value.errors()) <= 8, name
    with pytest.raises(ValidationError, match="at most 2048 items"):
        CompletionBody.model_validate({"prompt": ["a"] * many})

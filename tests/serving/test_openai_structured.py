"""Structured output and tools over HTTP, with OpenAI's own client."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import Literal

import pytest
from pydantic import BaseModel
from tokenizers import AddedToken

from common.grammars import END, TAG
from common.stages import load_engine
from tests.helpers.serving_openai import openai_server
from tests.helpers.small_models import random_model

QUESTION = [{"role": "user", "content": "Who is it?"}]


class Inner(BaseModel, extra="forbid"):
    kind: Literal["cat", "dog"]
    legs: Literal[3, 4]


class Pet(BaseModel, extra="forbid"):
    inner: Inner
    loud: bool


def tool(name: str) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": Pet.model_json_schema()}}


TOOLS = [tool("adopt"), tool("sell_it")]
UNUSED = {"json": None, "disable_any_whitespace": False, "whitespace_pattern": None, "structural_tag": None}


@pytest.fixture(scope="module")
def service(draft):
    """Of stage 07, whose pieces have several tokens; tests/common/test_structured_output.py asks the other stages."""
    engine = load_engine("07")(draft, draft="draft", num_draft_tokens=2)
    with openai_server("07", draft, engine=engine) as service:
        yield service


@pytest.fixture(scope="module", params=[False, True], ids=["added", "special"])
def tokens(request, draft):
    """A server of a random model to which each tag is one token: an added one, as to Qwen3, or a special one."""
    tokenizer, special = deepcopy(draft.tokenizer), request.param
    tokenizer.chat_template = TAG + tokenizer.chat_template
    tokenizer.add_tokens([AddedToken(tag, special=special) for tag in (TAG, END)], special_tokens=special)
    random = randomized(draft, tokenizer, len(tokenizer))
    with openai_server("06", random) as service:
        yield service


def randomized(loaded, tokenizer, vocab_size: int, **fields):
    """Return a random model with another tokenizer and so many tokens."""
    config = replace(loaded.config, vocab_size=vocab_size)
    named = {"name": "random", "tokenizer": tokenizer, "config": config, "model": random_model(config)}
    return replace(loaded, **named, **fields)


def test_both_endpoints_take_both_fields(service):
    [brace] = service.post("/tokenize", prompt="}").json()["tokens"]
    forms = [
        ({"structured_outputs": {"json": json.dumps(Pet.model_json_schema())}}, Pet.model_validate_json),
        ({"structured_outputs": {"regex": "[ab]{2}[0-9]"}}, lambda text: re.fullmatch("[ab]{2}[0-9]", text)[0]),
        ({"structured_outputs": {"choice": ["left", "right"]}}, ["left", "right"].index),
        ({"structured_outputs": UNUSED | {"regex": "a"}, "response_format": {"type": "text"}}, ["a"].index),
        ({"structured_outputs": {"grammar": 'start: "a" "b"~2'}}, ["abb"].index),
        ({"response_format": {"type": "json_object"}, "logit_bias": {str(brace): 100}}, json.loads),
    ]
    for fields, parse in forms:
        body = {"max_tokens": 150, "temperature": 1.0} | fields
        stream = service.client.completions.create(model=service.name, prompt="It is ", stream=True, extra_body=body)
        parse("".join(chunk.choices[0].text for chunk in stream))
        [choice] = service.post("/v1/chat/completions", messages=QUESTION, **body).json()["choices"]
        parse(choice["message"]["content"])


def test_tags_that_are_tokens(tokens):
    [tag], [line] = (tokens.post("/tokenize", prompt=text).json()["tokens"] for text in (TAG, "\n"))
    fields = {"tools": TOOLS, "logit_bias": {str(tag): 100}, "seed": 2, "max_tokens": 80}
    for choice in ("required", "auto"):
        content, calls, _ = tokens.said(QUESTION, **fields, tool_choice=choice)
        assert content is None and Pet.model_validate_json(calls[0][calls[0].index("(") + 1 : -1])
    one = {"logit_bias": {str(tag): 100, str(line): 100}, "max_tokens": 400, "parallel_tool_calls": False}
    content, calls, reason = tokens.said(QUESTION, **fields | one)
    assert len(calls) == 1 and reason == "tool_calls"
    content, calls, _ = tokens.said(QUESTION, **fields | {"logit_bias": {str(tag): -100}})
    assert content and not calls


@pytest.mark.parametrize(
    ("tokens", "model", "end"), [(4097, 4096, 0), (4130, 4160, 4098), (4130, 4098, 4098), (4097, 4160, 4098)]
)
def test_tokenizer_model_and_ends_may_have_any_sizes(draft, tokens, model, end):
    """An answer has its form all the same, or there is no token that ends it."""
    tokenizer = deepcopy(draft.tokenizer)
    tokenizer.add_tokens([f"<more-{number}>" for number in range(len(tokenizer), tokens)])
    odd = randomized(draft, tokenizer, model, eos_token_ids=frozenset({end}))
    with openai_server("06", odd) as service:
        form = {"structured_outputs": {"regex": "[ab]{3}"}}
        answer = service.post("/v1/chat/completions", messages=QUESTION, max_tokens=9, **form)
    if end >= min(tokens, model):
        assert answer.status_code == 400 and "ends a text" in answer.json()["error"]["message"]
    else:
        assert answer.json()["choices"][0]["finish_reason"] == "stop", answer.text

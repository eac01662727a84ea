"""Structured output and tools over HTTP, with OpenAI's own client."""

import json
import re
from copy import deepcopy
from typing import Literal

import openai
import pytest
from pydantic import BaseModel
from tokenizers import AddedToken

from common.grammars import END, TAG
from common.loader import find_checkpoint, load_model
from common.serving.openai_api.structured import parse_calls
from common.stages import load_engine
from tests.helpers.serving_openai import openai_server

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
NAMED = {"type": "function", "function": {"name": "adopt"}}


@pytest.fixture(scope="module")
def loaded():
    """The model that drafts for the bundled one: a form is kept whatever the model is like."""
    return load_model("draft", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def service(loaded):
    """Of stage 07, whose pieces have several tokens; tests/common/test_structured_output.py asks the other stages."""
    engine = load_engine("07")(loaded, draft="draft", num_draft_tokens=2)
    with openai_server("07", loaded, engine=engine) as service:
        yield service


@pytest.fixture(scope="module")
def teaching(loaded):
    """A server of a model whose template teaches calls, as Qwen's does."""
    loaded.tokenizer.chat_template, before = TAG + loaded.tokenizer.chat_template, loaded.tokenizer.chat_template
    with openai_server("06", loaded, engine=load_engine("06")(loaded)) as service:
        loaded.tokenizer.chat_template = before
        yield service


@pytest.fixture(scope="module", params=[False, True], ids=["added", "special"])
def tokens(request, loaded, tmp_path_factory):
    """A server of a random model to which each tag is one token: an added one, as to Qwen3, or a special one."""
    folder, tokenizer = tmp_path_factory.mktemp("tags"), deepcopy(loaded.tokenizer)
    tokenizer.chat_template = TAG + tokenizer.chat_template
    tokenizer.add_tokens([AddedToken(tag, special=request.param) for tag in (TAG, END)], special_tokens=request.param)
    tokenizer.save_pretrained(folder)
    config = json.loads((find_checkpoint(loaded.name, with_weights=False) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(tokenizer)}))
    random = load_model(str(folder), device="cpu", load_format="dummy")
    with openai_server("06", random, engine=load_engine("06")(random)) as service:
        yield service


def chat(service, messages=QUESTION, **options):
    return service.client.chat.completions.create(
        model=service.name, messages=messages, **{"max_tokens": 200} | options
    )


def streamed_calls(chunks) -> tuple[list[str], str]:
    """Return the calls of a stream, `name(arguments)` each, and the finish reason."""
    calls, reason = {}, None
    for chunk in chunks:
        assert not chunk.choices[0].delta.content
        for part in chunk.choices[0].delta.tool_calls or []:
            calls[part.index] = calls.get(part.index, (part.function.name, ""))
            calls[part.index] = calls[part.index][0], calls[part.index][1] + part.function.arguments
        reason = chunk.choices[0].finish_reason or reason
    return [f"{name}({arguments})" for name, arguments in calls.values()], reason


def test_parse_returns_a_model(service):
    options = {"model": service.name, "messages": QUESTION, "response_format": Pet, "max_tokens": 100}
    answer = service.client.chat.completions.parse(**options)
    with service.client.chat.completions.stream(**options) as stream:
        for completion in (answer, stream.get_final_completion()):
            assert isinstance(completion.choices[0].message.parsed, Pet)


def test_both_endpoints_take_both_fields(service):
    [brace] = service.post("/tokenize", prompt="}").json()["tokens"]
    forms = [
        ({"structured_outputs": {"json": Pet.model_json_schema()}}, Pet.model_validate_json),
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


def test_named_and_required_tools(service):
    messages = [*QUESTION, {"role": "assistant", "content": "A pet."}, *QUESTION]
    for choice, reason in ((NAMED, "stop"), ("required", "tool_calls")):
        options = {"messages": messages, "tools": TOOLS, "tool_choice": choice, "seed": 5}
        [answer] = chat(service, **options).choices
        [call] = answer.message.tool_calls
        assert call.function.name in ("adopt", "sell_it") and answer.message.content is None
        assert Pet.model_validate_json(call.function.arguments) and answer.finish_reason == reason
        calls, ended = streamed_calls(chat(service, stream=True, **options))
        assert calls == [f"{call.function.name}({call.function.arguments})"] and ended == reason
    tool = openai.pydantic_function_tool(Pet)
    parsed = service.client.chat.completions.parse(
        model=service.name, messages=QUESTION, tools=[tool], tool_choice="required"
    )
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Pet)


def test_a_template_that_teaches_calls(teaching):
    [answer] = chat(teaching, tools=TOOLS, tool_choice="required", seed=2, max_tokens=80).choices
    assert answer.finish_reason in ("tool_calls", "length")
    Pet.model_validate_json(answer.message.tool_calls[0].function.arguments)
    [answer] = chat(teaching, tools=TOOLS, temperature=0).choices  # auto: this model does not call
    [free] = chat(teaching, temperature=0).choices
    assert answer.message.content == free.message.content and not answer.message.tool_calls
    call = {"id": "1", "type": "function", "function": {"name": "adopt", "arguments": "{}"}}
    history = [{"role": "assistant", "tool_calls": [call]}]
    assert chat(
        teaching, [*QUESTION, *history, {"role": "tool", "tool_call_id": "1", "content": "done"}], max_tokens=1
    ).choices


def test_tags_that_are_tokens(tokens):
    [tag], [line] = (tokens.post("/tokenize", prompt=text).json()["tokens"] for text in (TAG, "\n"))
    for choice in ("required", "auto"):
        options = {"tools": TOOLS, "tool_choice": choice, "logit_bias": {str(tag): 100}, "seed": 2, "max_tokens": 80}
        [answer] = chat(tokens, **options).choices
        functions = [call.function for call in answer.message.tool_calls]
        assert answer.message.content is None and Pet.model_validate_json(functions[0].arguments)
        calls, _ = streamed_calls(chat(tokens, stream=True, **options))
        assert calls == [f"{function.name}({function.arguments})" for function in functions]
        fields = {"logit_bias": {str(tag): 100, str(line): 100}, "max_tokens": 400, "parallel_tool_calls": False}
        [answer] = chat(tokens, **options | fields).choices
        assert len(answer.message.tool_calls) == 1 and answer.finish_reason == "tool_calls"
    [answer] = chat(tokens, **options | {"logit_bias": {str(tag): -100}}).choices
    assert answer.message.content and not answer.message.tool_calls


def test_calls_are_found_in_any_beginning_of_a_text():
    calls = [("adopt", '{"a": "</tool_call>"}'), ("sell", "{}")]
    text = "Well < then\n" + "\n".join(
        f'{TAG}\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in calls
    )
    assert parse_calls(text, True) == ("Well < then\n", calls)
    for end in range(len(text)):
        content, some = parse_calls(text[:end], False)
        assert "Well < then\n".startswith(content) and some == calls[: len(some)], text[:end]
    assert parse_calls("a < b", True) == ("a < b", [])


REFUSED = {
    "auto": ({"tools": TOOLS}, "known format of calls"),
    "unknown tool": ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "eat"}}}, "'eat'"),
    "two forms": ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "contradict"),
    "two kinds": ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "exactly one"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "json_schema"),
    "bad schema": ({"structured_outputs": {"json": {"type": "thing"}}}, "cannot be enforced"),
    "strict": (
        {"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": {"not": {}}}}},
        "cannot be enforced",
    ),
    "min_tokens": ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_a_sentence(service, name):
    fields, reason = REFUSED[name]
    answer = service.post("/v1/chat/completions", messages=QUESTION, **fields)
    assert answer.status_code == 400 and reason in answer.json()["error"]["message"]

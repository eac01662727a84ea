"""`/v1/responses` with OpenAI's own client, and with the bodies that clients of agents send."""

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.grammars import END, TAG
from tests.helpers.scripted import scripted_server
from tests.helpers.serving_openai import openai_server
from tests.serving.test_openai_structured import Inner

CLIENTS = [json.loads(line) for line in Path(__file__).with_name("responses_clients.jsonl").open()]
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "name": "look", "parameters": PATH, "strict": True}
CALL = f'{TAG}\n{{"name": "look", "arguments": {{"path": "/"}}}}\n{END}'


@pytest.fixture(scope="module")
def scripted(draft):
    with scripted_server(draft) as service:
        yield service


def ask(service, **body):
    """Return a response, which is the same whole and streamed, and its items in short."""
    body = {"model": service.name, "input": "Who?", "temperature": 0} | body
    *events, last = service.client.responses.create(**body, stream=True)
    assert [one.sequence_number for one in [*events, last]] == [*range(len(events) + 1)]
    assert events[0].type == "response.created" and last.type == f"response.{last.response.status}"
    done = [one.item for one in events if one.type == "response.output_item.done"]
    whole = service.client.responses.create(**body)
    items = [[(one.type, one.status, said(one)) for one in some] for some in (whole.output, last.response.output, done)]
    assert items[0] == items[1] == items[2] and whole.usage.total_tokens == last.response.usage.total_tokens
    deltas = "".join(one.delta for one in events if one.type.endswith(".delta"))
    assert deltas == "".join(text for _, _, text in items[0])
    return whole, items[0]


def said(item) -> str:
    return item.content[0].text if item.type == "message" else item.arguments


def test_a_response_is_what_a_chat_answers(service):
    turns = [{"role": "user", "content": "Count from 1 to 5."}, {"role": "assistant", "content": "1"}]
    turns.append({"role": "user", "content": "And now from 2?"})
    messages = [{"role": "system", "content": "Be brief."}, *turns]
    chat = service.client.chat.completions.create(model=service.name, messages=messages, temperature=0)
    response, items = ask(service, instructions="Be brief.", input=turns, store=False)
    assert items == [("message", "completed", chat.choices[0].message.content)] and response.output_text
    counted = response.usage.input_tokens, response.usage.output_tokens
    assert counted == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    response, [(_, status, text)] = ask(service, input=turns, max_output_tokens=2)
    assert (response.status, status) == ("incomplete", "incomplete") and text
    assert response.incomplete_details.reason == "max_output_tokens" and response.usage.output_tokens == 2


def test_answers_have_the_schema_of_a_type(service):
    body = {"model": service.name, "input": "Who?", "text_format": Inner, "temperature": 0}
    with service.client.responses.stream(**body) as stream:
        streamed = stream.get_final_response().output_parsed
    assert service.client.responses.parse(**body).output_parsed == streamed
    assert isinstance(streamed, Inner)


def test_texts_and_calls_are_items_in_their_order_and_go_back_as_one_message(scripted):
    model = scripted.engine.model
    model.write(f"Well:\n{CALL}\n{CALL}\nDone.")
    response, items = ask(scripted, tools=[TOOL])
    call = ("function_call", "completed", '{"path": "/"}')
    assert items == [("message", "completed", "Well:\n"), call, call, ("message", "completed", "\nDone.")]
    results = [
        {"type": "function_call_output", "call_id": one.call_id, "output": "etc"} for one in response.output[1:3]
    ]
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]}
    history = [{"role": "user", "content": "Who?"}, thought, *response.output[:3], *results]
    ask(scripted, input=history, tools=[TOOL])
    shown = model.prompt[model.prompt.index("Who?") :]
    assert [len(re.findall(part, shown)) for part in ("Well:", TAG, "<tool_response>\netc")] == [1, 2, 2]
    model.write('{"path": "/etc"}')
    for most, status in ((4, "incomplete"), (60, "completed")):
        named = {"type": "function", "name": "look"}
        response, [(kind, ended, text)] = ask(scripted, tools=[TOOL], tool_choice=named, max_output_tokens=most)
        assert (kind, ended, response.status) == ("function_call", status, status) and '{"path": "/etc"}'.startswith(
            text
        )
    model.write("")
    assert ask(scripted, tools=[TOOL])[1] == [("message", "completed", "")]


@pytest.mark.parametrize("sent", CLIENTS, ids=[one["client"] for one in CLIENTS])
def test_what_clients_of_agents_send(scripted, sent):
    """Bodies that pydantic-ai 2.68 and openai-agents 0.24 sent with their defaults."""
    scripted.engine.model.write("It is sunny.")
    answer = scripted.post("/v1/responses", **sent["body"] | {"model": scripted.name})
    assert answer.status_code == 200, answer.text
    for part in sent["prompt"]:
        assert part in scripted.engine.model.prompt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_ends_the_stream_with_an_event(loaded, engine, monkeypatch):
    with openai_server("06", loaded, engine=engine) as service:
        body = {"model": service.name, "input": "Who?", "extra_body": {"ignore_eos": True}, "max_output_tokens": 2000}
        events = service.client.responses.create(**body, stream=True)
        assert next(events).type == "response.created"
        monkeypatch.setattr(engine, "step", Mock(side_effect=MemoryError))
        *_, last = events
        assert last.type == "response.failed" and "the engine failed" in last.response.error.message

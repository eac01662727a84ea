"""Tools over HTTP: which answers are calls, what cut ones become, and how templates come by tools and their results."""

import re
from copy import deepcopy
from dataclasses import replace

import pytest

from common.errors import InvalidInput
from common.grammars import END, TAG
from common.serving.openai_api.structured import CallParser
from common.serving.openai_api.templates import set_template
from tests.helpers.scripted import scripted_server

NAMES = ["rm_rf", "look", "look_up"]
PATH = {"type": "object", "properties": {"path": {}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PATH}} for name in NAMES]
NAMED = {"type": "function", "function": {"name": "rm_rf"}}
QUESTION = [{"role": "user", "content": "Clean up."}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
ANSWER = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}


@pytest.fixture(scope="module")
def service(draft):
    """A server whose model answers what a test says; its template knows no tools."""
    with scripted_server(draft) as service:
        yield service


def written(arguments: str, name: str = "look") -> str:
    return f'{TAG}\n{{"name": "{name}", "arguments": {arguments}}}\n{END}'


def ask(service, text: str, messages=QUESTION, **fields) -> tuple[str | None, list[str], str]:
    """Return content, calls and finish reason when the model says this text."""
    service.engine.model.write(text)
    return service.said(messages, temperature=0, **{"tools": TOOLS} | fields)


INNER = '{"path": {"name": "look", "arguments": {"path": "}\\n</tool_call>"}}}'
SAID = {  # what the model says: the calls in it
    'Never run {"name": "look", "arguments": {"path": "/"}}, I refuse.': [],
    f'\n{{"name": "look", "arguments": {INNER}}}\n</tool_call> <tool': [],
    written(INNER): [f"look({INNER})"],
    f"{written('{}')}\n{written(INNER, 'look_up')}": ["look({})", f"look_up({INNER})"],
    f"Well < then:\n{written('{}')}\nDone.": ["look({})"],
}


@pytest.mark.parametrize("text", SAID)
def test_a_call_is_what_the_grammar_made_as_one(service, text):
    content, calls, reason = ask(service, text)
    assert (calls, reason) == (SAID[text], "tool_calls" if calls else "stop")
    assert (content or "").split() == re.sub(f"{TAG}.*{END}", "", text, flags=re.DOTALL).split() or not calls
    assert calls or content == text
    assert ask(service, text, parallel_tool_calls=False)[1] == calls[:1]


@pytest.mark.parametrize("path", ["7" * 5000, "[" * 5000 + "]" * 5000], ids=["digits", "depth"])
def test_arguments_may_be_longer_and_deeper_than_python_reads(path):
    arguments = f'{{"path": {path}}}'
    assert CallParser(NAMES, True).feed(written(arguments), True) == ("", [(0, "look", arguments)])


def test_a_cut_call_has_cut_arguments_and_its_history_goes_on(service):
    arguments = '{"path": ["/a", {"b": true}]}'
    histories = {""}
    for choice, text in (("required", written(arguments)), ("auto", written(arguments)), (NAMED, arguments)):
        for most in range(1, len(service.post("/tokenize", prompt=text).json()["tokens"]), 7):
            content, calls, reason = ask(service, text, tool_choice=choice, max_tokens=most)
            assert reason == "length" and TAG.startswith(content or "")
            assert content is None or choice == "auto", "what begins a tag may be text there"
            histories |= {call[call.index("(") + 1 : -1] for call in calls}
    assert len(histories) > 4 and all(arguments.startswith(some) for some in histories)
    for some in histories:
        messages = called("1", some)
        assert ask(service, "Sorry.", messages)[0] == "Sorry." and "nothing" in service.engine.model.prompt


def called(number: str, arguments: str) -> list[dict]:
    """Return a history with a call and its result, as clients send it."""
    call = {"id": number, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": number, "name": "look", "content": "nothing"},
    ]


@pytest.mark.parametrize("form", [ANSWER, {"structured_outputs": {"grammar": 'start: "{" /.*/'}}])
def test_typed_agents_send_tools_and_a_form(service, form):
    answer, call = '{"x": "<tool_call>"}', written('{"path": 1}')
    assert ask(service, answer, **form) == (answer, [], "stop")
    for choice in ("auto", "required"):
        assert ask(service, call, **form, tool_choice=choice) == (None, ['look({"path": 1})'], "tool_calls")
    content, calls, _ = ask(service, "Free text", **form, tool_choice="required", max_tokens=30)
    assert content is None and calls
    assert "Free" not in (ask(service, "Free text", **form, max_tokens=5)[0] or "")


# ---- Templates ----

PLAIN = "{% for m in messages %}[{{ m.role }}{{ m.name }}]{{ m.content }}\n{% endfor %}"
PARTS = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}"
STRICT = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}[{{ m.role }}]{{ m.content }}
{% endfor %}"""
IDS = """{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}
{{ raise_exception('ids have length 9') }}{% endif %}[CALL]{{ c.function.arguments | tojson }}{% endfor %}
{% elif m.role == 'tool' %}[RESULT {{ m.tool_call_id }} {{ m.name }}]{{ m.content }}
{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"""
TEACHING = f"{TAG}{{% for t in tools %}}[{{{{ t.function.name }}}}]{{% endfor %}}{PLAIN}"
TWO = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
HISTORY = called("abcdefghi", '{"path": 1}')
SEEN = {  # template, messages, what the prompt has
    "a name": (PLAIN, [{"role": "user", "name": "Ann", "content": "x"}], "[userAnn]x"),
    "parts for texts": (PLAIN, TWO, "[user]one\ntwo"),
    "a text for parts": (PARTS, QUESTION, "[user]Clean up.|"),
    "parts": (PARTS, TWO, "[user]one|two|"),
    "ids": (IDS, HISTORY, '[CALL]{"path": 1}[RESULT abcdefghi look]nothing'),
    "calls as text": (STRICT, HISTORY, "[assistant]" + written('{"path": 1}') + "\n[user]<tool_response>\nnothing"),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_a_template_may_read_reaches_it_and_tools_do(service, monkeypatch, name):
    template, messages, expected = SEEN[name]
    monkeypatch.setattr(service.thread.tokenizer, "chat_template", template)
    assert ask(service, "Ok.", messages, tools=None)[0] == "Ok."
    assert expected in service.engine.model.prompt
    messages = [{"role": "system", "content": "Be brief."}, *HISTORY]
    assert ask(service, written("{}"), messages) == (None, ["look({})"], "tool_calls")
    for part in ("Clean up.", "<tools>\n", '"rm_rf"', "nothing", '{"path": 1}', "Be brief."):
        assert service.engine.model.prompt.count(part) == 1, part


def test_one_of_several_named_templates(service, monkeypatch):
    monkeypatch.setattr(service.thread.tokenizer, "chat_template", {"default": PLAIN, "tool_use": TEACHING})
    for fields, prompt in (({"tools": None}, ""), ({}, f"{TAG}[rm_rf][look][look_up]")):
        ask(service, "Ok.", **fields)
        assert service.engine.model.prompt == f"{prompt}[user]Clean up.\n"


def test_a_file_replaces_the_checkpoints_template(draft, tmp_path, capsys):
    (tmp_path / "chat.jinja").write_text(PLAIN)
    mine = replace(draft, tokenizer=deepcopy(draft.tokenizer))
    with scripted_server(mine, "--chat-template", str(tmp_path / "chat.jinja")) as service:
        ask(service, "Ok.", tools=None)
        assert service.engine.model.prompt == "[user]Clean up.\n"
    assert "--chat-template" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"{% for m in messages %}{{ m.content }}", b"Hello.", b"\xff\xfe{{"])
def test_a_file_that_is_no_chat_template_is_refused_at_the_start(draft, tmp_path, content):
    (file := tmp_path / "chat.jinja").write_bytes(content)
    with pytest.raises(InvalidInput, match="shows no message"):
        set_template(deepcopy(draft.tokenizer), file)

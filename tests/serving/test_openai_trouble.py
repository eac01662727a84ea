"""Bodies that are odd or too large, web pages, clients that disconnect, and an engine that fails."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import httpx
import pytest

from common.serving.openai_api.routes import Service
from common.stages import load_engine
from tests.helpers.refused import TABLE, assert_refused, refusals
from tests.helpers.serving_openai import CHAT, ENDLESS, openai_server
from tests.helpers.serving_stage_03 import wait_until

PAGE = "https://example.org"

# ---- What is refused, and how ----


@refusals(*TABLE)
def test_bad_requests_say_what_is_wrong(service, place, row):
    with httpx.Client(base_url=service.url, timeout=60) as client:
        assert_refused(client, place, row)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_body_is_json_whatever_it_is_declared_as_unless_it_comes_from_a_web_page(service, path):
    """`curl -d` declares a form. So may the form of a web page, which its browser sends without asking the server."""
    content, page = b'{"prompt": "a", "max_tokens": 1}', {"Origin": PAGE}
    for headers, refused in (
        ({}, False),
        ({"Content-Type": "application/x-www-form-urlencoded"}, False),
        (page, True),
        (page | {"Content-Type": "text/plain"}, True),
        (page | {"Content-Type": "application/json"}, False),  # For JSON a browser asks the server first.
    ):
        answer = httpx.post(f"{service.url}{path}", content=content, headers=headers)
        assert answer.status_code == (415 if refused else 200)
        assert not refused or isinstance(answer.json()["error"], str) == (path == "/generate")


@pytest.mark.parametrize("depth", [480, 940, 3000])
@pytest.mark.parametrize(
    "fields",
    [
        '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": DEEP}}',
        '"structured_outputs": {"json": DEEP}',
        '"tools": [{"type": "function", "function": {"name": "a", "parameters": DEEP}}], "tool_choice": "required"',
        '"chat_template_kwargs": DEEP',
        '"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "DEEP"}}]}]',
    ],
)
def test_what_is_nested_deep_is_no_fault_of_the_server(service, fields, depth):
    deep = '{"items": ' * depth + "{}" + "}" * depth
    fields = fields.replace('"DEEP"', json.dumps(deep)).replace("DEEP", deep)
    content = f"{json.dumps(CHAT)[:-1]}, {fields}}}"
    assert httpx.post(f"{service.url}/v1/chat/completions", content=content, timeout=60).status_code in (200, 400)


PLAIN = """{"temperature": 0, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?", "reasoning": "", "reasoning_content": ""},
    {"role": "user", "content": "Hi", "name": "me"}]}"""
MORE = """, "max_tokens": 4.0, "top_k": 1.0, "seed": 5.0, "min_tokens": 0.0, "logprobs": true, "top_logprobs": 1.0,
    "n": 1.0, "reasoning_effort": "low", "priority": 0, "echo": false, "add_generation_prompt": true, "user": "me",
    "metadata": {"a": "b"}, "best_of": 1, "logit_bias": {}, "suffix": null, "tools": [],
    "response_format": {"type": "text"}}"""


def test_fields_that_change_nothing_are_ignored(service):
    """As clients send them; JSON has one kind of numbers."""
    both = (httpx.post(f"{service.url}/v1/chat/completions", content=sent) for sent in (PLAIN, PLAIN[:-1] + MORE))
    one, other = (answer.json()["choices"][0] for answer in both)
    assert one["message"] == other["message"] and len(other["logprobs"]["content"]) == 4
    assert service.post(prompt="a", max_tokens=4.0, logprobs=1.0, echo=False).status_code == 200


def test_a_model_without_a_chat_template(loaded):
    bare = copy.deepcopy(loaded.tokenizer)
    bare.chat_template = None
    with openai_server("03", replace(loaded, tokenizer=bare)) as service:
        answer = service.post("/v1/chat/completions", **CHAT)
        assert answer.status_code == 400 and "no chat template" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
def test_head_is_get_without_a_body(service, path):
    answer = httpx.head(f"{service.url}{path}")
    assert answer.status_code == 200 and not answer.content


@pytest.mark.parametrize(("version", "chunked"), [("1.0", False), ("1.1", True)])
def test_streams_have_chunks_for_clients_that_know_them(service, version, chunked):
    """An answer of HTTP/1.0 ends with the connection. The first line comes in two pieces, behind an empty one."""
    body = json.dumps({"prompt": "a", "max_tokens": 5, "stream": True, "ignore_eos": True})
    lines = f"POST /v1/completions HTTP/{version}", "Host: test", f"Content-Length: {len(body)}", "Connection: close"
    sent = "\r\n".join(["", *lines, "", body]).encode()
    with service.connect() as client:
        client.sendall(sent[:20])
        wait_until(lambda: service.server.server_state.connections)
        client.sendall(sent[20:])
        headers, _, answer = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    assert (b"transfer-encoding: chunked" in headers) == chunked
    assert answer.startswith(b"data: ") != chunked and b"data: [DONE]" in answer


def test_a_first_line_without_an_end_is_not_kept(service):
    with service.connect() as client, suppress(ConnectionError):
        client.sendall(b"A" * (1 << 17))
        assert client.recv(1000).startswith(b"HTTP/1.1 400")


# ---- Limits ----


@pytest.fixture(scope="module")
def guarded(loaded):
    options = {"--api-key": "secret", "--max-body": "1000", "--allow-origin": PAGE}
    with openai_server("03", loaded, *(word for option in options.items() for word in option)) as guarded:
        yield guarded


def test_api_key(guarded):
    for key in ({}, *({"Authorization": value} for value in ("secret", "Bearer wrong", "Bearer secret2"))):
        for path in ("/v1/models", "/tokenizer_info", "/nothing"):
            answer = guarded.get(path, **key)
            assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
        answer = httpx.post(f"{guarded.url}/generate", headers=key)
        assert answer.status_code == 401 and answer.json()["error"].startswith("the API key is missing or wrong")
    assert guarded.get("/health").status_code == 200
    for scheme in ("bearer", "BEARER", "Bearer "):
        assert guarded.get("/v1/models", Authorization=f"{scheme} secret").status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_bodies_have_a_limit(guarded, path):
    def answer(content) -> httpx.Response:
        return httpx.post(f"{guarded.url}{path}", content=content, headers={"Authorization": "Bearer secret"})

    short, long = b'{"prompt": "a", "max_tokens": 1}', b"a" * 2000
    refused = [answer(long), answer(iter([long]))]  # the second is sent in chunks, without a length
    assert [one.status_code for one in refused] == [413, 413] and refused[0].json() == refused[1].json()
    assert isinstance(refused[0].json()["error"], str) == (path == "/generate"), "one shape for each path"
    assert answer(short).status_code == 200


def test_only_allowed_web_pages_can_read_answers(service, guarded):
    def asked(server, page: str) -> httpx.Response:
        headers = {"Origin": page, "Access-Control-Request-Method": "POST"}
        return httpx.options(f"{server.url}/v1/completions", headers=headers)

    assert "access-control-allow-origin" not in service.get("/v1/models", Origin=PAGE).headers
    assert asked(guarded, PAGE).headers["access-control-allow-origin"] == PAGE
    for server, other in ((service, PAGE), (guarded, "https://other.org"), (service, PAGE * 50)):
        answer, option = asked(server, other), f"--allow-origin {other}"
        message = answer.json()["error"]["message"]
        assert answer.status_code == 403 and option[:100] in message and len(message) < 300
    refused = guarded.get("/v1/models", Origin=PAGE)
    assert refused.status_code == 401 and "access-control-allow-origin" in refused.headers


# ---- Clients that disconnect, and engines that fail ----


@pytest.mark.parametrize("options", [{"stream": True, "n": 3}, {"user": "a" * 100_000}], ids=["stream", "whole"])
def test_a_disconnected_client_ends_its_requests(service, monkeypatch, options):
    """And is not logged as a failure of the server."""
    steps, logged = service.thread.stats["steps"], []
    monkeypatch.setattr("common.serving.errors.log_refusal", lambda http, *refusal: logged.append(refusal))
    service.hang_up_after(ENDLESS | options)
    wait_until(service.idle)
    wait_until(lambda: "stream" in options or logged)
    assert logged in ([], [(400, "the client has left")])
    assert service.thread.stats["steps"] - steps < 1000, "it went on to the end"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_the_code_is_no_mistake_of_the_client(loaded, monkeypatch, capfd):
    """A ValueError that is no InvalidInput: 500 and a traceback from a route, and the end of an engine that raises."""
    monkeypatch.setattr(Service, "model_card", lambda self, name: int("no card"))
    monkeypatch.setattr("common.serving.server.completion_json", lambda request: int("no answer"))
    engine = load_engine("04")(loaded)
    with openai_server("04", loaded, engine=engine) as service:
        answers = [service.get("/v1/models"), service.post("/generate", prompt="a")]
        assert [answer.status_code for answer in answers] == [500, 500]
        monkeypatch.setattr(engine, "accept", lambda request: [].remove(request))
        for path in ("/v1/completions", "/generate"):
            answer = service.post(path, prompt="a")
            assert answer.status_code == 503 and "the engine failed: ValueError(" in answer.text
    logged = capfd.readouterr().err  # after the last line of the server's log
    assert logged.count("Traceback") == 2 and "'no card'" in logged and "'no answer'" in logged


def test_a_hundred_clients_half_of_which_disconnect(loaded, expect, prompts):
    engine, chosen = load_engine("06")(loaded, max_running=64), [prompt[:40] for prompt in prompts]
    expected = [expect(prompt, max_tokens=12).text for prompt in chosen]

    def client(number: int) -> str | None:
        body = {"prompt": chosen[number % len(chosen)], "temperature": 0, "max_tokens": 12}
        with service.client.completions.create(model="bundled", stream=True, **body) as chunks:
            texts = [chunk.choices[0].text for chunk in islice(chunks, number % 10 if number % 2 else None)]
        return None if number % 2 else "".join(texts)

    with openai_server("06", loaded, "--api-process", engine=engine) as service:
        with ThreadPoolExecutor(100) as pool:
            texts = list(pool.map(client, range(100)))
        wait_until(service.idle)
        engine.check()
    for number in range(0, 100, 2):
        assert texts[number] == expected[number % len(expected)], number

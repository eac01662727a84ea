"""What `/generate` and `/health` promise on every server: Flask's of 01 and 02, and what 03 builds for all the rest."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from common.sampling import SamplingParams
from common.stages import load_engine, load_stage_module
from tests.helpers.serving_openai import openai_server

STORY = "Once upon a time, there was"
with_flask = pytest.mark.parametrize("server", ["02"], indirect=True)  # 01 has the same file


@pytest.fixture(scope="module", params=["02", "03"])
def server(request, loaded):
    """(engine, client): of 03 with all that `--serve` adds to its application."""
    engine = load_engine(request.param)(loaded)
    if request.param == "02":
        transport = httpx.WSGITransport(load_stage_module("02", "server").create_app(engine))
        with httpx.Client(transport=transport, base_url="http://here") as client:
            yield engine, client
    else:
        with openai_server("03", loaded, engine=engine) as service, httpx.Client(base_url=service.url) as client:
            yield engine, client


def test_an_answer_is_the_engines(server, expect):
    params = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "ignore_eos": True, "logprobs": 2}
    expected = expect(STORY, **params)
    answer = server[1].post("/generate", json={"prompt": STORY, **params})
    assert answer.status_code == 200
    result = answer.json()
    assert result["text"] == expected.text
    assert [entry["token_id"] for entry in result["logprobs"]] == expected.token_ids
    assert [len(entry["top"]) for entry in result["logprobs"]] == [2] * 6
    assert (result["finish_reason"], result["stop_reason"]) == ("length", None)
    assert (result["prompt_tokens"], result["generated_tokens"]) == (len(expected.prompt_token_ids), 6)
    timings = result["timings"]
    assert 0 < timings["time_to_first_token"] < timings["end_to_end_latency"]
    assert 0 < timings["time_per_output_token"] < timings["end_to_end_latency"]


BAD_BODIES = {
    b"": "not JSON",
    b'{"prompt": "a"': "not JSON",
    b'{"prompt": "\xff"}': "not JSON",
    b"[" * 100_000: "not JSON",
    b"[]": "JSON object",
    b"{}": "needs a prompt",
    b'{"prompt": null}': "needs a prompt",
    b'{"prompt": 5}': "needs a prompt",
    b'{"prompt": ""}': "empty",
    b'{"prompt": []}': "empty",
    b'{"prompt": [[1]]}': "integer",
    b'{"prompt": "\\ud83d"}': "surrogate",
    b'{"prompt": "a", "max_token": 5}': "unknown field 'max_token'",
    b'{"prompt": "a", "max_tokens": 4096}': "context",
    b'{"prompt": "a", "temperature": NaN}': "temperature",
    b'{"prompt": "a", "stream": "yes"}': "stream",
    b'{"prompt": "", "stream": true}': "",  # an ordinary 400 in place of a stream; Flask has none
}


@pytest.mark.parametrize(("body", "says"), BAD_BODIES.items(), ids=range(len(BAD_BODIES)))
def test_bad_bodies_are_refused_in_a_sentence(server, body, says):
    engine, client = server
    answer = client.post("/generate", content=body)
    assert answer.status_code == 400 and answer.json().keys() == {"error"}
    assert says in answer.json()["error"] and len(answer.json()["error"]) < 500
    assert not engine.has_unfinished


def test_unknown_paths_and_methods_are_json_errors_too(server):
    for answer, status in ((server[1].get("/generat"), 404), (server[1].get("/generate"), 405)):
        error = answer.json()["error"]
        assert answer.status_code == status
        assert isinstance(error, str) or error.keys() == {"message", "type", "param", "code"}, "as OpenAI's, from 03 on"


@with_flask
def test_health_waits_for_no_answer_and_survives_its_end(server, monkeypatch):
    class EndsMeanwhile:
        """Stands for the cache of a request that ends while /health reads it."""

        capacity = nbytes = 0

        @property
        def length(self) -> int:
            caches.clear()
            return 0

    engine, client = server
    caches = {"one": EndsMeanwhile(), "other": EndsMeanwhile()}
    monkeypatch.setattr(engine, "caches", caches)
    original, answers = engine.step, [client.get("/health")]

    def step():
        answers.append(client.get("/health"))
        return original()

    monkeypatch.setattr(engine, "step", step)
    client.post("/generate", json={"prompt": STORY, "max_tokens": 1})
    assert [(answer.status_code, answer.json()["unfinished"]) for answer in answers] == [(200, 0), (200, 1)]
    assert all(answer.json()["status"] == "ok" for answer in answers)


@with_flask
@pytest.mark.parametrize("error", [RuntimeError, ValueError])  # one is the client's only if it is an InvalidInput
def test_an_engine_that_fails_is_a_json_error_and_leaves_nothing(server, monkeypatch, error):
    def step():
        raise error("out of memory, say")

    engine, client = server
    monkeypatch.setattr(engine, "step", step)
    answer = client.post("/generate", json={"prompt": STORY})
    assert answer.status_code == 500 and isinstance(answer.json()["error"], str)
    assert not engine.has_unfinished


@with_flask
def test_clients_of_flask_are_served_one_after_the_other(server, prompts, monkeypatch):
    engine, client = server
    texts = [completion.text for completion in engine.generate(prompts[:4], SamplingParams(max_tokens=8))]
    original, together = engine.step, []

    def step():
        together.append(len(engine.requests))
        return original()

    def ask(prompt) -> str:
        return client.post("/generate", json={"prompt": prompt, "max_tokens": 8}).json()["text"]

    monkeypatch.setattr(engine, "step", step)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, prompts[:4])) == texts
    assert set(together) == {1}

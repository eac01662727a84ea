"""What `/generate` and `/health` promise on the servers of 01 and 02, which are one file."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest

from common.sampling import SamplingParams
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import assert_is_answer
from tests.helpers.refused import assert_refused, refusals

STORY = "Once upon a time, there was"


@pytest.fixture(scope="module")
def engine(loaded):
    return load_engine("02")(loaded)


@pytest.fixture
def client(engine):
    transport = httpx.WSGITransport(load_stage_module("02", "server").create_app(engine))
    with httpx.Client(transport=transport, base_url="http://here") as client:
        yield client
    assert not engine.has_unfinished


def around(engine, monkeypatch, before) -> None:
    """Call `before` at the beginning of each step of the engine."""
    step = engine.step

    def observed():
        before()
        return step()

    monkeypatch.setattr(engine, "step", observed)


def test_an_answer_is_the_engines(client, expect):
    params = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "ignore_eos": True, "logprobs": 2}
    expected = expect(STORY, **params)
    answer = client.post("/generate", json={"prompt": STORY, **params})
    assert answer.status_code == 200
    result = answer.json()
    assert result["text"] == expected.text
    assert [entry["token_id"] for entry in result["logprobs"]] == expected.token_ids
    assert [len(entry["top"]) for entry in result["logprobs"]] == [2] * 6
    assert_is_answer(result, expected)
    assert 0 < result["timings"]["time_per_output_token"] < result["timings"]["end_to_end_latency"]


@refusals("POST /generate")
def test_bad_bodies_are_refused_in_a_sentence(client, place, row):
    assert_refused(client, place, row)


def test_unknown_paths_and_methods_are_json_errors_too(client):
    for path, status in (("/generat", 404), ("/generate", 405)):
        answer = client.get(path)
        assert answer.status_code == status and isinstance(answer.json()["error"], str)


def test_health_waits_for_no_answer(client, engine, monkeypatch):
    answers = [client.get("/health")]
    around(engine, monkeypatch, lambda: answers.append(client.get("/health")))
    client.post("/generate", json={"prompt": STORY, "max_tokens": 1})
    assert [(answer.status_code, answer.json()["unfinished"]) for answer in answers] == [(200, 0), (200, 1)]
    assert all(answer.json()["status"] == "ok" for answer in answers)


@pytest.mark.parametrize("error", [RuntimeError, ValueError])  # Only an InvalidInput is the client's fault.
def test_an_engine_that_fails_is_a_json_error_and_leaves_nothing(client, engine, monkeypatch, error):
    monkeypatch.setattr(engine, "step", Mock(side_effect=error("out of memory, say")))
    answer = client.post("/generate", json={"prompt": STORY})
    assert answer.status_code == 500 and isinstance(answer.json()["error"], str)


def test_clients_are_served_one_after_the_other(client, engine, prompts, monkeypatch):
    texts = [completion.text for completion in engine.generate(prompts[:4], SamplingParams(max_tokens=8))]
    together = []

    def ask(prompt) -> str:
        return client.post("/generate", json={"prompt": prompt, "max_tokens": 8}).json()["text"]

    around(engine, monkeypatch, lambda: together.append(len(engine.requests)))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, prompts[:4])) == texts
    assert set(together) == {1}

"""The servers of stages 01 and 02: whole answers, one client after the other, errors in a sentence."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from common.sampling import SamplingParams
from common.stages import load_stage_module

STORY = "Once upon a time, there was"


@pytest.fixture(params=["01_naive", "02_kv_cache"])
def engine(request, loaded):
    return load_stage_module(request.param, "engine").Engine(loaded)


@pytest.fixture
def client(engine):
    stage = type(engine).__module__.split(".")[0]
    return load_stage_module(stage, "server").create_app(engine).test_client()


def test_generate(client, engine, loaded):
    params = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "ignore_eos": True, "logprobs": 2}
    [expected] = engine.generate([STORY], SamplingParams(**params))
    answer = client.post("/generate", json={"prompt": STORY, **params})
    assert answer.status_code == 200
    result = answer.get_json()
    assert result["text"] == expected.text
    assert [entry["token_id"] for entry in result["logprobs"]] == expected.token_ids
    assert [len(entry["top"]) for entry in result["logprobs"]] == [2] * 6
    assert (result["finish_reason"], result["stop_reason"]) == ("length", None)
    assert result["prompt_tokens"] == len(loaded.tokenizer(STORY)["input_ids"])
    assert result["generated_tokens"] == 6
    timings = result["timings"]
    assert 0 < timings["time_to_first_token"] < timings["end_to_end_latency"]
    assert 0 < timings["time_per_output_token"] < timings["end_to_end_latency"]


def test_token_ids_and_stop_strings(client, engine, loaded):
    prompt = loaded.tokenizer(STORY)["input_ids"]
    [full] = engine.generate([prompt], SamplingParams(max_tokens=12, ignore_eos=True))
    stop = full.text[6:10]
    answer = client.post("/generate", json={"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "stop": stop})
    result = answer.get_json()
    assert result["text"] == full.text[: full.text.index(stop)]
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", stop)
    assert "logprobs" not in result


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b'["prompt"]', "JSON object"),
        (b'{"max_tokens": 5}', "needs a prompt"),
        (b'{"prompt": ""}', "empty"),
        (b'{"prompt": "\\ud83d"}', "surrogate"),
        (b'{"prompt": [5, 99999]}', "vocabulary"),
        (b'{"prompt": "a", "max_tokens": 5000}', "context"),
        (b'{"prompt": "a", "temperature": "hot"}', "temperature"),
        (b'{"prompt": "a", "temprature": 1}', "unknown field 'temprature'"),
        (b'{"prompt": "a", "stream": 1}', "stream must be"),
        (b'{"prompt": "a", "stream": true}', "stage 03 can"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_bodies_are_refused_in_a_sentence(client, engine, body, says):
    answer = client.post("/generate", data=body)
    assert answer.status_code == 400
    assert answer.get_json().keys() == {"error"}
    assert says in answer.get_json()["error"]
    assert not engine.has_unfinished


def test_health(client):
    answer = client.get("/health")
    assert answer.status_code == 200
    assert answer.get_json()["status"] == "ok" and answer.get_json()["unfinished"] == 0


def test_unknown_paths_and_methods_are_json_errors_too(client):
    for answer, status in ((client.get("/generat"), 404), (client.get("/generate"), 405)):
        assert answer.status_code == status
        assert isinstance(answer.get_json()["error"], str)


def test_an_engine_that_fails_is_a_json_error_and_leaves_nothing(client, engine, monkeypatch):
    def step():
        raise RuntimeError("out of memory, say")

    monkeypatch.setattr(engine, "step", step)
    answer = client.post("/generate", json={"prompt": STORY})
    assert answer.status_code == 500
    assert isinstance(answer.get_json()["error"], str)
    assert not engine.has_unfinished


def test_clients_at_the_same_time_are_served_one_after_the_other(client, engine, prompts, monkeypatch):
    texts = [completion.text for completion in engine.generate(prompts[:4], SamplingParams(max_tokens=8))]
    original, together = engine.step, []

    def step():
        together.append(len(engine.requests))
        return original()

    monkeypatch.setattr(engine, "step", step)

    def ask(prompt) -> dict:
        return client.application.test_client().post("/generate", json={"prompt": prompt, "max_tokens": 8}).get_json()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, prompts[:4]))
    assert [answer["text"] for answer in answers] == texts
    assert set(together) == {1}

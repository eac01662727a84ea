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


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b'{"prompt": ""}', "empty"),
        (b'{"prompt": "a", "max_tokens": 5000}', "context"),
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


def test_health_waits_for_no_answer_and_survives_its_end(client, engine, monkeypatch):
    class EndsMeanwhile:
        """Stands for the cache of a request that ends while /health reads it."""

        capacity = nbytes = 0

        @property
        def length(self) -> int:
            caches.clear()
            return 0

    caches = {"one": EndsMeanwhile(), "other": EndsMeanwhile()}
    monkeypatch.setattr(engine, "caches", caches, raising=False)
    original, answers = engine.step, [client.get("/health")]
    health = client.application.test_client().get

    def step():
        answers.append(health("/health"))
        return original()

    monkeypatch.setattr(engine, "step", step)
    client.post("/generate", json={"prompt": STORY, "max_tokens": 1})
    assert [(answer.status_code, answer.get_json()["unfinished"]) for answer in answers] == [(200, 0), (200, 1)]
    assert all(answer.get_json()["status"] == "ok" for answer in answers)


def test_unknown_paths_and_methods_are_json_errors_too(client):
    for answer, status in ((client.get("/generat"), 404), (client.get("/generate"), 405)):
        assert answer.status_code == status
        assert isinstance(answer.get_json()["error"], str)


@pytest.mark.parametrize("error", [RuntimeError, ValueError])  # one is the client's only if it is an InvalidInput
def test_an_engine_that_fails_is_a_json_error_and_leaves_nothing(client, engine, monkeypatch, error):
    def step():
        raise error("out of memory, say")

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

"""What a client of stage 03 gets: its own text, the same streamed or not, and each piece when it is certain."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

from common.sampling import SamplingParams
from common.serving import engine_thread
from tests.helpers.serving_stage_03 import SteppingEngine, engine_module, serving, thread_module, wait_until

STORY = "Once upon a time, there was"


@pytest.fixture(scope="module")
def service(loaded):
    with serving(engine_module.Engine(loaded)) as service:
        yield service


@pytest.fixture(scope="module")
def expect(loaded):
    """What the engine itself generates, without a server: expect(prompt, **params) -> completion."""
    engine = engine_module.Engine(loaded)
    return lambda prompt, **params: engine.generate([prompt], SamplingParams(**params))[0]


def check_answers(service, completion, **body) -> None:
    """The same request streamed and unstreamed, against a completion of the engine itself."""
    answer, events = service.post(**body), service.stream(**body)
    assert answer.status_code == 200
    last = events[-1]
    streamed = "".join(event["text"] for event in events)
    assert streamed == answer.json()["text"] == completion.text
    assert [token for event in events for token in event["token_ids"]] == completion.token_ids
    for result in (answer.json(), last):
        assert (result["finish_reason"], result["stop_reason"]) == (completion.finish_reason, completion.stop_reason)
        assert result["generated_tokens"] == len(completion.token_ids)
        assert result["prompt_tokens"] == len(completion.prompt_token_ids)


# ---- The text ----


def test_streamed_is_unstreamed_is_generated(service, expect, prompts):
    for i in (0, 7, -3, -2):
        params = {"max_tokens": 20}
        check_answers(service, expect(prompts[i], **params), prompt=prompts[i], **params)


def test_parameters_reach_the_engine(service, expect):
    for params in (
        {"max_tokens": 12, "temperature": 1.5, "seed": 7, "ignore_eos": True},  # writes broken characters, too
        {"max_tokens": 12, "temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "seed": 8},
        {"max_tokens": 12, "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": 1},
        {"max_tokens": 3, "logprobs": 2},
    ):
        check_answers(service, expect(STORY, **params), prompt=STORY, **params)


@pytest.mark.parametrize("keep", [False, True])
def test_stop_strings_that_span_tokens(service, expect, keep):
    full = expect(STORY, max_tokens=24, ignore_eos=True).text
    for stop in ([full[9:16]], [full[20:23], full[12:30]], [full[9:16] + "but no", full[-3:] + "but no"], full[0]):
        params = {"max_tokens": 24, "ignore_eos": True, "stop": stop, "include_stop_str_in_output": keep}
        check_answers(service, expect(STORY, **params), prompt=STORY, **params)


def test_many_clients_get_their_own_text(service, expect, prompts):
    bodies = [
        {
            "prompt": prompts[i % len(prompts)],
            "max_tokens": 4 + i % 3,
            "temperature": i % 2,
            "seed": i,
            "ignore_eos": True,
        }
        for i in range(20)
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        streams = [pool.submit(service.stream, **body) for body in bodies[::2]]
        answers = [pool.submit(service.post, **body) for body in bodies[1::2]]
    texts = ["".join(event["text"] for event in stream.result()) for stream in streams]
    assert texts == [expect(**body).text for body in bodies[::2]]
    assert [answer.result().json()["text"] for answer in answers] == [expect(**body).text for body in bodies[1::2]]
    ids = [stream.result()[0]["id"] for stream in streams] + [answer.result().json()["id"] for answer in answers]
    assert len(set(ids)) == len(bodies)


# ---- The events ----


def test_the_last_event_and_no_other_says_how_it_ended(service):
    *events, last = service.stream(prompt=STORY, max_tokens=12, ignore_eos=True)
    assert len(events) > 3
    for event in events:
        assert event.keys() == {"id", "text", "token_ids", "finish_reason"}
        assert event["text"] and event["token_ids"], "an event without news"
        assert event["finish_reason"] is None
        assert event["id"] == last["id"]
    assert last["finish_reason"] == "length"
    assert last["timings"]["time_to_first_token"] <= last["timings"]["end_to_end_latency"]


def test_proxies_are_told_to_pass_events_on(service):
    body = {"prompt": STORY, "max_tokens": 1, "stream": True}
    headers = httpx.post(f"{service.url}/generate", json=body).headers
    assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"


def test_text_arrives_while_the_engine_computes(loaded):
    engine = SteppingEngine(loaded)
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        arrived = []
        body = {"prompt": STORY, "max_tokens": 12, "ignore_eos": True}
        client = pool.submit(lambda: [arrived.append(event["text"]) for event in service.events(**body)])
        wait_until(lambda: engine.requests)
        [request] = engine.requests.values()
        for steps in range(1, 12):
            engine.allow(1)
            wait_until(lambda steps=steps: len(request.token_ids) == steps)
            wait_until(lambda: "".join(arrived) == request.text)
        assert not request.finished
        engine.allow()
        client.result()
        assert "".join(arrived) == request.text


# ---- Bad requests ----

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
}


@pytest.mark.parametrize(("body", "says"), BAD_BODIES.items(), ids=range(len(BAD_BODIES)))
def test_bad_bodies_are_refused_in_a_sentence(service, body, says):
    answer = httpx.post(f"{service.url}/generate", content=body)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    assert says in answer.json()["error"] and len(answer.json()["error"]) < 500


def test_a_stream_that_is_refused_is_an_ordinary_400(service):
    answer = service.post(prompt="", stream=True)
    assert answer.status_code == 400 and "empty" in answer.json()["error"]


def test_unknown_paths_and_methods_are_json_errors_too(service):
    for answer, status in ((httpx.get(f"{service.url}/generat"), 404), (httpx.get(f"{service.url}/generate"), 405)):
        assert answer.status_code == status
        assert isinstance(answer.json()["error"], str)


# ---- The engine's thread ----


@pytest.mark.parametrize("module", [thread_module, engine_thread], ids=["stage 03", "common"])
def test_an_engine_that_fails_while_a_prompt_is_tokenized(monkeypatch, module):
    """The request is refused, and asyncio logs no error that nothing has read."""
    tokenizing, failed, unread = threading.Event(), threading.Event(), []

    def fail():
        tokenizing.wait(30)
        raise MemoryError

    def prompt_tokens(*_):
        tokenizing.set()
        failed.wait(30)
        return [1]

    async def submit():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unread.append(context["message"]))
        thread = module.EngineThread(engine, max_queue=4)
        thread.on_failure = failed.set
        thread.start()
        with pytest.raises(module.EngineDead, match="out of memory"):
            await thread.submit("a long text", SamplingParams())
        gc.collect()

    engine = SimpleNamespace(step=fail, stats=dict, has_unfinished=True, idle_seconds=None, tokenizer=None, config=None)
    monkeypatch.setattr(module, "prompt_tokens", prompt_tokens)
    asyncio.run(submit())
    assert not unread

"""Stage 03 when something is in the way: clients that leave, too many of them, an engine that fails, a shutdown."""

import gc
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.helpers.serving_stage_03 import SteppingEngine, graceful_module, serving, thread_module, wait_until

pytestmark = pytest.mark.usefixtures("apart")
STORY = "Once upon a time, there was"
LONG = {"prompt": STORY, "max_tokens": 100, "ignore_eos": True}
SHORT = {"prompt": STORY, "max_tokens": 5, "ignore_eos": True}


@pytest.fixture
def engine(loaded):
    return SteppingEngine(loaded)


# ---- Clients that leave ----


@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_of_a_client_that_leaves_is_not_computed(engine, stream):
    with serving(engine) as service:
        client = service.ask(**LONG, stream=stream)
        engine.allow(4)
        if stream:
            assert b"200 OK" in client.recv(1000)
        wait_until(lambda: engine.trace.steps == 4)
        client.close()
        wait_until(lambda: service.thread.aborted)
        engine.allow(10)
        wait_until(lambda: not engine.has_unfinished)
        assert engine.trace.steps <= 5, "the engine went on"
        wait_until(lambda: service.thread.stats["kv_tokens_reserved"] == 0)


def test_a_client_that_leaves_before_the_engine_has_taken_its_request_is_hardly_served(engine):
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        first = pool.submit(service.post, **SHORT)
        wait_until(lambda: engine.requests)  # its first step waits to be allowed
        client = service.ask(**LONG)
        service.wait_for_requests(2)
        client.close()
        engine.allow(5)
        assert first.result().json()["generated_tokens"] == 5
        engine.allow(5)
        wait_until(lambda: not engine.has_unfinished)
        assert engine.trace.steps <= 7


def test_a_client_that_leaves_makes_room(engine, apart):
    with serving(engine, max_queue=1) as service:
        assert service.post(prompt="").status_code == 400, "what is refused takes no place"
        client = service.ask(**LONG)
        wait_until(engine.waits)
        client.close()
        wait_until(lambda: service.thread.aborted)
        if not apart:  # the engine has not freed it yet
            refused = service.post(**SHORT, stream=True)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert "1 requests are open" in refused.json()["error"]
        engine.allow()
        # The place is free when the event loop hears that the engine has freed the request, and not before.
        wait_until(lambda: service.post(**SHORT).status_code == 200)


# ---- An engine that fails ----


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_engine_fails_every_client_gets_an_error(engine):
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        stream, answer = pool.submit(service.stream, **LONG), pool.submit(service.post, **LONG)
        service.wait_for_requests(2)
        while len(engine.requests) < 2:  # Between two steps it takes requests whose prompts are tokenized.
            engine.allow(1)
            wait_until(engine.waits)
        waiting = pool.submit(service.post, **LONG)
        service.wait_for_requests(3)  # the engine has not taken the last one: its step waits
        engine.failure = SystemExit("out of memory, say")  # as a library that ends the process
        engine.allow()
        assert stream.result()[-1]["finish_reason"] == "error"
        later = [service.post(**SHORT), httpx.get(f"{service.url}/health")]
        for refused in (answer.result(), waiting.result(), *later):
            assert refused.status_code == 503 and "out of memory, say" in refused.json()["error"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_while_a_prompt_is_tokenized(engine, monkeypatch, caplog):
    """The request is refused, and asyncio logs no error that nothing has read."""

    def prompt_tokens(*_):
        engine.failure = MemoryError()
        engine.allow()
        wait_until(lambda: service.thread.error)
        return [1]

    with serving(engine) as service, ThreadPoolExecutor() as pool:
        first = pool.submit(service.post, **LONG)
        wait_until(engine.waits)
        monkeypatch.setattr(thread_module, "prompt_tokens", prompt_tokens)
        for answer in (service.post(**SHORT), first.result()):
            assert answer.status_code == 503 and "out of memory" in answer.json()["error"]
    gc.collect()
    assert "never retrieved" not in caplog.text


# ---- Shutdown ----


@pytest.mark.parametrize(("grace", "signals"), [(0.1, 1), (60, 2)], ids=["the grace is over", "a second Ctrl-C"])
def test_a_shutdown_tells_requests_that_cannot_finish(engine, monkeypatch, grace, signals):
    monkeypatch.setattr(graceful_module, "GRACE_SECONDS", grace)
    with ThreadPoolExecutor() as pool:
        with serving(engine) as service:
            streamed, whole = pool.submit(service.stream, **LONG), pool.submit(service.post, **LONG)
            service.wait_for_requests(2)
            engine.allow(2)
            wait_until(lambda: len(engine.requests) == 2 and engine.trace.steps == 2)
            for _ in range(signals):
                service.server.handle_exit(signal.SIGINT, None)
            wait_until(lambda: service.thread.aborted == 2)
            engine.allow(1)
        assert streamed.result()[-1]["finish_reason"] == "abort"
        assert whole.result().status_code == 503 and "shutting down" in whole.result().json()["error"]
    assert engine.trace.steps <= 3, "the engine went on"
    assert not service.thread._thread.is_alive() and not engine.has_unfinished
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/health")

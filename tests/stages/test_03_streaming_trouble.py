"""Stage 03 when something is in the way: clients that leave, too many of them, an engine that fails, a shutdown."""

import gc
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest

from common.stages import stage_folder
from tests.helpers.serving_stage_03 import (
    SteppingEngine,
    graceful_module,
    server_module,
    serving,
    thread_module,
    wait_until,
)

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
@pytest.mark.parametrize("failure", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_when_the_engine_fails_every_client_gets_an_error(engine, failure, apart):
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        streams = [pool.submit(service.stream, **LONG)]
        wait_until(lambda: engine.requests)
        streams += [pool.submit(service.stream, **LONG)]
        answers = [pool.submit(service.post, **LONG)]
        service.wait_for_requests(3)
        while len(engine.requests) < 3:  # Between two steps it takes requests whose prompts are tokenized.
            engine.allow(1)
            wait_until(engine.waits)
        answers += [pool.submit(service.post, **LONG)]
        if apart:  # a stream begins before the engine has taken its request
            streams += [pool.submit(service.stream, **LONG)]
        else:
            answers += [pool.submit(service.post, **LONG, stream=True)]
        service.wait_for_requests(5)  # the engine has not taken the last two: its step waits
        engine.failure = failure("out of memory, say")
        engine.allow()
        assert {stream.result()[-1]["finish_reason"] for stream in streams} == {"error"}
        later = [service.post(**SHORT), httpx.get(f"{service.url}/health")]
        for answer in [*(answer.result() for answer in answers), *later]:
            assert answer.status_code == 503
            assert "out of memory, say" in answer.json()["error"]


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


# ---- The program ----


@pytest.mark.usefixtures("ctrl_c")  # Otherwise a program started in the background ignores SIGINT.
def test_the_program_ends_with_a_status_when_its_answers_are_complete(apart):
    sent, status = (signal.SIGTERM, 0) if apart else (signal.SIGINT, 130)
    command = [sys.executable, stage_folder("03") / "main.py", "--serve", "--port", "0", *["--api-process"] * apart]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        url = program.stdout.readline().split()[2]
        with httpx.stream("POST", f"{url}/generate", json=LONG | {"stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            program.send_signal(sent)
            *_, last, _, done, _ = lines
    assert '"finish_reason": "length"' in last and done == "data: [DONE]" and program.returncode == status


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_ends_the_program_with_the_reason(engine, monkeypatch):
    monkeypatch.setattr(signal, "signal", Mock())  # handlers stay as they are
    engine.failure = SystemExit("no reason")  # as a library that ends the process
    engine.allow()
    thread = thread_module.EngineThread(engine, 4)
    server = graceful_module.Server(server_module.create_app(thread), thread, "127.0.0.1", 0)
    with (
        ThreadPoolExecutor() as pool,
        pytest.raises(SystemExit, match="error: the engine failed: .*no reason.* stopped"),
    ):
        server.serve_until_stopped(lambda url: pool.submit(httpx.post, f"{url}/generate", json=SHORT))


# ---- Shutdown ----


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "engine"]


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
    assert not engine_threads() and not engine.has_unfinished
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/health")


def test_clients_that_say_nothing_do_not_hold_up_a_shutdown(engine, monkeypatch):
    """Before that an idle connection is closed by its client first, or a request on its way would be lost."""
    monkeypatch.setattr(graceful_module, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(graceful_module, "FAREWELL_SECONDS", 0.2)
    with serving(engine) as service:
        idle, kept_alive, half = (service.connect() for _ in range(3))
        kept_alive.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b"200 OK" in kept_alive.recv(1000)
        assert service.server.config.timeout_keep_alive > httpx.Limits().keepalive_expiry
        half.sendall(b"POST /generate HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
    assert not engine_threads()
    for client in (idle, kept_alive, half):
        client.close()

"""What a client of stage 03 gets: its own text, the same streamed or not, each piece when it is certain; and how the
program ends."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import httpx
import pytest

from common.stages import stage_folder
from tests.helpers.engine_options import assert_is_answer
from tests.helpers.serving_stage_03 import (
    SteppingEngine,
    engine_module,
    graceful_module,
    server_module,
    serving,
    thread_module,
    wait_until,
)

STORY = "Once upon a time, there was"
BODY = {"prompt": STORY, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def service(loaded):
    with serving(engine_module.Engine(loaded)) as service:
        yield service


def check_answers(service, expect, prompt=STORY, **params) -> None:
    """The same request streamed and unstreamed, against what the engine itself generates."""
    completion = expect(prompt, **params)
    answer, events = service.post(prompt=prompt, **params), service.stream(prompt=prompt, **params)
    assert answer.status_code == 200
    assert len({event["id"] for event in events}) == 1
    assert "".join(event["text"] for event in events) == answer.json()["text"] == completion.text
    assert [token for event in events for token in event["token_ids"]] == completion.token_ids
    for result in (answer.json(), events[-1]):
        assert_is_answer(result, completion)


def test_streamed_is_unstreamed_is_generated(service, expect, prompts):
    for i in (0, 7, -3, -2):
        check_answers(service, expect, prompts[i], max_tokens=20)
    for params in (
        {"max_tokens": 12, "temperature": 1.5, "seed": 7, "ignore_eos": True},  # writes broken characters, too
        {"max_tokens": 3, "logprobs": 2},
    ):
        check_answers(service, expect, **params)


@pytest.mark.parametrize("keep", [False, True])
def test_stop_strings_that_span_tokens(service, expect, keep):
    full = expect(STORY, max_tokens=24, ignore_eos=True).text
    for stop in ([full[9:16]], [full[20:23], full[12:30]], [full[9:16] + "but no", full[-3:] + "but no"], full[0]):
        params = {"max_tokens": 24, "ignore_eos": True, "stop": stop, "include_stop_str_in_output": keep}
        check_answers(service, expect, **params)


def test_text_arrives_while_the_engine_computes(loaded):
    engine = SteppingEngine(loaded)
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        arrived = []
        client = pool.submit(lambda: [arrived.append(event["text"]) for event in service.events(**BODY)])
        requests = service.thread.engine.requests  # those with a text, wherever the engine is
        wait_until(lambda: requests)
        [request] = requests.values()
        for steps in range(1, 12):
            engine.allow(1)
            wait_until(lambda steps=steps: len(request.token_ids) == steps)
            wait_until(lambda: "".join(arrived) == request.text)
        assert not request.finished
        engine.allow()
        client.result()
        assert "".join(arrived) == request.text


# ---- The program ----


def test_the_program_ends_when_its_answers_are_complete():
    """Here by SIGTERM; tests/serving/test_api_process.py presses Ctrl-C."""
    command = [sys.executable, stage_folder("03") / "main.py", "--serve", "--port", "0"]
    body = BODY | {"max_tokens": 100, "stream": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        url = program.stdout.readline().split()[2]
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            program.send_signal(signal.SIGTERM)
            *_, last, _, done, _ = lines
    assert '"finish_reason": "length"' in last and done == "data: [DONE]" and program.returncode == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails_ends_the_program_with_the_reason(loaded, monkeypatch):
    engine = SteppingEngine(loaded)
    monkeypatch.setattr(signal, "signal", Mock())  # handlers stay as they are
    engine.failure = SystemExit("no reason")
    engine.allow()
    thread = thread_module.EngineThread(engine, 4)
    server = graceful_module.Server(server_module.create_app(thread), thread, "127.0.0.1", 0)
    with (
        ThreadPoolExecutor() as pool,
        pytest.raises(SystemExit, match="error: the engine failed: .*no reason.* stopped"),
    ):
        server.serve_until_stopped(lambda url: pool.submit(httpx.post, f"{url}/generate", json=BODY))


def test_clients_that_say_nothing_do_not_hold_up_a_shutdown(loaded, monkeypatch):
    """Before that an idle connection is closed by its client first, or a request on its way would be lost."""
    monkeypatch.setattr(graceful_module, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(graceful_module, "FAREWELL_SECONDS", 0.2)
    with serving(SteppingEngine(loaded)) as service:
        idle, kept_alive, half = (service.connect() for _ in range(3))
        kept_alive.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b"200 OK" in kept_alive.recv(1000)
        assert service.server.config.timeout_keep_alive > httpx.Limits().keepalive_expiry
        half.sendall(b"POST /generate HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
    assert not service.thread._thread.is_alive()
    for client in (idle, kept_alive, half):
        client.close()

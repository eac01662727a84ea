"""Stage 03 when something is in the way: clients that leave, too many of them, an engine that fails, a shutdown."""

import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from common.stages import ROOT
from tests.helpers.serving_stage_03 import SteppingEngine, engine_module, graceful_module, serving, wait_until

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


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_never_served(engine, stream):
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        first = pool.submit(service.post, **SHORT)
        service.wait_for_requests(1)
        client = service.ask(**LONG, stream=stream)
        service.wait_for_requests(2)
        engine.allow(2)
        wait_until(lambda: len(engine.requests) == 2)  # taken, and waiting
        client.close()
        wait_until(lambda: service.thread.aborted)
        engine.allow()
        assert first.result().json()["generated_tokens"] == 5
        wait_until(lambda: not engine.has_unfinished)
        assert {work.request_id for step in engine.trace for work in step.works} == {first.result().json()["id"]}


def test_a_client_that_leaves_before_the_engine_has_heard_of_it(engine):
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        first = pool.submit(service.post, **SHORT)
        wait_until(lambda: engine.requests)  # its first step waits to be allowed
        client = service.ask(**LONG)
        service.wait_for_requests(2)
        client.close()
        engine.allow(5)
        assert first.result().status_code == 200
        engine.allow(5)  # enough for a few tokens that no client wants, if need be
        wait_until(lambda: not engine.has_unfinished)
        assert engine.trace.steps <= 7


# ---- Too many clients ----


def test_the_queue_is_bounded(engine):
    with serving(engine, max_queue=2) as service, ThreadPoolExecutor() as pool:
        for _ in range(3):  # what is refused for another reason takes no place
            assert service.post(prompt="").status_code == 400
        admitted = [pool.submit(service.post, **SHORT) for _ in range(2)]
        service.wait_for_requests(5)
        for stream in (False, True):
            refused = service.post(**SHORT, stream=stream)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert "2 requests are open" in refused.json()["error"]
        assert httpx.get(f"{service.url}/health").status_code == 200
        engine.allow()
        assert [answer.result().status_code for answer in admitted] == [200, 200]
        assert service.post(**SHORT).status_code == 200


def test_a_client_that_leaves_makes_room(engine):
    with serving(engine, max_queue=1) as service:
        client = service.ask(**LONG)
        wait_until(engine.waits)
        client.close()
        wait_until(lambda: service.thread.aborted)
        assert service.post(**SHORT).status_code == 429, "it has not been freed yet"
        engine.allow()
        # The place is free when the event loop hears that the engine has freed the request, and not before.
        wait_until(lambda: service.post(**SHORT).status_code == 200)


# ---- An engine that is idle, or unavailable ----


def test_an_idle_engine_is_stepped_now_and_then_if_it_asks_for_it(loaded):
    class Restless(engine_module.Engine):
        idle_seconds = 0.01
        idle_steps = 0

        def step(self):
            self.idle_steps += not self.has_unfinished
            return super().step()

    engine = Restless(loaded)
    with serving(engine) as service:
        wait_until(lambda: engine.idle_steps >= 5)
        assert service.post(**SHORT).status_code == 200
        steps = engine.idle_steps
        wait_until(lambda: engine.idle_steps >= steps + 5)
    assert not engine_threads()


def test_an_engine_says_that_new_requests_should_go_elsewhere(engine):
    with serving(engine) as service:
        assert httpx.get(f"{service.url}/health").status_code == 200
        engine.unavailable = "no decode worker is alive"
        answer = httpx.get(f"{service.url}/health")
        assert (answer.status_code, answer.json()) == (503, {"error": "no decode worker is alive"})
        engine.unavailable = ""
        assert httpx.get(f"{service.url}/health").status_code == 200


# ---- An engine that fails ----


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failure", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_when_the_engine_fails_every_client_gets_an_error(engine, failure):
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        streams = [pool.submit(service.stream, **LONG)]
        wait_until(lambda: engine.requests)
        streams += [pool.submit(service.stream, **LONG)]
        answers = [pool.submit(service.post, **LONG)]
        service.wait_for_requests(3)
        while len(engine.requests) < 3:  # it takes those whose prompts are tokenized, between two steps
            engine.allow(1)
            wait_until(engine.waits)
        answers += [pool.submit(service.post, **LONG), pool.submit(service.post, **LONG, stream=True)]
        service.wait_for_requests(5)  # the engine has not taken the last two: its step waits
        engine.failure = failure("out of memory, say")
        engine.allow()
        for stream in streams:
            *events, last = stream.result()
            assert last["finish_reason"] == "error"
            assert all(event["finish_reason"] is None for event in events)
        for answer in [
            *(answer.result() for answer in answers),
            service.post(**SHORT),
            httpx.get(f"{service.url}/health"),
        ]:
            assert answer.status_code == 503
            assert "out of memory, say" in answer.json()["error"]


# A server whose engine takes two steps and then raises what stands at the end of the command line.
FAILING_SERVER = """
import argparse, builtins, importlib, sys
from common.loader import load_model
from common.serving.options import add_server_arguments
from common.stages import load_engine

class Failing(load_engine("03")):
    def step(self):
        if self.trace.steps == 2:
            raise getattr(builtins, sys.argv[2])("no reason")
        return super().step()

parser = argparse.ArgumentParser()
add_server_arguments(parser)
args = parser.parse_args([])
args.host, args.port, args.trace = "127.0.0.1", 0, None
importlib.import_module(sys.argv[1]).serve(Failing(load_model(device="cpu", dtype="float32")), args)
"""


@pytest.mark.parametrize(
    ("server", "failure"), [("03_streaming.server", "RuntimeError"), ("common.serving.server", "SystemExit")]
)
def test_a_server_whose_engine_has_failed_tells_its_clients_and_ends(server, failure):
    command = [sys.executable, "-c", FAILING_SERVER, server, failure]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        url = re.match(r"serving on (http://127.0.0.1:\d+)", program.stdout.readline())[1]
        answer = httpx.post(f"{url}/generate", json=LONG | {"stream": True}, timeout=60)
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.communicate()
    *_, last, done, _ = answer.text.split("\n\n")
    assert '"finish_reason": "error"' in last and done == "data: [DONE]"
    assert program.returncode == 1
    expected = f"error: the engine failed: {failure}('no reason'), and the server has stopped"
    assert errors.splitlines()[-1] == expected


# ---- Shutdown ----


@pytest.fixture
def open_requests(engine):
    """(service, streamed, unstreamed): two requests in the hands of the engine, after two steps."""

    def start(pool, service):
        futures = pool.submit(service.stream, **LONG), pool.submit(service.post, **LONG)
        service.wait_for_requests(2)
        engine.allow(2)
        wait_until(lambda: len(engine.requests) == 2 and engine.trace.steps == 2)
        return futures

    return start


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "engine"]


def test_a_shutdown_lets_open_requests_finish(engine, open_requests, monkeypatch):
    monkeypatch.setattr(graceful_module, "GRACE_SECONDS", 60)  # a busy machine takes longer than five
    with ThreadPoolExecutor() as pool:
        with serving(engine) as service:
            streamed, unstreamed = open_requests(pool, service)
            service.server.handle_exit(signal.SIGTERM, None)
            wait_until(lambda: service.thread.error)  # it takes no more requests
            engine.allow()
        assert streamed.result()[-1]["finish_reason"] == "length"
        assert unstreamed.result().json()["finish_reason"] == "length"
    assert not engine_threads()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/health")


@pytest.mark.parametrize("why", ["the grace is over", "a second Ctrl-C"])
def test_a_shutdown_tells_those_that_it_does_not_wait_for(engine, open_requests, monkeypatch, why):
    monkeypatch.setattr(graceful_module, "GRACE_SECONDS", 0.1 if why == "the grace is over" else 60)
    with ThreadPoolExecutor() as pool:
        with serving(engine) as service:
            streamed, unstreamed = open_requests(pool, service)
            service.server.handle_exit(signal.SIGINT, None)
            if why == "a second Ctrl-C":
                service.server.handle_exit(signal.SIGINT, None)
            wait_until(lambda: service.thread.aborted == 2)
            engine.allow(1)
        assert streamed.result()[-1]["finish_reason"] == "abort"
        assert unstreamed.result().status_code == 503
        assert "shutting down" in unstreamed.result().json()["error"]
    assert not engine_threads() and not engine.has_unfinished
    assert engine.trace.steps <= 3, "the engine went on"


def test_clients_that_say_nothing_do_not_hold_up_a_shutdown(engine, monkeypatch):
    monkeypatch.setattr(graceful_module, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(graceful_module, "FAREWELL_SECONDS", 0.2)
    with serving(engine) as service:
        idle, kept_alive, half = (service.connect() for _ in range(3))
        kept_alive.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b"200 OK" in kept_alive.recv(1000)
        half.sendall(b"POST /generate HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
    assert not engine_threads()
    for client in (idle, kept_alive, half):
        client.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_when_its_answers_are_complete(number, status):
    command = [sys.executable, str(ROOT / "03_streaming" / "main.py"), "--serve", "--port", "0"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
    try:
        url = re.match(r"serving on (http://127.0.0.1:\d+)", program.stdout.readline())[1]
        body = LONG | {"max_tokens": 40, "stream": True}  # few enough for the grace on a busy machine
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            program.send_signal(number)
            *_, last, _, done, _ = lines
        assert '"finish_reason": "length"' in last and done == "data: [DONE]"
        _, errors = program.communicate(timeout=30)
        assert program.returncode == status
        assert "Traceback" not in errors
    finally:
        program.kill()
        program.communicate()

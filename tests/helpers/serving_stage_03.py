"""Stage 03 served in this process: an engine whose steps wait until a test allows them, and clients for it."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from unittest.mock import patch

import httpx
import pytest

from common.serving.api_process import RemoteEngine, Steps
from common.serving.background import running
from common.stages import load_stage_module

engine_module, thread_module, server_module, graceful_module = (
    load_stage_module("03_streaming", name) for name in ("engine", "engine_thread", "server", "graceful")
)
MANY = 1_000_000
APART = False  # see the fixture `apart`


class SteppingEngine(engine_module.Engine):
    """Takes a step only when the test has allowed one, and raises `failure` in its next step if it has one."""

    def __init__(self, loaded):
        super().__init__(loaded)
        self.failure: BaseException | None = None
        self._permits = threading.Semaphore(0)
        self._allowed = self._begun = 0  # steps

    def allow(self, steps: int = MANY) -> None:
        self._allowed += steps
        self._permits.release(steps)

    def waits(self) -> bool:
        """Return whether a step has begun that is not allowed yet: until it is, the engine takes no request."""
        return self._begun > self._allowed

    def step(self):
        if not self.requests:
            return []
        self._begun += 1
        self._permits.acquire()
        if self.failure is not None:
            raise self.failure
        return super().step()


class CountingThread(thread_module.EngineThread):
    """Counts what the event loop has asked of the engine."""

    submitted = aborted = 0

    async def submit_all(self, submissions, arrived=None):
        self.submitted += len(submissions)
        return await super().submit_all(submissions, arrived)

    def abort(self, stream):
        super().abort(stream)
        self.aborted += 1


class Service:
    """A running server with everything that a test may want to look at."""

    def __init__(self, url: str, server):
        self.url, self.server, self.thread = url, server, server.engine_thread

    def post(self, **body) -> httpx.Response:
        return httpx.post(f"{self.url}/generate", json=body, timeout=60)

    def stream(self, **body) -> list[dict]:
        return list(self.events(**body))

    def events(self, **body) -> Iterator[dict]:
        """The events of a streamed answer, as they come; the answer must be well-formed to its end."""
        with httpx.stream("POST", f"{self.url}/generate", json=body | {"stream": True}, timeout=60) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            proxies = response.headers["cache-control"], response.headers["x-accel-buffering"]
            assert proxies == ("no-cache", "no"), "they must pass events on"
            lines, ended = response.iter_lines(), False
            for line in lines:
                assert line.startswith("data: ")
                assert next(lines) == "", "an event ends with an empty line"
                if line == "data: [DONE]":
                    assert ended and list(lines) == []
                    return
                event = json.loads(line.removeprefix("data: "))
                assert not ended, "only the last event has a finish_reason"
                if not (ended := event["finish_reason"] is not None):
                    assert event.keys() == {"id", "text", "token_ids", "finish_reason"}
                    assert event["text"] and event["token_ids"], "an event without news"
                yield event
        raise AssertionError("the stream ended without [DONE]")

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def ask(self, path: str = "/generate", **body) -> socket.socket:
        """Send a request; the test reads the answer, or hangs up."""
        client, data = self.connect(), json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        return client

    def wait_for_requests(self, count: int) -> None:
        """Wait until `count` requests have been sent to the engine: it takes them between two steps."""
        wait_until(lambda: self.thread.submitted == count)
        if APART:
            wait_until(lambda: all(one.request for one in self.thread._open) and not self.thread.engine._mail)


@pytest.fixture(scope="module", params=[False, True], ids=["one process", "api process"])
def apart(request):
    """Whether servers have their engine behind the messages of --api-process, run by a thread of this process."""
    with patch.object(sys.modules[__name__], "APART", request.param):
        yield request.param


def serving(engine, max_queue: int = 64):
    """A running server of stage 03's own application."""

    def build(engine):
        thread = CountingThread(engine, max_queue)
        return graceful_module.Server(server_module.create_app(thread), thread, "127.0.0.1", 0)

    return run_server(build, engine)


@contextmanager
def run_server(build: Callable, engine, kind: type[Service] = Service, apart: bool = False) -> Iterator[Service]:
    """Run the server that `build` makes for an engine."""
    apart = apart or APART
    with behind_messages(build, engine) if apart else nullcontext(build(engine)) as server, running(server) as url:
        service = kind(url, server)
        service.engine = engine  # the one that computes
        try:
            yield service
        except BaseException:
            if isinstance(engine, SteppingEngine):
                engine.allow()  # a test that has failed must not wait for its open requests as well
            raise


@contextmanager
def behind_messages(build: Callable, engine) -> Iterator:
    """Build the server as --api-process does in the one process, and run the engine as in the other."""
    here, there = Pipe()

    def run() -> None:
        with there, suppress(BaseException):  # The server reports the failure.
            Steps(engine, there).run()

    steps = threading.Thread(target=run, name="engine")
    steps.start()
    remote = RemoteEngine(here)
    server = build(remote)
    remote.listen(server.engine_thread)
    try:
        yield server
    finally:
        shut(here)
        steps.join()


def shut(connection: Connection) -> None:
    """End a connection as the end of a process does, also for a thread that reads from it."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.005)

"""What --api-process alone has: two real processes, of which one may die, and messages. The other suites run on it too.

They do in one process (`apart`); these tests start the program.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe

import httpx
import psutil
import pytest

from common.errors import InvalidInput
from common.sampling import SamplingParams
from common.serving.api_process import RemoteEngine, Steps
from common.serving.prompt_logprobs import PromptLogprobs, PromptLogprobsParams
from common.stages import load_engine, stage_folder
from common.structured_output import Structure
from tests.helpers.engine_options import endless
from tests.helpers.serving_openai import PROMPT, openai_server
from tests.helpers.serving_stage_03 import shut


@contextmanager
def program() -> Iterator[tuple[subprocess.Popen, psutil.Process, str]]:
    """Start a server of two processes; yield the program, its API's process and its URL. Both must end."""
    options = "--serve --api-process --port 0 --token-budget 64".split()  # given: to measure the budget takes a second
    command = [sys.executable, stage_folder("06") / "main.py", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as engine:
        url = engine.stdout.readline().split()[2]
        children = psutil.Process(engine.pid).children()
        [api] = [child for child in children if "spawn_main" in str(child.cmdline())]
        try:
            yield engine, api, url
            assert psutil.wait_procs([api], 60)[1] == []
        finally:
            engine.kill()


def test_ctrl_c_in_a_terminal_lets_answers_end():
    """A terminal sends it to all processes of the program, and for the server it must be one."""
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with program() as (engine, _, url), httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.killpg(engine.pid, signal.SIGINT)
        assert '"finish_reason": "length"' in "".join(lines)
        assert engine.wait(60) == 130


def test_when_the_apis_process_has_ended_the_engines_ends():
    with program() as (engine, api, _):
        api.kill()
        assert engine.wait(60) == 1
        assert "the API's process was ended by signal 9, and the server has stopped" in engine.stderr.read()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_engines_process_has_ended_its_clients_hear_it(loaded):
    with openai_server("06", loaded, "--api-process") as service:
        events = service.events(prompt=PROMPT, max_tokens=2000, ignore_eos=True)
        next(events)
        shut(service.thread.engine._connection)
        assert [event["finish_reason"] for event in events][-1] == "error"
        assert "the engine failed: its process has ended" in service.get("/health").text


@pytest.fixture
def remote(loaded, request):
    """(engine, RemoteEngine before it, a function that waits for the next report). Its parameter is the interval."""
    engine, (here, there) = load_engine("06")(loaded, kv_memory="1M"), Pipe()
    steps = threading.Thread(target=lambda: Steps(engine, there, getattr(request, "param", 1)).run())
    steps.start()
    remote = RemoteEngine(here)

    def step():
        remote.step()
        remote._inbox.append(here.recv())
        return remote.step()

    yield engine, remote, step
    here.close()
    steps.join()


@pytest.mark.parametrize("remote", [4], indirect=True)
def test_with_an_interval_reports_come_with_that_many_tokens(remote):
    _, api, step = remote
    request, lengths = api.add(PROMPT, endless(11)), []
    while not request.finished:
        step()
        lengths.append(len(request.token_ids))
    assert lengths == [1, 5, 9, 11]


def test_a_form_is_compiled_beside_the_steps(remote, monkeypatch):
    """The engine's process compiles it again; meanwhile the others go on, and an abort is obeyed."""
    compiled, (engine, api, step) = threading.Event(), remote
    thread, check = threading.current_thread(), Structure.check

    def slow_check(self):
        if threading.current_thread() is not thread:
            assert compiled.wait(60)
        check(self)

    monkeypatch.setattr(Structure, "check", slow_check)
    form = SamplingParams(max_tokens=3, structure=Structure('start: "a" "b"~2', tried=True))
    slow, dropped = (api.add(PROMPT, form) for _ in range(2))
    plain = api.add(PROMPT, endless(20))
    while not plain.finished:
        step()
    assert not slow.token_ids and len(engine.requests) == 0
    api.abort(dropped.request_id)
    compiled.set()
    while not slow.finished:
        step()
    assert slow.text == "abb" and not dropped.token_ids


def test_what_can_never_run_is_refused_here_or_ends_with_an_error(remote, monkeypatch, caplog):
    """A fleet's room may have shrunk since its Hello."""
    engine, api, step = remote
    with pytest.raises(InvalidInput, match="400 tokens, and the cache has room for 128"):
        api.add([5] * 300, SamplingParams(max_tokens=100))

    scored = PromptLogprobs(api).add([5] * 300, PromptLogprobsParams(logprobs=1))  # Scoring uses no room of the cache.
    while not scored.finished:
        step()
    assert len(scored.logprobs) == 300 and scored.finish_reason == "length"

    def accept(request):
        raise InvalidInput("no room")

    monkeypatch.setattr(engine, "accept", accept)
    request = api.add(PROMPT, SamplingParams(max_tokens=5))
    while not request.finished:
        step()
    assert request.finish_reason == "error" and "no room" in caplog.text and not api.requests

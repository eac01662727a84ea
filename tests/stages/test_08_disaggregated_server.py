"""Stage 08 over HTTP: the command line with Ray's workers, and what clients hear when there are no workers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from common import cli
from common.bench.load import wait_until_healthy
from common.process import free_port
from common.stages import ROOT, load_engine, load_stage_module
from tests.helpers.faulty_fleet import FaultyFleet
from tests.helpers.serving_openai import openai_server
from tests.helpers.serving_stage_03 import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_without_workers_clients_are_told_with_503(loaded, apart, monkeypatch, caplog):
    """An idle engine is stepped, since it asks for it: so it hears of workers that have come back."""
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    engine = load_engine("08")(loaded, kv_memory="4M", wait_seconds=0.3, num_draft_tokens=0)
    with openai_server("08", loaded, engine=engine) as service, ThreadPoolExecutor() as pool:
        for path, stream in [("/v1/completions", True), ("/generate", False)]:
            body = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "stream": stream}
            caplog.clear()
            engine.fleet.hanging, before = {1}, engine.stats()["generated_tokens"]  # The first token still comes.
            asked = pool.submit(httpx.post, f"{service.url}{path}", json=body, timeout=30)
            wait_until(lambda before=before: engine.stats()["generated_tokens"] > before)
            engine.fleet.die(0, returns=False)
            engine.fleet.die(1, returns=False)
            answer = asked.result()
            assert "ends with an error: no worker has been up for" in caplog.text, "and the operator, by the log"
            if stream:  # the first token has been sent, and with it the status
                event = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))
                assert event["error"]["type"] == "server_error" and answer.text.endswith("data: [DONE]\n\n")
            else:
                assert answer.status_code == 503 and "could not be completed" in answer.text
            wait_until(service.idle)
            health = httpx.get(f"{service.url}/health")
            assert health.status_code == 503 and "no prefill and no decode worker is up" in health.text
            engine.fleet.revive(0)
            engine.fleet.revive(1)
            wait_until(lambda: httpx.get(f"{service.url}/health").status_code == 200)
            assert httpx.post(f"{service.url}{path}", json=body | {"stream": False}, timeout=30).status_code == 200


@pytest.mark.parametrize(("device", "budget", "weights"), [("cuda", None, 0), ("cpu", None, 1), ("cpu", 128, 0)])
def test_the_command_line_loads_no_weights_for_a_router(monkeypatch, loaded, device, budget, weights):
    """On a GPU it would fill memory that its workers share; on a CPU it measures the token budget with them."""
    made = []
    monkeypatch.setattr(cli, "choose_device", lambda *_: (torch.device(device), torch.float32, ""))
    monkeypatch.setattr(cli, "make_engine", lambda engine_class, loaded, **options: made.append(options))
    args = cli.build_parser("").parse_args(["--prompt", "a", "--device", "cpu"])
    args.workers, args.token_budget = "ray", budget
    router, _ = cli.build_engine(ROOT / "08_disaggregated", load_engine("08"), args)
    assert (router.model is not None) == weights and router.config == loaded.config
    assert made[0]["load_format"] == "auto", "of the workers"


def processes_of(session: int) -> set[str]:
    """The living processes of the session that this process leads."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.getsid(int(path.parent.name)) == session and (command := path.read_bytes()):
                found.add(command.replace(b"\0", b" ").decode(errors="replace")[:80])
        except OSError:
            continue
    return found


@contextmanager
def program(tmp_path, *command: str | Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Run a program in a session of its own, which must be empty soon after its end; yield it and its log."""
    pytest.importorskip("ray", reason="needs the package ray")
    path = tmp_path / "log"
    with path.open("w") as log:
        options = {"env": os.environ | {"COURSE_NO_VENV": "1"}, "start_new_session": True}
        server = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, **options)
    try:
        yield server, path
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    wait_until(lambda: not processes_of(server.pid), 15)


@linux
@pytest.mark.ray
def test_the_command_serves_on(tmp_path):
    """With workers in processes that hand requests over, and an orderly end."""
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    with program(tmp_path, ROOT / "course.py", "serve", "08", "--port", port) as (server, path):
        assert wait_until_healthy(server, url), path.read_text()
        for _ in range(3):
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200 and "Paris" in answer.json()["choices"][0]["text"], answer.text
        figures = httpx.get(f"{url}/metrics").text
        for name, value in {"handoffs_total": 3, "prefill_workers_up": 1, "decode_workers_up": 1}.items():
            assert re.search(rf"^fleet:{name}{{.*}} {value}\.0$", figures, re.MULTILINE), figures
        assert any("ray::" in command for command in processes_of(server.pid))
        os.killpg(server.pid, signal.SIGTERM)  # as systemd does: Ray's head ends at once, and answers nothing more
        assert server.wait(30) == 0, path.read_text()


@linux
@pytest.mark.ray
def test_a_start_that_is_ended_leaves_no_process(tmp_path):
    port = str(free_port())
    with program(tmp_path, ROOT / "08_disaggregated/main.py", "--serve", "--port", port) as (server, path):
        wait_until(lambda: any("raylet" in command for command in processes_of(server.pid)), 120)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 128 + signal.SIGTERM and path.read_text().count("\n") == 1, path.read_text()
        wait_until(lambda: not processes_of(server.pid), 2)

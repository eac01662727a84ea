"""Stage 08 over HTTP: the command line with Ray's workers, and what clients hear when there are no workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from faulty_fleet import FaultyFleet
from serving_openai import openai_server
from serving_stage_03 import wait_until

from common.bench.load import free_port, wait_until_healthy
from common.stages import ROOT, load_stage_module

engine_module = load_stage_module("08", "engine")


@pytest.mark.parametrize(
    ("path", "stream"), [("/v1/completions", False), ("/v1/completions", True), ("/generate", False)]
)
def test_without_decode_workers_clients_are_told_with_503(loaded, monkeypatch, path, stream):
    monkeypatch.setattr(engine_module, "LocalFleet", FaultyFleet)
    engine = engine_module.Engine(loaded, wait_seconds=0.3)
    with openai_server("08", loaded, engine=engine) as service:
        engine.fleet.die(1, returns=False)
        body = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "stream": stream}
        answer = httpx.post(f"{service.url}{path}", json=body, timeout=30)
        if stream:  # the first token has been sent, and with it the status
            event = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))
            assert event["error"]["type"] == "server_error" and answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.status_code == 503 and "could not be completed" in answer.text
        wait_until(service.idle)
        engine.fleet.dead.clear()  # it comes back, and so does the service
        assert httpx.post(f"{service.url}{path}", json=body | {"stream": False}, timeout=30).status_code == 200


def processes_of(session: int) -> set[str]:
    """Processes that were started, by whomever, from the process that leads this session, and live."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.getsid(int(path.parent.name)) == session and (command := path.read_bytes()):
                found.add(command.replace(b"\0", b" ").decode(errors="replace")[:80])
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_serve_with_two_decode_workers_and_end_cleanly(tmp_path):
    pytest.importorskip("ray")
    port = free_port()
    command = [sys.executable, str(ROOT / "08_disaggregated" / "main.py"), "--serve", "--port", str(port)]
    command += ["--prefill", "1", "--decode", "2", "--kv-memory", "64M", "--device", "cpu"]
    with open(tmp_path / "log", "w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            assert wait_until_healthy(server, f"http://127.0.0.1:{port}"), (tmp_path / "log").read_text()
            body = {"prompt": "The capital of France is", "max_tokens": 8}
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60).json()
            assert "Paris" in answer["choices"][0]["text"]
            metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            assert "vllm:generation_tokens_total" in metrics
            assert sum("ray::" in command for command in processes_of(server.pid)) >= 1
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0, (tmp_path / "log").read_text()
        finally:
            server.kill()
            server.wait()
    give_up = time.monotonic() + 15
    while processes_of(server.pid) and time.monotonic() < give_up:
        time.sleep(0.2)
    assert processes_of(server.pid) == set()

"""The page's server over HTTP, without a browser: which page may control the engine, and what the controls do."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from common.serving.background import free_port
from common.stages import ROOT
from tests.helpers.serving_stage_03 import wait_until
from tests.helpers.watching import watching

CHANGES = {
    "send": {"prompt": "What is 2+2?", "max_tokens": 4},
    "load": {"clients": 1},
    "speed": {"do": "pause"},
    "abort": {"request_id": "request-0"},
    "kill": {"worker": 0},
}


@pytest.fixture(scope="module")
def server(loaded):
    with watching("05", loaded, "--api-key", "secret") as server:
        yield server


KEY = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("origin", [None, "http://evil.example", "null"])
def test_only_the_page_itself_changes_anything(server, path, origin):
    headers = KEY | ({} if origin is None else {"Origin": origin})
    answer = httpx.post(f"{server.page_url}/{path}", json=CHANGES[path], headers=headers)
    assert answer.status_code == 403
    assert not server.watched.pace.paused and not server.engine.requests


@pytest.mark.parametrize("path", [*CHANGES, "events", "controls"])
def test_changes_and_what_is_told_need_the_key(server, path):
    method = "POST" if path in CHANGES else "GET"
    answer = httpx.request(method, f"{server.page_url}/{path}", json=CHANGES.get(path), headers={"Origin": server.url})
    assert answer.status_code == 401


def test_a_foreign_name_that_leads_here_is_turned_away(server):
    """DNS rebinding: to the browser, the page of that name and this server have the same origin."""
    headers = KEY | {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
    assert httpx.post(f"{server.page_url}/speed", json={"do": "pause"}, headers=headers).status_code == 403
    assert httpx.get(f"{server.page_url}/controls", headers=headers).status_code == 403


def test_the_page_may_change_things(server):
    headers = KEY | {"Origin": server.url}
    assert httpx.post(f"{server.page_url}/load", json={"clients": 2}, headers=headers).json()["clients"] == 2
    wait_until(lambda: server.watched.trace.steps > 3)
    assert httpx.post(f"{server.page_url}/load", json={"clients": 0}, headers=headers).json()["clients"] == 0
    wait_until(lambda: server.thread.stats["unfinished"] == 0)
    assert httpx.post(f"{server.page_url}/load", json={"clients": 1000}, headers=headers).status_code == 422
    assert httpx.post(f"{server.page_url}/kill", json={"worker": 0}, headers=headers).status_code == 404


def test_a_request_from_a_page_can_be_aborted_by_any_page(server):
    headers = KEY | {"Origin": server.url}
    server.watched.pace.pause()
    body = {"prompt": "Count from 1 to 30.", "max_tokens": 40}
    [request_id] = httpx.post(f"{server.page_url}/send", json=body, headers=headers).json()["request_ids"]
    request = server.engine.requests[request_id]
    abort = {"json": {"request_id": request_id}, "headers": headers}
    assert httpx.post(f"{server.page_url}/abort", **abort).status_code == 200
    wait_until(lambda: request.finish_reason == "abort")
    wait_until(lambda: httpx.post(f"{server.page_url}/abort", **abort).status_code == 404)
    server.watched.pace.resume()


def test_the_document_loads_nothing_and_says_so(server):
    page = httpx.get(server.page_url)
    assert page.status_code == 200 and page.headers["X-Frame-Options"] == "DENY"
    assert re.findall(r'(?:src|href)="(?!data:)', page.text) == []
    assert "default-src 'none'" in page.text and "require-trusted-types-for 'script'" in page.text
    assert httpx.get(server.page_url).text != page.text, "the nonce is another one each time"


def test_an_idle_engine_looks_up_for_a_page_that_opens(server):
    with httpx.stream("GET", f"{server.page_url}/events", headers=KEY, timeout=30) as stream:
        lines = stream.iter_lines()
        hello = json.loads(next(lines).removeprefix("data: "))
        assert hello["version"] == 1 and hello["kind"] == "pages" and "folder" not in hello
        next(lines)
        assert "memory" in json.loads(next(lines).removeprefix("data: "))
    wait_until(lambda: server.watched.feed.readers == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_two_engines_that_are_told_to_stop_while_they_load_both_end():
    command = [sys.executable, "-m", "common.inspector", "03", "04", "--no-browser", "--port", str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        status, handled = Path(f"/proc/{process.pid}/status"), 0
        while not handled >> (signal.SIGTERM - 1) & 1:
            assert process.poll() is None
            handled = int(re.search(r"^SigCgt:\s*(\w+)", status.read_text(), re.MULTILINE)[1], 16)
        [other] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{other}").exists()

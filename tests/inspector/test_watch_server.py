"""The page's server over HTTP, without a browser: which page may control the engine, and what the controls do."""

import json
import re
import shutil

import httpx
import pytest

from common.inspector import __main__ as watch
from common.inspector.document import document
from common.stages import stage_folder
from tests.helpers.serving_stage_03 import wait_until
from tests.helpers.watching import watching

KEY = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def server(loaded):
    with watching("05", loaded, "--api-key", "secret") as server:
        yield server


@pytest.mark.parametrize("path", ["send", "load", "speed", "abort", "kill"])
def test_only_the_page_itself_changes_anything_and_with_the_key(server, path):
    url, body = f"{server.page_url}/{path}", {"prompt": "a", "clients": 1, "do": "pause"}
    for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        assert httpx.post(url, json=body, headers=KEY | origin).status_code == 403
    assert httpx.post(url, json=body, headers={"Origin": server.url}).status_code == 401
    # DNS rebinding: to the browser, the page of a name that leads here and this server have the same origin.
    foreign = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
    assert httpx.post(url, json=body, headers=KEY | foreign).status_code == 403
    assert not server.watched.pace.paused and not server.engine.requests
    for told in ("events", "controls"):
        assert httpx.get(f"{server.page_url}/{told}").status_code == 401
        assert httpx.get(f"{server.page_url}/{told}", headers=KEY | foreign).status_code == 403


def test_a_lessons_memory_holds_as_many_tokens_of_another_model():
    """Or the lesson's own prompts would be refused: SmolLM2 has five times as many bytes a token."""
    stage = stage_folder("05")
    bundled, draft = watch.parse(stage, []).kv_memory, watch.parse(stage, ["--model", "draft"]).kv_memory
    assert (bundled, draft) == ("15M", (15 << 20) // 8), "2 layers with 1 K/V head, for 8 with 2"
    assert watch.parse(stage, ["--model", "draft", "--kv-memory", "3M"]).kv_memory == "3M"


def test_the_page_may_change_things(server):
    def post(path: str, body: dict) -> httpx.Response:
        return httpx.post(f"{server.page_url}/{path}", json=body, headers=KEY | {"Origin": server.url})

    assert post("load", {"clients": 2}).json()["clients"] == 2
    wait_until(lambda: server.engine.trace.steps > 3)
    assert post("load", {"clients": 0}).json()["clients"] == 0
    wait_until(lambda: server.engine_thread.stats["unfinished"] == 0)
    assert post("load", {"clients": 1000}).status_code == 400
    assert post("kill", {"worker": 0}).status_code == 404
    assert post("abort", {"request_id": "unknown"}).status_code == 404
    body = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/generate", headers=KEY, json=body) as answer:
        [request_id] = server.engine.requests
        post("abort", {"request_id": request_id})
        assert b'"abort"' in answer.read(), "any client's request, and the client is told"


def test_a_learners_stage_is_named_apart_from_the_reference(loaded, tmp_path):
    shutil.copytree(stage_folder("05"), tmp_path / "my" / "05_mine", ignore=shutil.ignore_patterns("main.py"))
    with (
        watching(str(tmp_path / "my" / "05_mine"), loaded) as server,
        httpx.stream("GET", f"{server.page_url}/events") as events,
    ):
        hello = json.loads(next(events.iter_lines()).removeprefix("data: "))
    assert (hello["name"], hello["lesson"]["title"]) == ("my/05_mine", "Paged attention")


def test_the_document_loads_nothing_and_says_so(server):
    page = httpx.get(server.url, follow_redirects=True)  # the bare address, and without the key
    assert page.status_code == 200 and page.url == server.page_url and page.headers["X-Frame-Options"] == "DENY"
    assert re.findall(r'(?:src|href)="(?!data:)', page.text) == []
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page.text)
    assert "default-src 'none'" in policy and policy.endswith("connect-src 'self'")
    assert "</script><script>alert" not in document({"recording": "</script><script>alert(1)</script>"})

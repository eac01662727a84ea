"""Exercise 3 of stage 03: a client that waits in the queue hears from the server."""

import json
import threading

import httpx

from common.serving.background import running
from common.stages import load_stage_module


def test_waiting_clients_get_comments_and_the_text_is_unchanged(copy_of, loaded):
    folder = copy_of("03_streaming", "server.py", "heartbeat.py")
    engine_class = load_stage_module(folder, "engine").Engine
    thread_class = load_stage_module(folder, "engine_thread").EngineThread
    server = load_stage_module(folder, "server")
    engine, may_step = engine_class(loaded), threading.Event()
    step = engine.step
    engine.step = lambda: may_step.wait() and step()
    body = {"prompt": "The capital of France is", "max_tokens": 12, "stream": True}
    thread = thread_class(engine, max_queue=4)
    with running(server.Server(server.create_app(thread), thread, "127.0.0.1", 0)) as url:
        comments, texts = [], []
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=30) as response:
            for line in response.iter_lines():
                if line.startswith(":"):
                    comments.append(line)
                if len(comments) == 2:
                    may_step.set()
                if line.startswith("data: {"):
                    texts.append(json.loads(line.removeprefix("data: "))["text"])
        whole = httpx.post(f"{url}/generate", json=body | {"stream": False}, timeout=30).json()["text"]
    assert len(comments) >= 2, "no comment line came while the request waited"
    assert "".join(texts) == whole

"""Lesson 03: the check of its exercise."""

import json
import threading

import httpx

from common.serving.background import running

from . import Failed, exercise
from .stage_under_test import STORIES, expect

SILENCE = 4  # seconds without a byte, after which a client gives up here; the comments are half a second apart


@exercise(
    3,
    hint="`events` waits for the next piece. Wait with a time limit, and yield `: still waiting` and an empty line.",
    second_hint="asyncio.wait([task], timeout=0.5) leaves the task alone when time is up; wait_for cancels it.",
)
def a_client_that_waits_hears_from_the_server(stage):
    """While its request waits, a client gets a comment line for every half second without an event."""
    engine, may_step = stage.make_engine(), threading.Event()
    step = engine.step
    engine.step = lambda: may_step.wait() and step()
    body = {"prompt": STORIES[0], "max_tokens": 12, "stream": True}
    thread = stage.engine_thread.EngineThread(engine, max_queue=4)
    comments, texts = [], []
    with running(stage.server.Server(stage.server.create_app(thread), thread, "127.0.0.1", 0)) as url:
        try:
            with httpx.stream("POST", f"{url}/generate", json=body, timeout=SILENCE) as response:
                for line in response.iter_lines():
                    comments += [line] if line.startswith(":") else []
                    texts += [json.loads(line[6:])["text"]] if line.startswith("data: {") else []
                    if len(comments) == 2:
                        may_step.set()
        except httpx.ReadTimeout:
            raise Failed(f"after {len(comments)} comments the client got nothing for {SILENCE} seconds") from None
        finally:
            may_step.set()
        whole = httpx.post(f"{url}/generate", json=body | {"stream": False}, timeout=SILENCE).json()["text"]
    expect(len(comments) >= 2, f"{len(comments)} comments came while the engine stood still, not two")
    expect("".join(texts) == whole, f"the events together say {''.join(texts)!r}, not {whole!r}")

"""A server that streams as OpenAI's API does and knows no model: what it says, when, and what goes wrong is given.

The name of the model that a request asks for decides how it is answered.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from common.serving.background import running

FIRST, GAP = 0.03, 0.004  # seconds until the first token, and from one chunk to the next
KEY = "sesame"
FAILURES = {  # what the load generator must say of each
    "error": "the engine has died",
    "cut": "peer closed connection without sending complete message body (incomplete chunked read)",
    "unfinished": "the stream ended without [DONE]",
    "aborted": "the answer ended with finish_reason 'abort'",
    "no-usage": "the server sent no usage, without which tokens cannot be counted",
    "no-json": "the stream carries an event that is no JSON object: 'nonsense'",
    "full": "HTTP 429: the queue is full",
}
MODELS = ["steady", "bursts", "empty-first", "flaky", *FAILURES]


class StandIn:
    """The server's side of a test: which requests came, and how many were open at once."""

    def __init__(self):
        self.url = ""
        self.open = 0
        self.forget()

    def forget(self) -> None:
        """Make it as good as new for the next test."""
        self.bodies: list[dict] = []
        self.most_open = 0
        self.key: str | None = None  # The models are listed only with this key, if there is one.
        self.on_request = lambda count: None

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/v1/models")
        async def models(http: Request):
            if self.key and http.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "Incorrect API key provided", "code": 401}}, 401)
            return {"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]}

        @app.post("/v1/completions")
        @app.post("/v1/chat/completions")
        async def answer(http: Request):
            body = await http.json()
            self.bodies.append(body)
            self.on_request(len(self.bodies))
            if body["model"] == "full" or (body["model"] == "flaky" and len(self.bodies) % 3 == 0):
                return JSONResponse({"error": {"message": "the queue is full"}}, 429)
            return StreamingResponse(self.events(body), media_type="text/event-stream")

        return app

    async def events(self, body: dict) -> AsyncIterator[str]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield ": a comment keeps the connection alive\n\n"
            async for event in chunks(body):
                yield event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
        finally:
            self.open -= 1


async def chunks(body: dict) -> AsyncIterator[dict | str]:
    kind, tokens = body["model"], body["max_tokens"]
    if kind == "empty-first" or "messages" in body:
        yield chunk(body, "")
    await asyncio.sleep(FIRST)
    in_one_chunk = 4 if kind == "bursts" else 1
    for first in range(0, tokens, in_one_chunk):
        count = min(in_one_chunk, tokens - first)
        last = first + count == tokens
        if last and kind == "error":
            yield {"error": {"message": FAILURES[kind], "type": "internal_error"}}
        elif last and kind == "cut":
            raise ConnectionError("cut")
        elif last and kind == "no-json":
            yield "data: nonsense\n\n"
        else:
            end = "abort" if kind == "aborted" else "length"
            yield chunk(body, " word" * count, end if last else None)
        await asyncio.sleep(GAP)
    if kind != "no-usage":
        prompt = body.get("prompt") or body["messages"][-1]["content"]
        words = prompt if isinstance(prompt, list) else prompt.split()
        yield {"choices": [], "usage": {"prompt_tokens": len(words), "completion_tokens": tokens}}
    if kind != "unfinished":
        yield "data: [DONE]\n\n"


def chunk(body: dict, text: str, finish_reason: str | None = None) -> dict:
    said = {"delta": {"content": text}} if "messages" in body else {"text": text}
    return {"choices": [{"index": 0, **said, "finish_reason": finish_reason}], "usage": None}


@contextmanager
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    config = uvicorn.Config(server.app(), host="127.0.0.1", port=0, log_level="critical")
    with running(uvicorn.Server(config)) as server.url:
        yield server

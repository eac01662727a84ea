"""NEW in 03: FastAPI on uvicorn, with answers streamed as server-sent events while the engine computes.

Server-sent events are the simplest form of streaming: an ordinary HTTP response of type `text/event-stream` that is
sent in pieces, each a line `data: ...` and an empty line. Every OpenAI-compatible server streams this way.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from common.engine import BaseEngine
from common.serving.application import complete_application
from common.serving.errors import ANSWERED, EngineDead, error_response
from common.serving.generate_api import completion_json, parse_generate_body
from common.serving.prompt_logprobs import PromptLogprobs

from .engine_thread import EngineThread, Stream
from .graceful import Server

SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must pass each event on at once


def create_app(engine_thread: EngineThread) -> FastAPI:
    """Build the application: `POST /generate` and `GET /health`. Errors are {"error": one sentence}."""

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        engine_thread.start()
        yield
        await engine_thread.close(grace=0)

    app = FastAPI(title="LLM inference server", lifespan=lifespan)

    @app.post("/generate")
    async def generate(http: Request):
        body = parse_generate_body(await http.body())
        stream = await engine_thread.submit(body.prompt, body.params)
        watch = asyncio.create_task(abort_on_disconnect(http, engine_thread, stream))
        if body.stream:
            return StreamingResponse(events(stream, watch), media_type="text/event-stream", headers=SSE_HEADERS)
        request = await stream.finished()
        watch.cancel()
        if request is None or request.finish_reason in ("abort", "error"):
            raise EngineDead(str(engine_thread.error or "the request could not be completed"))
        return completion_json(request)

    @app.get("/health")
    async def health():
        if engine_thread.error is not None:
            raise EngineDead(str(engine_thread.error))
        if unavailable := engine_thread.engine.unavailable:
            raise EngineDead(unavailable)
        return {"status": "ok", **engine_thread.stats}

    for error in ANSWERED:
        app.add_exception_handler(error, error_response)
    return app


async def abort_on_disconnect(http: Request, engine_thread: EngineThread, stream: Stream) -> None:
    """Abort the request when its client disconnects: after the body, the only message left is the disconnection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    engine_thread.abort(stream)


async def events(stream: Stream, watch: asyncio.Task) -> AsyncIterator[str]:
    """Yield an event for each piece, the last one with the finish reason, and `[DONE]` as in OpenAI's API.

    The concatenated texts of all events are the text of the unstreamed answer.
    """
    async for piece in stream:
        event = {
            "id": stream.request.request_id,
            "text": piece.text,
            "token_ids": piece.token_ids,
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            event = completion_json(stream.request) | event
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"
    watch.cancel()


def build_server(engine: BaseEngine, args: argparse.Namespace) -> Server:
    """Build the whole server: the engine with scoring, its thread, /generate, OpenAI's API, metrics, and limits."""
    engine_thread = EngineThread(PromptLogprobs(engine), args.max_queue)
    app = create_app(engine_thread)
    complete_application(app, engine_thread, args)
    return Server(app, engine_thread, args.host, args.port, args.log_level)


def serve(engine: BaseEngine, args: argparse.Namespace) -> None:
    """Serve until SIGTERM or Ctrl-C; every open request gets its answer or an error.

    If the engine fails, answer open requests with errors, shut down, and exit with status 1 and the reason on stderr.
    """
    build_server(engine, args).serve_until_stopped()

"""Load and unload adapters while the server runs, under vLLM's paths and fields (common/lora.py).

A client that loads an adapter makes the server read files of its machine. So this needs an API key, and a server that
was started with `--lora`.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from common.lora import read_adapter

from .errors import BadRequest, EngineDead

ANSWER_SECONDS = 60.0  # for the engine to come to the end of a step


class Unload(BaseModel, strict=True, extra="forbid"):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: str


class Load(Unload):
    """`POST /v1/load_lora_adapter`."""

    lora_path: Annotated[str, Field(max_length=4096)]


def router(service: Any, key: str | None) -> APIRouter:
    """Return the routes. service: that of openai_api/routes.py. key: that of --api-key, which `HeaderCheck` checks."""
    routes = APIRouter()

    def adapted(http: Request) -> Any:
        if not key or http.state.tenant:
            advice = "adapters are loaded with the key of --api-key: start the server with one, and send it"
            raise BadRequest(advice, status=403)
        if service.engine.lora is None:
            raise BadRequest(
                "this server loads no adapters while it runs: start it with --lora, as one process of stages 04 to 07"
            )
        return service.engine.lora

    @routes.post("/v1/load_lora_adapter")
    async def load(body: Load, http: Request):
        lora = adapted(http)
        if body.lora_name == service.name:
            raise BadRequest(f"{body.lora_name!r} is the model's own name: give another one", "lora_name")
        folder = Path(os.path.expanduser(body.lora_path)).absolute()
        adapter = await asyncio.to_thread(read_adapter, body.lora_name, folder, service.engine)
        await between_steps(service.thread, partial(lora.load, adapter))
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @routes.post("/v1/unload_lora_adapter")
    async def unload(body: Unload, http: Request):
        lora = adapted(http)
        await between_steps(service.thread, partial(lora.unload, body.lora_name, service.engine.requests))
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routes


async def between_steps(engine_thread: Any, change: Callable[[], None]) -> None:
    """Have the engine's thread call a function before its next step. Raise what it raises."""
    if engine_thread.error is not None:
        raise EngineDead(str(engine_thread.error))
    done: Future[None] = Future()

    def command() -> None:
        if done.set_running_or_notify_cancel():  # False: the wait has timed out, and the client has its answer.
            try:
                done.set_result(change())
            except Exception as error:  # A wrong request, or too little memory: the engine has not changed.
                done.set_exception(error)

    engine_thread._commands.put(command)
    try:
        await asyncio.wait_for(asyncio.wrap_future(done), ANSWER_SECONDS)
    except asyncio.TimeoutError as error:
        raise EngineDead(str(engine_thread.error or "the engine is busy: try again later")) from error

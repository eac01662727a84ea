"""What the page asks of the server: itself, the stream of updates, and what its controls do."""

import ipaddress
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Body, HTTPException, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse

from common.errors import InvalidInput
from common.sampling import SamplingParams
from common.serving.errors import EngineDead
from common.serving.openai_api.routes import SSE_HEADERS, event

from . import books
from .document import document
from .feed import Page
from .load import MAX_CLIENTS, Clients
from .watched import Watched

PAGE_HEADERS = {"Cache-Control": "no-store", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


def guard(own_name: str, origins: Collection[str]) -> Callable:
    """Return a check that refuses other pages of the same browser: it sends requests to 127.0.0.1 for any page.

    own_name: the server's name, besides localhost and addresses. Under a foreign name that leads here (DNS rebinding),
    a foreign page would look like our own. origins: those of other pages that may control the server.
    """

    async def check(http: Request) -> None:
        """Raise HTTPException 403 for a host that is not ours, or a change that another page asks for."""
        host = http.headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if name not in ("localhost", own_name) and not is_address(name):
            raise HTTPException(403, "this is not the name of this server: use the address that it printed")
        own = f"{http.url.scheme}://{host}"
        if http.method != "GET" and http.headers.get("origin", "") not in (own, *origins):
            raise HTTPException(403, "only the server's own page may control it")

    return check


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def router(stage: Path, watched: Watched, engine_thread, clients: Clients, hello: dict, boot: dict) -> APIRouter:
    """Return the routes. stage: its folder. hello: begins each stream of updates. boot: begins the page."""
    routes = APIRouter(prefix="/watch")
    connect = [engine["url"] for engine in boot["engines"] if engine["url"]]

    @routes.get("")
    async def page():
        return HTMLResponse(document(boot, connect), headers=PAGE_HEADERS)

    @routes.get("/lesson")
    async def lesson():
        path = stage / "README.md"
        return PlainTextResponse(path.read_text(encoding="utf-8") if path.exists() else "This folder has no lesson.")

    @routes.get("/events")
    async def events():
        return StreamingResponse(stream(), media_type="text/event-stream", headers=SSE_HEADERS)

    async def stream() -> AsyncIterator[str]:
        yield event(json.dumps(hello | controls()))
        watched.open_reader(page := Page())
        try:
            async for update in page.updates():
                if engine_thread.error is not None:  # The server is stopping, and waits for streams to end.
                    yield event(json.dumps({"ended": str(engine_thread.error)}))
                    return
                yield event(update) if update is not None else ": nothing new\n\n"
        finally:
            watched.close_reader(page)

    @routes.get("/controls")
    def controls() -> dict[str, Any]:
        return {
            "paused": watched.pace.paused,
            "steps_per_second": watched.pace.steps_per_second or 0,
            "clients": clients.count,
            "long_prompts": clients.long_prompts,
            "killable": sorted(books.killable(watched.engine)),
        }

    @routes.post("/send")
    async def send(
        prompt: Annotated[str, Body()],
        max_tokens: Annotated[int, Body(ge=1)] = 128,
        temperature: Annotated[float, Body()] = 0.0,
        count: Annotated[int, Body(ge=1, le=MAX_CLIENTS)] = 1,
        chat: Annotated[bool, Body()] = True,
        system: Annotated[str, Body()] = "",
    ):
        if not prompt.strip():  # With the chat template, even an empty prompt has tokens.
            raise HTTPException(400, "the prompt is empty: write one, or choose a preset")
        try:
            params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
            ids = await clients.send(prompt, params, count=count, chat=chat, system=system)
        except InvalidInput as error:
            raise HTTPException(400, str(error)) from error
        return {"request_ids": ids}

    @routes.post("/load")
    async def load(
        clients_wanted: Annotated[int, Body(alias="clients", ge=0, le=MAX_CLIENTS)],
        long_prompts: Annotated[bool, Body()] = False,
    ):
        if engine_thread.error is not None:
            raise EngineDead(str(engine_thread.error))
        clients.long_prompts = long_prompts
        clients.resize(clients_wanted)
        return controls()

    @routes.post("/speed")
    async def speed(
        do: Annotated[Literal["pause", "resume", "step"] | None, Body()] = None,
        steps_per_second: Annotated[float | None, Body(ge=0, le=1000)] = None,
    ):
        """steps_per_second: 0 for as many as the engine can; None leaves it as it is."""
        if not books.can_pause(watched.engine):
            raise HTTPException(409, "the workers of this stage have loops of their own: they cannot be stopped here")
        if steps_per_second is not None:
            watched.pace.limit(steps_per_second or None)
        if do is not None:
            watched.pace.ask(do)
        return controls()

    @routes.post("/abort")
    async def abort(request_id: Annotated[str, Body(embed=True)]):
        """End a request, whichever client sent it."""
        if request_id not in watched.engine.requests:
            raise HTTPException(404, "this request has ended")
        watched.abort(request_id)
        return controls()

    @routes.post("/kill")
    async def kill(worker: Annotated[int, Body(embed=True)]):
        process = books.killable(watched.engine).get(worker)
        if process is None:
            raise HTTPException(404, "this worker is not a process of this machine that is up")
        os.kill(process, signal.SIGKILL)
        return controls()

    return routes

"""What stands before an application: an API key, a limit on the size of bodies."""

import asyncio
import hmac
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .openai_api.errors import Json, error_object

SMALL_BODY = 64 << 10  # bytes: a chat of some 20,000 tokens
LARGE_PER_SECOND = 4 << 20  # bytes of bodies above that; parsing a mebibyte takes 5 to 20 ms
# For load balancers and monitors, which have no key; and the inspector's page, which asks for it.
OPEN_PATHS = {"/health", "/metrics", "/version", "/watch", "/watch/lesson"}


class ApiKey:
    """Refuses requests without `Authorization: Bearer KEY` with 401; OPEN_PATHS are open to all."""

    def __init__(self, app: ASGIApp, key: str):
        self.app, self.expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
            given = dict(scope["headers"]).get(b"authorization", b"")
            # Compared in constant time: how long a refusal takes must not tell how much of the key was right.
            if not hmac.compare_digest(given, self.expected):
                message = "the API key is missing or wrong: send it as Authorization: Bearer KEY"
                answer = Json(error_object(message, 401), 401, headers={"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """Refuses bodies of more than `most` bytes with 413, and does not read them to the end.

    Large bodies are read no faster than LARGE_PER_SECOND, all together: to parse one holds Python's interpreter lock,
    and a client that sends one after the other would take it from the engine at every operation of a step.
    It also notes when each request came, as `request.state.arrived`, before its body is read.
    """

    def __init__(self, app: ASGIApp, most: int):
        self.app, self.most = app, most
        self.free_at = 0.0  # when the next part of a large body may be read, on the clock of `time.monotonic`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["arrived"] = time.perf_counter()
        read, refusal = 0, f"the body is larger than {self.most} bytes"

        async def limited_receive() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:  # sent without its length, or longer than it said
                raise HTTPException(413, refusal)
            if read > SMALL_BODY:
                self.free_at = max(self.free_at, time.monotonic()) + len(message["body"]) / LARGE_PER_SECOND
                await asyncio.sleep(self.free_at - time.monotonic())
            return message

        length = dict(scope["headers"]).get(b"content-length", b"") if scope["type"] == "http" else b""
        if length.isdigit() and int(length) > self.most:
            await Json(error_object(refusal, 413), 413)(scope, receive, send)
        else:
            await self.app(scope, limited_receive, send)

"""Middleware in front of the application: an API key, limits on bodies, a rule for web pages."""

import asyncio
import hmac
import time
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.errors import shortened

from .errors import error_response

SMALL_BODY = 64 << 10  # bytes: a chat of some 20,000 tokens
LARGE_PER_SECOND = 4 << 20  # bytes of bodies above that; parsing a mebibyte takes 5 to 20 ms
LONGEST_WAIT = 5.0  # seconds until a large body is read; if it would be longer, refuse the request
# Load balancers and monitors have no key. The inspector's page opens without one, and then asks for it.
OPEN_PATHS = {"/health", "/metrics", "/version", "/", "/watch", "/watch/lesson"}


class Origins(CORSMiddleware):
    """Tell browsers which web pages may send requests. A refusal names the option that would allow the page."""

    def preflight_response(self, request_headers: Headers):
        origin = request_headers["origin"]
        if self.is_allowed_origin(origin):
            return super().preflight_response(request_headers)
        page = shortened(origin).strip("'")
        message = f"pages of {page} may not send requests: start the server with --allow-origin {page}"
        error = HTTPException(403, message)
        return lambda scope, *channels: error_response(Request(scope), error)(scope, *channels)


class HeaderCheck:
    """Refuse requests by their headers, read every body as JSON, and HEAD as GET.

    keys: names of tenants by their keys; with any, requests without `Authorization: Bearer KEY` get 401, except those
    for OPEN_PATHS. Also set `request.state.tenant`, the name, "" without keys.
    A web page's POST that is not declared as JSON gets 415. A browser sends JSON to another site only if that site
    allows it (--allow-origin), but it sends forms and plain text without asking. Browsers send an Origin with every
    POST. Other clients send none: their body counts as JSON whatever its type, since `curl -d` calls it a form.
    """

    def __init__(self, app: ASGIApp, keys: Mapping[str, str]):
        self.app, self.keys = app, {key.encode(): name for key, name in keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            scope.setdefault("state", {})["tenant"] = self.tenant(headers) or ""
            if error := self.refusal(scope["method"], scope["path"], headers):
                await error_response(Request(scope), error)(scope, receive, send)
                return
            if scope["method"] == "POST":
                others = [header for header in scope["headers"] if header[0] != b"content-type"]  # It may be repeated.
                scope = scope | {"headers": [*others, (b"content-type", b"application/json")]}
            if scope["method"] == "HEAD":  # uvicorn leaves out the body
                scope = scope | {"method": "GET"}
        await self.app(scope, receive, send)

    def refusal(self, method: str, path: str, headers: dict[bytes, bytes]) -> HTTPException | None:
        open_to_all = not self.keys or path in OPEN_PATHS or method == "OPTIONS"
        if not open_to_all and self.tenant(headers) is None:
            message = "the API key is missing or wrong: send it as Authorization: Bearer KEY"
            return HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
        declared = headers.get(b"content-type", b"").startswith(b"application/json")
        if method == "POST" and b"origin" in headers and not declared:
            return HTTPException(
                415, "a web page must send its body as JSON: set the header Content-Type: application/json"
            )
        return None

    def tenant(self, headers: dict[bytes, bytes]) -> str | None:
        """Return the name of the tenant whose key the headers have; None if they have no valid key."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        # Compare with every key in constant time: the time of a refusal must not tell how much of a key was right.
        names = [name for known, name in self.keys.items() if hmac.compare_digest(key.strip(), known)]
        return names[0] if names and scheme.lower() == b"bearer" else None


class BodyLimit:
    """Refuse bodies of more than `most` bytes with 413, without reading them to the end.

    Read large bodies, all together, no faster than LARGE_PER_SECOND: parsing one holds Python's interpreter lock, and a
    client that sends one after another would take the lock from the engine at every operation of a step. A body that
    would wait longer than LONGEST_WAIT behind the others gets 429; small bodies never wait.
    Also set `request.state.arrived`, the time of arrival, before the body is read.
    """

    def __init__(self, app: ASGIApp, most: int):
        self.app, self.most = app, most
        self.free_at = 0.0  # when the next large body may be parsed, on the clock of `time.monotonic`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["arrived"] = time.perf_counter()
        header = dict(scope["headers"]).get(b"content-length", b"") if scope["type"] == "http" else b""
        length = int(header) if header.isdigit() else None
        read, turn_has_come, too_large = 0, False, HTTPException(413, f"the body exceeds {self.most} bytes: send less")

        async def limited_receive() -> Message:
            nonlocal read, turn_has_come
            message = await receive()
            read += len(message.get("body", b""))  # a disconnection has none
            if read > self.most:  # the header Content-Length is missing or too small
                raise too_large
            if read > SMALL_BODY and not turn_has_come:
                await self.wait_for_turn(length or self.most)
                turn_has_come = True
            return message

        if length is not None and length > self.most:
            await error_response(Request(scope), too_large)(scope, receive, send)
        else:
            await self.app(scope, limited_receive, send)

    async def wait_for_turn(self, size: int) -> None:
        """Sleep until `size` more bytes may be parsed. Raise HTTPException if others take longer than LONGEST_WAIT."""
        now = time.monotonic()
        if self.free_at - now > LONGEST_WAIT:
            raise HTTPException(429, "too many large bodies at once: try again later", {"Retry-After": "1"})
        self.free_at = max(self.free_at, now) + size / LARGE_PER_SECOND
        await asyncio.sleep(self.free_at - now)

"""The reasons for which a server refuses a request, their answers, and the log line for its operator.

Errors have the shape of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`. The course's own `/generate`
and `/health` have one shape, too, whatever refuses the request: `{"error": message}`.
"""

import json
import logging
import reprlib
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from common.errors import SHORT, InvalidInput, QueueFull, shortened

logger = logging.getLogger("uvicorn.error")  # uvicorn configures it from --log-level
dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps makes a new encoder in each call.


class EngineDead(Exception):
    """The engine has failed or is shutting down, and refuses new requests."""

    status = 503


class BadRequest(InvalidInput):
    """A request that the client must change. param: the field at fault; status: 400, or 404 for an unknown model."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


# ClientDisconnect: the client has left, so only the log shows this answer.
ANSWERED = (InvalidInput, RequestValidationError, QueueFull, EngineDead, HTTPException, ClientDisconnect)
WORDS = {  # FastAPI's, and what to do
    "There was an error parsing the body": "the body cannot be read: send JSON in UTF-8, without numbers of thousands "
    "of digits or values nested thousands deep"
}


class Json(Response):
    """JSON in ASCII. An error may quote a client's half of a surrogate pair, which UTF-8 cannot encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dump(content).encode()


def log_refusal(http, status: int, message: str) -> None:
    """Log one line with the reason: a warning if the server is the cause (429 and 5xx), otherwise information."""
    level = logging.WARNING if status == 429 or status >= 500 else logging.INFO
    line = f"{http.method} {http.url.path}: {status}, {' '.join(message.split())}"
    # The operator's terminal would obey a client's control characters.
    logger.log(level, "%s", "".join(one if one.isprintable() else "\ufffd" for one in line))


def error_object(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(http: Request, error: Exception) -> Response:
    """Log and return the answer to one of the exceptions ANSWERED, in the shape of the path's API."""
    status = getattr(error, "status_code", getattr(error, "status", 400))
    param, code, headers = (getattr(error, name, None) for name in ("param", "code", "headers"))
    if isinstance(error, RequestValidationError):
        message, param = first_error(error)
    elif isinstance(error, HTTPException) and error.detail in ("Not Found", "Method Not Allowed"):  # the router's
        message = advice(http, error)
    else:
        message = WORDS.get(detail := str(getattr(error, "detail", error)), detail)
    log_refusal(http, status, message)
    own = http.url.path in ("/generate", "/health")
    return Json({"error": message} if own else error_object(message, status, param, code), status, headers=headers)


def advice(http: Request, error: HTTPException) -> str:
    """Return one sentence about a path or method that the server does not have, with what to use in its place."""
    path = http.url.path
    if error.status_code == 405:
        return f"{shortened(path)} takes {error.headers['Allow']}, not {http.method}"
    known = http.app.openapi()["paths"]
    near = [one for one in known if path != "/" and (one.endswith(path) or path.endswith(one))]
    return f"there is no {shortened(path)} here: use {', '.join(near or known)}"


def first_error(error: RequestValidationError) -> tuple[str, str | None]:
    """Return one sentence about what is wrong with the body, and the name of the field."""
    # Pydantic tries each type that a field may have. The deepest error belongs to the type that the client meant; if a
    # list is too long, nothing else is wrong with it.
    found = max(error.errors(), key=lambda one: (one["type"] == "too_long", len(one["loc"])))
    # Among the fields, pydantic names the types that it has tried, such as "str" or "list[str]".
    place = [str(part) for part in found["loc"] if part not in ("body", "str") and "[" not in str(part)]
    if isinstance(own := found.get("ctx", {}).get("error"), BadRequest):  # raised by a validator of bodies.py
        return str(own), own.param or (place[0][:80] if place else None)
    if found["type"] == "json_invalid":
        return f"the body is not JSON: {found['ctx']['error']}", None
    if not place:
        return "the body is empty or not a JSON object: send an object", None
    message = found["msg"][:1].lower() + found["msg"][1:]
    said = found["type"] in ("missing", "too_short", "too_long")
    given = "" if said else f", not {reprlib.repr(found['input']):.{SHORT}}"
    return f"{'.'.join(part[:80] for part in place)}: {message}{given}", place[0][:80]

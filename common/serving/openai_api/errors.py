"""Errors as clients of OpenAI's API expect them: `{"error": {"message", "type", "param", "code"}}`."""

import json
import reprlib
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from common.serving.errors import EngineDead, QueueFull, log_refusal


class Json(Response):
    """JSON in ASCII: a client may send half a character, which UTF-8 cannot write, and have it quoted in an error."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


class BadRequest(ValueError):
    """A request that cannot be served as it is. param: the field; status: 400, or 404 for a model there is not."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


def error_object(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(http: Request, error: Exception) -> Response:
    """What a client gets for an exception that a route has raised; an unknown one is raised again."""
    status, param, code, headers = 400, None, None, None
    match error:
        case BadRequest():
            message, status, param, code = str(error), error.status, error.param, error.code
        case RequestValidationError():
            message, param = first_mistake(error)
        case QueueFull():
            message, status, headers = str(error), 429, {"Retry-After": "1"}
        case EngineDead():
            message, status = str(error), 503
        case HTTPException():
            message, status, headers = str(error.detail), error.status_code, error.headers
        case ValueError():
            message = str(error)
        case _:
            raise error
    log_refusal(http, status, message)
    return Json(error_object(message, status, param, code), status, headers=headers)


def first_mistake(error: RequestValidationError) -> tuple[str, str | None]:
    """What is wrong with the body in a sentence, and the name of the field."""
    # Of a field that may be one of several things, each is tried: the deepest mistake is that of the likeliest one.
    mistake = max(error.errors(), key=lambda one: len(one["loc"]))
    if mistake["type"] == "json_invalid":
        return f"the body is not JSON: {mistake['ctx']['error']}", None
    # Pydantic names what it has tried, such as "str" or "list[str]", among the fields.
    place = [str(part) for part in mistake["loc"] if part not in ("body", "str") and "[" not in str(part)]
    if not place:
        return 'the body must be a JSON object, sent with the header "Content-Type: application/json"', None
    message = mistake["msg"][:1].lower() + mistake["msg"][1:]
    given = "" if mistake["type"] == "missing" else f", not {reprlib.repr(mistake['input'])}"
    return f"{'.'.join(part[:80] for part in place)}: {message}{given}", place[0][:80]


class OpenAIRoute(APIRoute):
    """A route whose errors have the API's shape."""

    def get_route_handler(self):
        handler = super().get_route_handler()

        async def handle(http: Request) -> Response:
            try:
                return await handler(http)
            except (ValueError, RequestValidationError, QueueFull, EngineDead, HTTPException) as error:
                return error_response(http, error)

        return handle

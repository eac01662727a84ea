"""What every load generator over HTTP does with one request: time it, read its events, say why it failed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .metrics import RequestRecord

FINISHED = ("stop", "length")  # finish reasons of an answer that is complete
REQUEST_SECONDS = 600.0

Result = TypeVar("Result")


def run(load: Coroutine[None, None, Result]) -> Result:
    """Run on uvloop where there is one: what the client takes of the processor, the server lacks."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(load)
    return uvloop.run(load)


async def record_request(send: Callable[..., Awaitable[None]], *arguments) -> RequestRecord:
    """Record one request, whether it succeeds or not: `send(*arguments, record)` fills the record, or raises."""
    import httpx

    record = RequestRecord(start=time.perf_counter())
    try:
        await send(*arguments, record)
    except (httpx.HTTPError, ValueError) as error:
        record.error, record.end = str(error) or type(error).__name__, time.perf_counter()
    return record


async def events(response) -> AsyncIterator[tuple[float, dict]]:
    """Yield each server-sent event as (moment of arrival, JSON object). Raise ValueError if no `[DONE]` ends them.

    The response is read to its end, beyond `[DONE]`: only then can the connection carry the next request.
    """
    done = False
    async for line in response.aiter_lines():
        if done or not line.startswith("data:"):  # empty lines, and comments that keep a connection alive
            continue
        moment, data = time.perf_counter(), line.removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
        else:
            yield moment, parse_object(data)
    if not done:
        raise ValueError("the stream ended without [DONE]")


def parse_object(data: str) -> dict:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(f"the stream carries an event that is not JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise ValueError(f"the stream carries an event that is no JSON object: {data[:80]!r}")
    return value


async def check_status(response) -> None:
    """Raise ValueError with what the server says, unless it says 200; an answer that is streamed is read for that."""
    if response.status_code == 200:
        return
    await response.aread()
    try:
        message = error_message(response.json())
    except ValueError:
        message = None
    message = message or " ".join(response.text.split())[:200] or response.reason_phrase
    hint = " (the API key is that of --api-key or OPENAI_API_KEY)" if response.status_code == 401 else ""
    raise ValueError(f"HTTP {response.status_code}: {message}{hint}")


def error_message(answer: Any) -> str | None:
    """Return what a JSON answer says went wrong, if it is an error in the form of OpenAI, FastAPI or older vLLM."""
    if not isinstance(answer, dict):
        return None
    error = answer.get("error") or answer.get("detail")
    if error is None and answer.get("object") == "error":
        error = answer
    if isinstance(error, dict):
        error = error.get("message") or json.dumps(error)
    return None if error is None else error if isinstance(error, str) else json.dumps(error)

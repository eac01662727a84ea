"""What every load generator over HTTP does with one request: time it, read its events, say why it failed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TypeVar

from .metrics import RequestRecord

FINISHED = ("stop", "length")  # finish reasons of an answer that is complete
REQUEST_SECONDS = 600.0

Result = TypeVar("Result")


def run(load: Coroutine[None, None, Result]) -> Result:
    """`asyncio.run` on uvloop where there is one: what the client takes of the processor, the server lacks."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(load)
    return uvloop.run(load)


async def record_request(send: Callable[..., Awaitable[None]], *arguments) -> RequestRecord:
    """One request, whatever becomes of it: `send(*arguments, record)` fills the record, or raises."""
    import httpx

    record = RequestRecord(start=time.perf_counter())
    try:
        await send(*arguments, record)
    except (httpx.HTTPError, ValueError) as error:
        record.error, record.end = str(error) or type(error).__name__, time.perf_counter()
    return record


async def events(response) -> AsyncIterator[tuple[float, dict]]:
    """Each server-sent event as (moment of arrival, JSON object); ValueError if no `[DONE]` follows the last.

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

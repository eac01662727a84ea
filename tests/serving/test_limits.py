"""The limits on bodies: large ones, of all clients together, are read at a limited rate, and small ones at once."""

import asyncio

import pytest
from starlette.requests import Request

from common.serving import limits

LARGE = 1 << 20
OWN = LARGE / limits.LARGE_PER_SECOND  # seconds


async def application(scope, receive, send):
    scope["read"] = len(await Request(scope, receive).body())
    assert (await receive())["type"] == "http.disconnect"


def read_body(limit: limits.BodyLimit, size: int, declared: bool = True) -> int:
    """Send a body in parts, and then a disconnection, to an application that waits for both; return what it read."""
    part = {"type": "http.request", "body": b"a" * 1024, "more_body": True}
    messages = iter([*[part] * (size // 1024), {"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive():
        return next(messages)

    scope = {"type": "http", "headers": [(b"content-length", b"%d" % size)] * declared}
    asyncio.run(limit(scope, receive, None))
    return scope["read"]


@pytest.fixture
def limit(monkeypatch) -> limits.BodyLimit:
    """A limit with a `clock` of its own, in seconds, which only sleeping moves."""

    async def sleep(seconds):
        limit.clock += max(0.0, seconds)

    limit = limits.BodyLimit(application, most=LARGE)
    limit.clock = 100.0
    monkeypatch.setattr(limits.time, "monotonic", lambda: limit.clock)
    monkeypatch.setattr(limits.asyncio, "sleep", sleep)
    return limit


@pytest.mark.parametrize("declared", [True, False])
def test_large_bodies_of_all_clients_share_one_rate(limit, declared):
    """Two bodies take as long as one of their total length: a second connection is no way around the limit."""
    assert read_body(limit, limits.SMALL_BODY, declared) == limits.SMALL_BODY and limit.clock == 100
    assert [read_body(limit, LARGE, declared) for _ in "ab"] == [LARGE] * 2 and limit.clock == 100 + 2 * OWN
    limit.clock += 50  # time without bodies is not credited
    assert read_body(limit, LARGE, declared) == LARGE and limit.clock == 150 + 3 * OWN


def test_a_large_body_that_would_wait_too_long_is_refused(monkeypatch, limit):
    """So the wait is bounded, however many large bodies one client sends at once."""

    async def queue(seconds):  # the others arrive before the first one's turn has come
        waits.append(seconds)

    async def at_once() -> list:
        return await asyncio.gather(*(limit.wait_for_turn(LARGE) for _ in range(100)), return_exceptions=True)

    waits = []
    monkeypatch.setattr(limits.asyncio, "sleep", queue)
    refused = [error for error in asyncio.run(at_once()) if error]
    assert {(error.status_code, *error.headers) for error in refused} == {(429, "Retry-After")}
    assert limits.LONGEST_WAIT < max(waits) <= limits.LONGEST_WAIT + OWN and len(waits) + len(refused) == 100
    assert read_body(limit, limits.SMALL_BODY) == limits.SMALL_BODY, "small bodies do not wait"
    limit.clock += OWN
    assert read_body(limit, LARGE) == LARGE

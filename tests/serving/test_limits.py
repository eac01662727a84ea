"""The limits on bodies: large ones, of all clients together, are read at a limited rate, and small ones at once."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from common.serving import limits


def read_body(limit: limits.BodyLimit, parts: list[bytes], declared: bool = True) -> int:
    """Send a body, and then a disconnection, to an application that waits for both; return the bytes of the body."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})
    read = []

    async def receive():
        return messages.pop(0)

    async def application(scope, receive, send):
        more = True
        while more:
            message = await receive()
            read.append(len(message["body"]))
            more = message["more_body"]
        assert (await receive())["type"] == "http.disconnect"

    limit.app = application
    headers = [(b"content-length", str(sum(map(len, parts))).encode())] if declared else []
    asyncio.run(limit({"type": "http", "headers": headers}, receive, None))
    return sum(read)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time in seconds, which only sleeping moves."""
    clock = [100.0]

    async def sleep(seconds):
        clock[0] += max(0.0, seconds)

    monkeypatch.setattr(limits.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(limits.asyncio, "sleep", sleep)
    return clock


@pytest.mark.parametrize("declared", [True, False])
def test_large_bodies_of_all_clients_share_one_rate(clock, declared):
    """Two bodies take as long as one of their total length: a second connection is no way around the limit."""
    limit = limits.BodyLimit(None, most=1 << 20)
    assert read_body(limit, [b"a" * (32 << 10)] * 2, declared) == limits.SMALL_BODY and clock == [100.0]
    for _ in range(2):
        assert read_body(limit, [b"a" * (32 << 10)] * 32, declared) == 1 << 20
    assert clock[0] - 100 == (2 << 20) / limits.LARGE_PER_SECOND
    clock[0] += 50  # time without bodies is not credited
    assert limit.free_at < clock[0] and read_body(limit, [b"a" * (1 << 20)], declared) == 1 << 20
    assert clock[0] - 150 == (3 << 20) / limits.LARGE_PER_SECOND


def test_a_large_body_that_would_wait_too_long_is_refused(monkeypatch, clock):
    """So the wait is bounded, however many large bodies one client sends at once."""

    async def queue(seconds):  # the others arrive before the first one's turn has come
        waits.append(seconds)

    waits: list[float] = []
    monkeypatch.setattr(limits.asyncio, "sleep", queue)
    limit, body = limits.BodyLimit(None, most=1 << 20), [b"a" * (64 << 10)] * 16
    with pytest.raises(HTTPException) as refused:
        for _ in range(100):
            read_body(limit, body)
    assert refused.value.status_code == 429 and refused.value.headers["Retry-After"]
    own = (1 << 20) / limits.LARGE_PER_SECOND
    assert limits.LONGEST_WAIT < max(waits) <= limits.LONGEST_WAIT + own and len(waits) < 100
    assert read_body(limit, [b"a" * limits.SMALL_BODY]) == limits.SMALL_BODY, "small bodies do not wait"
    clock[0] += own
    assert read_body(limit, body) == 1 << 20

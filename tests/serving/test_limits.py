"""The limits on bodies: large ones, of all clients together, are read at a limited rate, and small ones at once."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from common.serving import limits


def read_body(limit: limits.BodyLimit, parts: list[bytes]) -> int:
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
    asyncio.run(limit({"type": "http", "headers": []}, receive, None))
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


def test_large_bodies_of_all_clients_share_one_rate(clock):
    """Two bodies take as long as one of their total length: a second connection is no way around the limit."""
    limit = limits.BodyLimit(None, most=1 << 20)
    assert read_body(limit, [b"a" * (32 << 10)] * 2) == limits.SMALL_BODY and clock == [100.0]
    for _ in range(2):
        assert read_body(limit, [b"a" * (32 << 10)] * 32) == 1 << 20
    large = 2 * ((1 << 20) - limits.SMALL_BODY)
    assert clock[0] - 100 == large / limits.LARGE_PER_SECOND
    clock[0] += 50  # time without bodies is not credited
    assert limit.free_at < clock[0] and read_body(limit, [b"a" * (1 << 20)]) == 1 << 20
    assert clock[0] - 150 == (large + (1 << 20)) / limits.LARGE_PER_SECOND


def test_a_large_body_that_would_wait_too_long_is_refused(clock):
    """So the wait is bounded, however many large bodies one client sends at once."""
    limit = limits.BodyLimit(None, most=1 << 20)
    limit.free_at = clock[0] + limits.LONGEST_WAIT + 1
    with pytest.raises(HTTPException) as refused:
        read_body(limit, [b"a" * (1 << 20)])
    assert refused.value.status_code == 429 and refused.value.headers["Retry-After"]
    assert read_body(limit, [b"a" * limits.SMALL_BODY]) == limits.SMALL_BODY and clock == [100.0]
    clock[0] += 1
    assert read_body(limit, [b"a" * (128 << 10)] * 8) == 1 << 20, "the wait for its later parts does not refuse it"

"""One table of what servers refuse, and how: refused.toml."""

import json
from pathlib import Path

import httpx
import pytest

from common.errors import SHORT
from common.toml import read_toml

TABLE = read_toml(Path(__file__).with_suffix(".toml"))
TOOL = {"type": "function", "function": {"name": "a" * 60}}
STANDS_FOR = {
    "LONG": "x" * 50_000,
    "OPEN": "[" * 100_000,
    "FULL": json.dumps([5] * 4000),
    "PROMPTS": json.dumps(["a"] * 100),
    "MANY": json.dumps(["a"] * 3000),
    "TEXT": "a b " * 5000,
    "HUGE": "a " * 30_000,  # more characters than 4,096 of the longest tokens have: it is not tokenized
    "TOOLS": json.dumps([TOOL] * 200),
    "TOOL": json.dumps(TOOL),
}
CONTEXT = "This model's maximum context length is 4096 tokens. However,"


def refusals(*places: str):
    """Run a test for all bodies of these methods and paths, as `place` and `row`."""
    rows = [(place, row) for place in places for row in TABLE[place]["bodies"]]
    return pytest.mark.parametrize(("place", "row"), rows, ids=lambda value: str(value)[:60])


def assert_refused(client: httpx.Client, place: str, row: list[str]) -> None:
    """The answer is one short sentence, which quotes little of what the client sent."""
    (method, path), (body, says, *param) = place.split(), row
    if body.startswith('"'):
        body = f"{{{TABLE[place]['good']}, {body}}}"  # Of two fields with one name the last counts.
    for word, text in STANDS_FOR.items():
        body = body.replace(word, text)
    answer = client.request(method, path, content=body.encode().replace(b"BYTE", b"\xff"))
    assert answer.status_code == TABLE[place]["status"], answer.text
    assert answer.json().keys() == {"error"}
    error = answer.json()["error"]
    if path == "/generate":
        error = {"message": error, "param": None, "code": None, "type": "invalid_request_error"}
    message = error["message"]
    assert says.replace("CONTEXT", CONTEXT) in message and 0 < len(message) < 500, message
    assert "x" * (SHORT + 1) not in message and error["param"] == (param[0] if param else None), error
    # By this code clients notice that they have to shorten a history.
    assert error["code"] == ("context_length_exceeded" if CONTEXT in message and path != "/generate" else None)
    assert error["type"] == ("not_found_error" if answer.status_code == 404 else "invalid_request_error")

"""Write large answers in slices, so that other clients' streams go on.

A prompt of 4,096 tokens with 20 alternatives for each makes an answer of two megabytes. Writing it takes a second of
Python, in which no stream would move and the engine would wait for the interpreter. So write one slice at a time, with
a pause after each that leaves most of the time to other work.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from common.sampling import TokenLogprobs

SLICE = 32  # tokens
PAUSE = 0.002  # seconds, several times as long as a slice takes
dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps makes one in each call


async def sliced_logprobs(
    answers, index: int, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
) -> dict[str, list]:
    """Return `answers.logprobs` of any number of tokens, computed in slices."""
    lists = answers.logprobs(index, token_ids[:SLICE], entries[:SLICE])
    for start in range(SLICE, len(token_ids), SLICE):
        await asyncio.sleep(PAUSE)
        more = answers.logprobs(index, token_ids[start : start + SLICE], entries[start : start + SLICE])
        for name, values in more.items():
            lists[name] += values
    return lists


async def sliced_json(answer: dict[str, Any]) -> str:
    """Return the JSON of an answer or a chunk, whose choices may have any number of log-probabilities."""
    choices = []
    for choice in answer["choices"]:
        fields = {name: dump(value) for name, value in choice.items() if name != "logprobs"}
        fields["logprobs"] = await _lists(choice["logprobs"])
        choices.append(_object(fields))
    fields = {name: dump(value) for name, value in answer.items() if name != "choices"}
    return _object(fields | {"choices": f"[{','.join(choices)}]"})


async def _lists(logprobs: dict[str, list] | None) -> str:
    if logprobs is None:
        return "null"
    fields = {}
    for name, values in logprobs.items():
        slices = [dump(values[:SLICE])[1:-1]]
        for start in range(SLICE, len(values), SLICE):
            await asyncio.sleep(PAUSE)
            slices.append(dump(values[start : start + SLICE])[1:-1])
        fields[name] = f"[{','.join(slices)}]"
    return _object(fields)


def _object(fields: dict[str, str]) -> str:
    return "{" + ",".join(f"{dump(name)}:{value}" for name, value in fields.items()) + "}"

"""The course's own `POST /generate`: parse its JSON body, and write a finished request as JSON.

    {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}

The body may have every field of `SamplingParams`. This file imports no web framework, so stages 01 and 02 (Flask) and
the later ones (FastAPI) give the same answers.
"""

import json
from dataclasses import dataclass, fields
from typing import Any

from common.errors import InvalidInput, shortened
from common.request import Request
from common.sampling import SamplingParams

PARAMETERS = {field.name for field in fields(SamplingParams)} - {"ending_token_ids", "structure", "tenant"}


@dataclass(frozen=True)
class GenerateBody:
    """What a body of `/generate` asks for."""

    prompt: str | list[int]
    params: SamplingParams
    stream: bool = False


def parse_generate_body(data: bytes) -> GenerateBody:
    """Parse a body. Raise InvalidInput, one sentence, for a malformed, missing, mistyped or unknown field."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidInput('the body must be a JSON object such as {"prompt": "The capital of France is"}')
    unknown = body.keys() - PARAMETERS - {"prompt", "stream"}
    if unknown:
        known = ", ".join(["prompt", "stream", *sorted(PARAMETERS)])
        raise InvalidInput(f"unknown field {shortened(min(unknown))}; known fields are {known}")
    if not isinstance(body.get("prompt"), (str, list)):
        raise InvalidInput("the body needs a prompt: a string, or a list of token ids")
    if not isinstance(body.get("stream", False), bool):
        raise InvalidInput("stream must be true or false")
    params = SamplingParams(**{name: value for name, value in body.items() if name in PARAMETERS})
    return GenerateBody(body["prompt"], params, body.get("stream", False))


def completion_json(request: Request) -> dict[str, Any]:
    """Return the answer to a finished request; times in seconds."""
    timings = request.timings
    answer = {
        "id": request.request_id,
        "text": request.text,
        "finish_reason": request.finish_reason,
        "stop_reason": request.stop_reason,
        "prompt_tokens": len(request.prompt_token_ids),
        "generated_tokens": len(request.token_ids),
        "timings": {
            "time_to_first_token": timings.time_to_first_token,
            "time_per_output_token": timings.time_per_output_token,
            "end_to_end_latency": timings.end_to_end_latency,
        },
    }
    if request.params.logprobs is not None:
        answer["logprobs"] = [
            {"token_id": token_id, "logprob": entry.logprob, "top": entry.top}
            for token_id, entry in zip(request.token_ids, request.logprobs, strict=True)
        ]
    return answer

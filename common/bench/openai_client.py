"""A client of any server that speaks OpenAI's API: one request, or one conversation, timed.

    async with Connections(url, api_key) as connections:
        records = await converse(connections, Target("Qwen/Qwen3-0.6B"), [Job("What is paged attention?", 64)])

Answers are streamed, and token counts are those of the server's `usage`: a chunk may carry several tokens, and the
tokenizer need not be ours. A chunk counts as arrived when it carries text. (`vllm bench serve` lets its clock stop at
the first chunk whether it carries text or not; some servers open a chat with an empty one.) The answer ends with its
last chunk; the time until the usage, which may follow in a message of its own, does not count.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from .http_client import FINISHED, REQUEST_SECONDS, check_status, error_message, events, record_request
from .metrics import RequestRecord
from .workloads import Job

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
IDLE_SECONDS = 2.0  # unused connections are closed here, before a server does so while a request is on its way
NOT_SENT = "not sent, because an earlier turn of its conversation failed"


@dataclass(frozen=True)
class Target:
    """Which of a server's models is asked, and how."""

    model: str
    endpoint: str = "completions"

    def body(self, said: Sequence[str | list[int]], job: Job) -> dict[str, Any]:
        """Return the request's JSON. `said`: what user and model have said by turns; the user's words come last."""
        if self.endpoint == "chat":
            roles = ("user", "assistant")
            asked = {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]}
        else:
            asked = {"prompt": said[0] if len(said) == 1 else "\n".join(said)}
        body = {"model": self.model, **asked, "max_tokens": job.max_tokens, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | {"ignore_eos": True} if job.ignore_eos else body  # no field of OpenAI's, but of vLLM's


class Connections:
    """Connections to the server at `url`, which may end in /v1 or not: one for each request that is under way.

    A connection is kept for the next request. httpx would keep them, too, but looks through all of them for each
    request: with a hundred that takes milliseconds, which would count as the server's.
    """

    def __init__(self, url: str, api_key: str | None = None):
        import httpx

        self.settings = {
            "base_url": url.rstrip("/").removesuffix("/v1"),
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "limits": httpx.Limits(keepalive_expiry=IDLE_SECONDS),
            "timeout": REQUEST_SECONDS,
            "verify": httpx.create_ssl_context(),  # once, since it reads all certificates of the machine
        }
        self.idle: list = []

    @asynccontextmanager
    async def one(self):
        """Give an httpx.AsyncClient that no other request uses while the block runs."""
        import httpx

        http = self.idle.pop() if self.idle else httpx.AsyncClient(**self.settings)
        try:
            yield http
        finally:
            self.idle.append(http)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        for http in self.idle:
            await http.aclose()


async def served_models(connections: Connections) -> list[str]:
    """Return the names that GET /v1/models lists, none if there is no list. Raise ValueError for any other answer."""
    async with connections.one() as http:
        response = await http.get("/v1/models")
    if response.status_code == 404:
        return []
    await check_status(response)
    try:
        return [model["id"] for model in response.json()["data"]]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError("GET /v1/models does not answer as OpenAI's API does") from error


async def converse(
    connections: Connections,
    target: Target,
    conversation: Sequence[Job],
    done: Callable[[RequestRecord], None] = lambda record: None,
) -> list[RequestRecord]:
    """Return one record for each turn. A turn is sent when the one before is answered, with all that was said so far.

    done: is called with each record as soon as there is one.
    """
    said: list[str | list[int]] = []
    records: list[RequestRecord] = []
    async with connections.one() as http:
        for job in conversation:
            if records and not records[-1].success:
                record = RequestRecord(start=time.perf_counter(), error=NOT_SENT)
            else:
                said.append(job.prompt)
                record = await record_request(send, http, target, target.body(said, job))
                said.append(record.text)
            records.append(record)
            done(record)
    return records


async def send(http, target: Target, body: dict[str, Any], record: RequestRecord) -> None:
    """Send one request and fill the record as the answer comes. Raise ValueError that says why it is no answer."""
    usage, finish_reason, pieces = None, None, []
    async with http.stream("POST", PATHS[target.endpoint], json=body) as response:
        await check_status(response)
        async for moment, event in events(response):
            if (message := error_message(event)) is not None:
                raise ValueError(message)
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                said = choice.get("delta") or choice  # chat, or completions
                text = said.get("content") or said.get("text") or ""
                if text or said.get("reasoning") or said.get("reasoning_content"):  # a model may think before it speaks
                    record.chunks.append(moment)
                pieces.append(text)
                finish_reason = choice.get("finish_reason") or finish_reason
                record.end = moment
    if finish_reason not in FINISHED:
        raise ValueError(f"the answer ended with finish_reason {finish_reason!r}")
    try:
        record.prompt_tokens, record.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    except (TypeError, KeyError) as error:
        raise ValueError("the server sent no usage, without which tokens cannot be counted") from error
    record.chunks = record.chunks or [record.end]  # an answer without text
    record.text = "".join(pieces)

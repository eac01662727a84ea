"""A client of a stage's server, or of any that speaks OpenAI's API: one request, or one conversation, timed.

    async with Connections(url, api_key) as connections:
        records = await converse(connections, Target("Qwen/Qwen3-0.6B"), [Job("What is paged attention?", 64)])

Token counts are those of the server: a chunk may carry several tokens, and the tokenizer need not be ours. A chunk
counts as arrived when it carries text. (`vllm bench serve` lets its clock stop at the first chunk whether it carries
text or not; some servers open a chat with an empty one.) The answer ends with its last chunk; the time until the usage,
which may follow in a message of its own, does not count.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from .metrics import RequestRecord
from .workloads import Job

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}
FINISHED = ("stop", "length")  # finish reasons of an answer that is complete
REQUEST_SECONDS = 600.0
IDLE_SECONDS = 2.0  # unused connections are closed here, before a server does so while a request is on its way
NOT_SENT = "not sent, because an earlier turn of its conversation failed"

Result = TypeVar("Result")


def run(load: Coroutine[None, None, Result]) -> Result:
    """Run on uvloop where there is one: what the client takes of the processor, the server lacks."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.run(load)
    return uvloop.run(load)


@dataclass(frozen=True)
class Target:
    """Which of a server's models is asked, and how: by OpenAI's API, or by the course's own POST /generate.

    stream: False: ask for the whole answer at once. Its first text comes with its last, and shows nothing of TPOT.
    """

    model: str = ""  # the only one, of /generate
    endpoint: str = "completions"
    stream: bool = True

    def body(self, said: Sequence[str | list[int]], job: Job) -> dict[str, Any]:
        """Return the request's JSON. `said`: what user and model have said by turns; the user's words come last."""
        if self.endpoint == "chat":
            roles = ("user", "assistant")
            asked = {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]}
        else:
            asked = {"prompt": said[0] if len(said) == 1 else "\n".join(said)}
        body = asked | {"max_tokens": job.max_tokens, "temperature": 0, **job.sampling}
        if job.ignore_eos:
            body["ignore_eos"] = True  # no field of OpenAI's, but of vLLM's
        if self.stream:
            body["stream"] = True
        if self.endpoint != "generate":
            body |= {"model": self.model, "stream_options": {"include_usage": True}}
        return body


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

    async def get(self, path: str) -> Any:
        """Return the answer to GET, whatever its status."""
        async with self.one() as http:
            return await http.get(path)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        for http in self.idle:
            await http.aclose()


async def served_models(connections: Connections) -> list[dict[str, Any]]:
    """Return what GET /v1/models lists, nothing if there is no list. Raise ValueError for any other answer."""
    response = await connections.get("/v1/models")
    if response.status_code == 404:
        return []
    await check_status(response)
    try:
        models = response.json()["data"]
        _ = [model["id"] for model in models]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError("GET /v1/models does not answer as OpenAI's API does") from error
    return models


# ---- Asking ----


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
            record = RequestRecord(start=time.perf_counter())
            if records and not records[-1].success:
                record.error = NOT_SENT
            else:
                said.append(job.prompt)
                await ask(http, target, target.body(said, job), record)
                said.append(record.text)
            records.append(record)
            done(record)
    return records


async def ask(http, target: Target, body: dict[str, Any], record: RequestRecord) -> None:
    """Send one request, and fill the record, whether it succeeds or not."""
    import httpx

    try:
        async with http.stream("POST", PATHS[target.endpoint], json=body) as response:
            await check_status(response)
            await take_answer(events(response) if target.stream else whole(response), record)
    except (httpx.HTTPError, ValueError) as error:
        record.error, record.end = str(error) or type(error).__name__, time.perf_counter()


async def take_answer(answer: AsyncIterator[tuple[float, dict]], record: RequestRecord) -> None:
    """Fill the record as the answer comes. Raise ValueError that says why it is none.

    An object of OpenAI's has `choices` and at last a `usage`; one of /generate is choice and usage at once.
    """
    usage, finish_reason, pieces = None, None, []
    async for moment, event in answer:
        if (message := error_message(event)) is not None:
            raise ValueError(message)
        usage = event.get("usage") or (event if "generated_tokens" in event else usage)
        for choice in event.get("choices", [event]) or ():
            said = choice.get("delta") or choice  # chat, or completions
            text = said.get("content") or said.get("text") or ""
            if text or said.get("reasoning") or said.get("reasoning_content"):  # a model may think before it speaks
                record.chunks.append(moment)
            pieces.append(text)
            record.token_ids += choice.get("token_ids") or ()
            finish_reason = choice.get("finish_reason") or finish_reason
            record.end = moment
    if finish_reason not in FINISHED:
        raise ValueError(f"the answer ended with finish_reason {finish_reason!r}")
    try:
        record.prompt_tokens = usage["prompt_tokens"]
        record.output_tokens = usage["completion_tokens" if "completion_tokens" in usage else "generated_tokens"]
    except (TypeError, KeyError) as error:
        raise ValueError("the server sent no usage, without which tokens cannot be counted") from error
    record.chunks = record.chunks or [record.end]  # an answer without text
    record.text = "".join(pieces)


# ---- Reading ----


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


async def whole(response) -> AsyncIterator[tuple[float, dict]]:
    """Yield an answer that is not streamed."""
    data = await response.aread()
    yield time.perf_counter(), parse_object(data.decode())


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

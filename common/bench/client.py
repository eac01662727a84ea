"""A client of a stage's server, or of any that speaks OpenAI's API; and when its requests are sent.

    result = generate_load("http://127.0.0.1:8000", jobs, Target("Qwen/Qwen3-0.6B"), concurrency=8)
    print(result.throughput, result.figures()["ttft"]["p99"])

In a closed loop N clients each send their next request when their last one is answered: N are always under way, and a
slow server is asked less often. It finds what a server can do at most. In an open loop requests arrive at a rate and do
not wait for answers, as users do not: above the server's capacity the queue grows for as long as the run lasts. Gaps
between users who know nothing of each other are exponentially distributed: a Poisson process.

Token counts are those of the server: a chunk may carry several tokens, and the tokenizer need not be ours. A chunk
counts as arrived when it carries text. (`vllm bench serve` lets its clock stop at the first chunk whether it carries
text or not; some servers open a chat with an empty one.) The answer ends with its last chunk; the time until the usage,
which may follow in a message of its own, does not count.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any, TypeVar

from common.errors import InvalidInput

from .metrics import LoadResult, RequestRecord
from .workloads import Job

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}
FINISHED = ("stop", "length")  # finish reasons of an answer that is complete
REQUEST_SECONDS = 600.0
IDLE_SECONDS = 2.0  # The client closes unused connections first: a server might close one as a request arrives.

Result = TypeVar("Result")
Connect = Callable[[], AbstractAsyncContextManager]  # makes an httpx.AsyncClient
Send = Callable[[Any, Job], Awaitable[RequestRecord]]  # sends a job through such a client


@dataclass(frozen=True)
class Target:
    """Which of a server's models is asked, and how: by OpenAI's API, or by the course's own POST /generate.

    stream: False: ask for the whole answer at once. Its first text comes with its last, and shows nothing of TPOT.
    """

    model: str = ""  # /generate needs no name: it has one model.
    endpoint: str = "completions"
    stream: bool = True
    api_key: str | None = None

    def body(self, job: Job) -> dict[str, Any]:
        """Return the request's JSON."""
        is_chat = self.endpoint == "chat"
        body = {"messages": [{"role": "user", "content": job.prompt}]} if is_chat else {"prompt": job.prompt}
        body |= {"max_tokens": job.max_tokens, "temperature": 0, **job.sampling}
        if job.ignore_eos:
            body["ignore_eos"] = True  # vLLM has this field, OpenAI has not.
        if self.stream:
            body["stream"] = True
        if self.endpoint != "generate":
            body["model"] = self.model
            if self.stream:
                body["stream_options"] = {"include_usage": True}
        return body


def run(load: Coroutine[None, None, Result]) -> Result:
    """Run on uvloop where there is one: the client takes processor time from the server."""
    try:
        import uvloop
    except ImportError:  # Windows has no uvloop.
        return asyncio.run(load)
    return uvloop.run(load)


def generate_load(
    url: str,
    jobs: Sequence[Job],
    target: Target,
    *,
    concurrency: int = 0,
    rate: float = 0.0,
    seed: int | str = 0,
    answered: Callable[[], object] = lambda: None,
) -> LoadResult:
    """Send all jobs, `concurrency` at a time, or as Poisson arrivals, `rate` a second; call `answered` after each.

    Return one record for each job; failed ones say why in `error`.
    """
    connect = connections(url, target.api_key)

    async def send(http, job: Job) -> RequestRecord:
        record = await ask(http, target, job)
        answered()
        return record

    if rate:
        return run(open_loop(jobs, poisson_arrivals(len(jobs), rate, seed), connect, send))
    return run(closed_loop(jobs, concurrency, connect, send))


# ---- When requests are sent ----


async def closed_loop(jobs: Iterable[Job], clients: int, connect: Connect, send: Send) -> LoadResult:
    """Send all of the jobs, by `clients` clients at once."""
    waiting = iter(jobs)  # one for all clients: each takes the next job that is left

    async def client() -> list[RequestRecord]:
        async with connect() as http:
            return [await send(http, job) for job in waiting]

    return await timed(client() for _ in range(clients))


async def open_loop(jobs: Sequence[Job], moments: Sequence[float], connect: Connect, send: Send) -> LoadResult:
    """Send each job at its moment, in seconds from now, however many are still under way."""
    start, idle = time.perf_counter(), []
    async with AsyncExitStack() as stack:

        async def arrive(moment: float, job: Job) -> list[RequestRecord]:
            await asyncio.sleep(start + moment - time.perf_counter())
            http = idle.pop() if idle else await stack.enter_async_context(connect())
            record = await send(http, job)
            idle.append(http)
            return [record]

        return await timed(arrive(*pair) for pair in zip(moments, jobs, strict=True))


async def timed(clients: Iterable[Awaitable[list[RequestRecord]]]) -> LoadResult:
    """Run all of them at once."""
    wall, processor = time.perf_counter(), time.process_time()
    answered = await asyncio.gather(*clients)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return LoadResult([record for records in answered for record in records], wall, processor)


def poisson_arrivals(count: int, rate: float, seed: int | str) -> list[float]:
    """Return the moments of `count` arrivals, in seconds, `rate` of them a second on average."""
    rng = Random(f"arrivals/{seed}")
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


# ---- One request ----


def connections(url: str, api_key: str | None = None) -> Connect:
    """Return a function that opens a connection to the server at `url`, which may end in /v1 or not.

    Each request under way has an httpx.AsyncClient of its own. One could hold all connections, but looks through all of
    them for each request: with a hundred that takes milliseconds, which would count as the server's.
    """
    import httpx

    return partial(
        httpx.AsyncClient,
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
        timeout=REQUEST_SECONDS,
        verify=httpx.create_ssl_context(),  # Made once: it reads all certificates of the machine.
    )


def find_target(url: str, first: Job, wanted: Target) -> Target:
    """Return the model to ask, the first one listed unless it is named, once it has answered a request.

    Raise InvalidInput that says why it has not.
    """
    import httpx

    async def find() -> Target:
        async with connections(url, wanted.api_key)() as http:
            response = await http.get("/v1/models")
            models = [wanted.model] if wanted.model else []
            if response.status_code != 404:  # some servers have no list
                await check_status(response)
                models = [each["id"] for each in response.json()["data"]]
            if not models:
                raise InvalidInput(f"{url} does not list its models: name one with --model, if the URL is right")
            target = replace(wanted, model=wanted.model or models[0])
            if target.model not in models:
                raise InvalidInput(f"the server has no model {target.model!r}; it serves {', '.join(models)}")
            record = await ask(http, target, first)
            if not record.success:
                raise InvalidInput(f"the first request failed: {record.error}")
            return target

    try:
        return run(find())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidInput(f"no server answers at {url}: {str(error) or type(error).__name__}") from error
    except (json.JSONDecodeError, LookupError, TypeError) as error:
        raise InvalidInput("GET /v1/models does not answer as OpenAI's API does") from error


async def ask(http, target: Target, job: Job) -> RequestRecord:
    """Send one request; return its record, whether it succeeds or not."""
    import httpx

    record = RequestRecord(start=time.perf_counter())
    try:
        try:
            await exchange(http, target, job, record)
        except httpx.RemoteProtocolError as error:
            if "without sending a response" not in str(error):
                raise
            await exchange(http, target, job, record)  # the server had closed an idle connection (RFC 9112, 9.3.1)
    except (httpx.HTTPError, InvalidInput) as error:
        record.error, record.end = str(error) or type(error).__name__, time.perf_counter()
    return record


async def exchange(http, target: Target, job: Job, record: RequestRecord) -> None:
    """Send one request and fill its record. Raise InvalidInput or httpx.HTTPError that says why there is no answer."""
    async with http.stream("POST", PATHS[target.endpoint], json=target.body(job)) as response:
        await check_status(response)
        await take_answer(events(response, target.stream), record)


# ---- What comes back ----


async def take_answer(answer: AsyncIterator[tuple[float, dict]], record: RequestRecord) -> None:
    """Fill the record as the answer comes. Raise InvalidInput that says why it is none.

    An object of OpenAI's has `choices` and at last a `usage`; one of /generate is choice and usage at once.
    """
    usage, finish_reason = None, None
    async for moment, event in answer:
        if (message := error_message(event)) is not None:
            raise InvalidInput(message)
        usage = event.get("usage") or (event if "generated_tokens" in event else usage)
        for choice in event.get("choices", [event]) or ():
            said = choice.get("delta") or choice.get("message") or choice  # Completions have neither.
            if text := "".join(said.get(key) or "" for key in ("content", "text", "reasoning", "reasoning_content")):
                record.chunks.append(moment)
                record.text += text
            finish_reason = choice.get("finish_reason") or finish_reason
            record.end = moment
    if finish_reason not in FINISHED:
        raise InvalidInput(f"the answer ended with finish_reason {finish_reason!r}")
    try:
        record.prompt_tokens = usage["prompt_tokens"]
        record.output_tokens = usage["completion_tokens" if "completion_tokens" in usage else "generated_tokens"]
    except (TypeError, KeyError) as error:
        raise InvalidInput("the server sent no usage, without which tokens cannot be counted") from error
    record.chunks = record.chunks or [record.end]  # an answer without text


async def events(response, stream: bool) -> AsyncIterator[tuple[float, dict]]:
    """Yield each server-sent event as (moment of arrival, JSON object), or the one object of an unstreamed answer.

    Raise InvalidInput if no `[DONE]` ends the stream. The response is read to its end, beyond `[DONE]`: only then can
    the connection carry the next request.
    """
    if not stream:
        data = await response.aread()
        yield time.perf_counter(), parse_object(data.decode())
        return
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
        raise InvalidInput("the stream ended without [DONE]")


def parse_object(data: str) -> dict:
    with suppress(ValueError):
        if isinstance(value := json.loads(data), dict):
            return value
    raise InvalidInput(f"the stream carries an event that is no JSON object: {data[:80]!r}")


async def check_status(response) -> None:
    """Raise InvalidInput with what the server says, unless it says 200; an answer that is streamed is read for that."""
    if response.status_code == 200:
        return
    await response.aread()
    message = None
    with suppress(ValueError):
        message = error_message(response.json())
    message = message or " ".join(response.text.split())[:200] or response.reason_phrase
    hint = " (the API key is that of --api-key or OPENAI_API_KEY)" if response.status_code == 401 else ""
    raise InvalidInput(f"HTTP {response.status_code}: {message}{hint}")


def error_message(answer: Any) -> str | None:
    """Return what a JSON answer says went wrong, if it is an error in the form of OpenAI or FastAPI."""
    error = isinstance(answer, dict) and (answer.get("error") or answer.get("detail"))
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error) if error else None

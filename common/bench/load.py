"""A load generator for `POST /generate`, and a server of the course to point it at.

    with running_server("03_streaming", settings) as url:
        result = generate_load(url, jobs, concurrency=8, stream=True)
    print(result.throughput, result.summary()["ttft"]["p99"])

The loop is closed (see arrivals.py). For servers that speak OpenAI's API there is serve.py.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.stages import stage_folder

from .arrivals import closed_loop
from .http_client import FINISHED, REQUEST_SECONDS, check_status, events, record_request, run
from .metrics import LoadResult, RequestRecord
from .settings import Settings
from .workloads import Job

START_SECONDS = 600.0  # a large model takes minutes to load
STOP_SECONDS = 10.0


def generate_load(url: str, jobs: Sequence[Job], *, concurrency: int, stream: bool) -> LoadResult:
    """Send all jobs, `concurrency` at a time, and return one record for each; failed ones say why in `error`."""
    return run(send_all(url, jobs, concurrency, stream))


async def send_all(url: str, jobs: Sequence[Job], concurrency: int, stream: bool) -> LoadResult:
    import httpx

    send = send_streaming if stream else send_plain
    # A connection for each request: httpx would look through all the idle ones whenever a request begins or ends.
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=REQUEST_SECONDS) as http:

        async def serve(job: Job) -> list[RequestRecord]:
            return [await record_request(send, http, job)]

        return await closed_loop(jobs, concurrency, serve)


async def send_plain(http, job: Job, record: RequestRecord) -> None:
    """Ask for the whole answer at once: its first text comes with its last, and of TPOT there is nothing to see."""
    response = await http.post("/generate", json=job.body())
    record.end = time.perf_counter()
    record.chunks.append(record.end)
    await check_status(response)
    take_result(record, response.json())


async def send_streaming(http, job: Job, record: RequestRecord) -> None:
    """Read server-sent events, the last of them `[DONE]`."""
    event: dict = {}
    async with http.stream("POST", "/generate", json=job.body() | {"stream": True}) as response:
        await check_status(response)
        async for moment, event in events(response):
            record.end = moment
            if event.get("text"):
                record.chunks.append(moment)
    record.chunks = record.chunks or [record.end]  # an answer without text
    take_result(record, event)


def take_result(record: RequestRecord, answer: dict) -> None:
    """Count the tokens of a finished answer, given as the server's JSON."""
    if answer.get("finish_reason") not in FINISHED:
        raise ValueError(f"the answer ended with {answer.get('finish_reason')!r}")
    record.prompt_tokens, record.output_tokens = answer["prompt_tokens"], answer["generated_tokens"]


@contextmanager
def running_server(stage: str, settings: Settings, *options: str) -> Iterator[str]:
    """Run a stage's server in a process of its own for as long as the block runs; give its URL.

    RuntimeError with the last lines that the server printed if it does not come up.
    """
    port = free_port()
    main = stage_folder(stage) / "main.py"
    command = [sys.executable, str(main), "--serve", "--port", str(port), *settings.arguments(), *options]
    with tempfile.TemporaryFile("w+", errors="replace") as log:  # not a pipe, which would fill up and stop the server
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_until_healthy(server, url):
                log.seek(0)
                raise RuntimeError("".join(log.readlines()[-15:]) + f"The server of {stage} did not start.")
            yield url
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait_until_healthy(server: subprocess.Popen, url: str) -> bool:
    """Return True once GET /health answers; False if the process ends first, or takes too long."""
    import httpx

    give_up = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < give_up:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return True
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.1)
    return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

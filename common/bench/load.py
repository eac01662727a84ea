"""A server of the course, and many clients of it.

    with running_server("03_streaming", settings) as url:
        result = generate_load(url, jobs, Target(endpoint="generate"), concurrency=8)
    print(result.throughput, result.summary()["ttft"]["p99"])

The loop is closed (see client.py). For a server that runs already there is serve.py.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from common.serving.background import free_port
from common.stages import stage_folder

from .client import Connections, Target, ask, closed_loop, run
from .metrics import LoadResult
from .settings import Settings
from .workloads import Job

START_SECONDS = 600.0  # a large model takes minutes to load
STOP_SECONDS = 10.0


def generate_load(url: str, jobs: Sequence[Job], target: Target, *, concurrency: int) -> LoadResult:
    """Send all jobs, `concurrency` at a time, and return one record for each; failed ones say why in `error`."""

    async def send_all() -> LoadResult:
        async with Connections(url) as connections:
            return await closed_loop(jobs, concurrency, lambda job: ask(connections, target, job))

    return run(send_all())


@contextmanager
def running_server(stage: str, settings: Settings, *options: str, log: Path | None = None) -> Iterator[str]:
    """Run a stage's server, as `course.py serve` does, for as long as the block runs; give its URL.

    log: a file for what it prints. RuntimeError with the last lines of that if it does not come up.
    """
    port = free_port()
    main = stage_folder(stage) / "main.py"
    command = [sys.executable, str(main), "--serve", "--port", str(port), *settings.arguments(), *options]
    # A file, since a pipe would fill up and stop the server.
    with open(log, "w+") if log else tempfile.TemporaryFile("w+", errors="replace") as printed:
        server = subprocess.Popen(command, stdout=printed, stderr=printed)
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_until_healthy(server, url):
                printed.seek(0)
                raise RuntimeError("".join(printed.readlines()[-15:]) + f"The server of {stage} did not start.")
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
    with httpx.Client() as client:  # one: each reads all certificates, 20 ms
        while server.poll() is None and time.monotonic() < give_up:
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return True
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(0.1)
    return False

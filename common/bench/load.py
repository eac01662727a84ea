"""A server of the course in a process of its own, as `course.py serve` starts it.

    with running_server("03_streaming", settings) as url:
        result = generate_load(url, jobs, Target(endpoint="generate"), concurrency=8)

For a server that runs already there is serve.py.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from common.errors import InvalidInput
from common.process import free_port
from common.stages import stage_folder

from .harness import SHOWN_LINES, process
from .settings import Settings

START_SECONDS = 600.0  # a large model takes minutes to load


def running_server(stage: str, settings: Settings, *options: str) -> AbstractContextManager[str]:
    """Run a stage's server, as `course.py serve` does, for as long as the block runs; give its URL."""
    main = stage_folder(stage) / "main.py"
    command = [sys.executable, main, "--serve", *settings.arguments(), *options]
    return serving(command, f"the server of {stage}", leads_group=False)


@contextmanager
def serving(command: Sequence, name: str, environment: Mapping | None = None, **options: Any) -> Iterator[str]:
    """Run a command that serves at its option --port for as long as the block runs; give its URL.

    Raise InvalidInput with the last of what it has printed if it does not come up. options: of `process`.
    """
    port = str(free_port())
    with (
        tempfile.TemporaryFile("w+", errors="replace") as printed,  # a pipe would fill up and stop the server
        process([*command, "--port", port], environment, stdout=printed, stderr=subprocess.STDOUT, **options) as server,
    ):
        if not wait_until_healthy(server, url := f"http://127.0.0.1:{port}"):
            printed.seek(0)
            raise failure(f"{name} did not start", printed.readlines())
        yield url


def failure(what: str, lines: Sequence[str]) -> InvalidInput:
    """Show the last lines; return an error with the very last, since documents name no folders."""
    print("".join(lines[-SHOWN_LINES:]), file=sys.stderr)
    return InvalidInput(": ".join([what, *[line.strip() for line in lines if line.strip()][-1:]]))


def wait_until_healthy(server: subprocess.Popen, url: str) -> bool:
    """Return True once GET /health answers; False if the process ends first, or takes too long."""
    import httpx

    give_up = time.monotonic() + START_SECONDS
    with httpx.Client() as client:  # One client for all: each reads all certificates, which takes 20 ms.
        while server.poll() is None and time.monotonic() < give_up:
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return True
            except httpx.HTTPError:
                pass  # not listening yet
            time.sleep(0.1)
    return False

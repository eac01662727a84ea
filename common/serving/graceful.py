"""Graceful shutdown: open requests may finish, within a time limit.

On a signal uvicorn accepts no more connections and waits for open responses. These end when the engine ends their
requests, so both shut down together. A client that does not read its answer, or never completes its request, must not
hold up the shutdown forever: its connection is dropped.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial

import uvicorn
from fastapi import FastAPI

from common.serving.http_versions import Protocol
from common.serving.options import url_of

from .engine_thread import EngineThread

GRACE_SECONDS = 5.0  # for the engine to finish open requests
FAREWELL_SECONDS = 3.0  # after that, for clients to read what has been written for them
# Most clients close a connection that was not used for 5 seconds. A server that did so as early, uvicorn's default,
# would sometimes close one while a request is on its way.
IDLE_SECONDS = 75


def say_serving(url: str) -> None:
    print(f"serving on {url} (OpenAI's API under /v1), Ctrl-C to stop", flush=True)


class Server(uvicorn.Server):
    """uvicorn serving an application together with the engine thread behind it."""

    def __init__(self, app: FastAPI, engine_thread: EngineThread, host: str, port: int, log_level: str = "warning"):
        limits = {"timeout_keep_alive": IDLE_SECONDS, "timeout_graceful_shutdown": GRACE_SECONDS + FAREWELL_SECONDS}
        super().__init__(uvicorn.Config(app, http=Protocol, host=host, port=port, log_level=log_level, **limits))
        self.engine_thread = engine_thread

    def serve_until_stopped(self, announce: Callable[[str], None] = say_serving) -> None:
        """Serve until SIGTERM or Ctrl-C; `announce` the URL as soon as clients can connect.

        If the engine fails, answer open requests with errors, shut down, and exit with status 1 and the reason on
        stderr.
        """
        # uvicorn raises the signal again after its own shutdown; this handler then sets the exit status.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        self.engine_thread.on_failure = partial(setattr, self, "should_exit", True)
        listener = self.config.bind_socket()
        listener.listen(self.config.backlog)  # from here on clients can connect; their answers wait for `run`
        announce(url_of(self.config.host, listener.getsockname()[1]))
        self.run(sockets=[listener])
        if self.engine_thread.failure is not None:
            sys.exit(f"error: {self.engine_thread.error}, and the server has stopped")

    async def shutdown(self, sockets=None) -> None:
        """Close the engine thread while uvicorn closes its connections."""
        closing = asyncio.create_task(self.engine_thread.close(GRACE_SECONDS))
        await super().shutdown(sockets)
        await closing

    def handle_exit(self, sig, frame) -> None:
        """Start the shutdown at the first signal, end the grace at the second, drop connections at a third Ctrl-C."""
        if self.should_exit and self.engine_thread.deadline > 0:
            self.engine_thread.deadline = 0
        else:
            super().handle_exit(sig, frame)

"""NEW in 03: graceful shutdown: open requests may finish, within a time limit.

On a signal uvicorn accepts no more connections and waits for open responses. These end when the engine ends their
requests, so both shut down together. A client that does not read its answer, or never completes its request, must not
hold up the shutdown for ever: its connection is dropped.
"""

import asyncio

import uvicorn
from fastapi import FastAPI

from .engine_thread import EngineThread

GRACE_SECONDS = 5.0  # for the engine to finish open requests
FAREWELL_SECONDS = 3.0  # after that, for clients to read what has been written for them


class Server(uvicorn.Server):
    """uvicorn serving an application together with the engine thread behind it."""

    def __init__(self, app: FastAPI, engine_thread: EngineThread, host: str, port: int, log_level: str = "warning"):
        patience = GRACE_SECONDS + FAREWELL_SECONDS
        config = uvicorn.Config(app, host=host, port=port, log_level=log_level, timeout_graceful_shutdown=patience)
        super().__init__(config)
        self.engine_thread = engine_thread

    async def shutdown(self, sockets=None) -> None:
        """Close the engine thread while uvicorn closes its connections."""
        closing = asyncio.create_task(self.engine_thread.close(GRACE_SECONDS))
        await super().shutdown(sockets)
        await closing

    def handle_exit(self, sig, frame) -> None:
        """Start the shutdown at the first signal, end the grace at the second, drop all connections at the third."""
        if self.should_exit and self.engine_thread.deadline > 0:
            self.engine_thread.deadline = 0
        else:
            super().handle_exit(sig, frame)

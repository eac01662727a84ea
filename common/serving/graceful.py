"""A server that is told to stop lets its clients finish, and in the end stops all the same.

uvicorn, when told to stop, takes no more connections and waits for open responses. They end when the engine has ended
them, so both shut down together. A client that does not read its answer, or never completes its question, must not
hold up the shutdown for ever: it is dropped.
"""

import asyncio

import uvicorn
from fastapi import FastAPI

from .engine_thread import EngineThread

GRACE_SECONDS = 5.0  # for requests that are open when the server is told to stop
FAREWELL_SECONDS = 3.0  # after that, for clients to take what has been written for them


class Server(uvicorn.Server):
    """uvicorn serving an application together with the engine thread behind it."""

    def __init__(self, app: FastAPI, engine_thread: EngineThread, host: str, port: int, log_level: str = "warning"):
        patience = GRACE_SECONDS + FAREWELL_SECONDS
        config = uvicorn.Config(app, host=host, port=port, log_level=log_level, timeout_graceful_shutdown=patience)
        super().__init__(config)
        self.engine_thread = engine_thread

    async def shutdown(self, sockets=None) -> None:
        closing = asyncio.create_task(self.engine_thread.close(GRACE_SECONDS))
        await super().shutdown(sockets)
        await closing

    def handle_exit(self, sig, frame) -> None:
        """The first signal starts the shutdown, a second one ends the grace, and a third one drops all connections."""
        if self.should_exit and self.engine_thread.deadline > 0:
            self.engine_thread.deadline = 0
        else:
            super().handle_exit(sig, frame)

"""A uvicorn server on a thread of this process, for demos and tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .options import url_of


@contextmanager
def running(server) -> Iterator[str]:
    """Start a `uvicorn.Server` (port 0: any free one), yield its URL, and stop it as SIGTERM would."""
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server ended before it could listen: see its log")
        time.sleep(0.01)
    try:
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield url_of(host, port)
    finally:
        server.should_exit = True
        thread.join()

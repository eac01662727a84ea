"""A stage's server with the inspector on it. Stages 01 and 02 get the server of the later ones around their loop."""

import argparse
import importlib
import json
import signal
import sys
import webbrowser
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Timer

from common.cli import server_module
from common.engine import BaseEngine
from common.serving.options import url_of

from . import books
from .feed import Tape
from .lessons import lesson_of
from .load import Clients, Titles
from .routes import Guard, router
from .watched import Watched

OPEN_AFTER_SECONDS = 0.5
PACE = 10.0  # steps a second at the beginning: a newcomer sees each of them


def build_server(engine: BaseEngine, stage: Path, args: argparse.Namespace):
    """Return the stage's server, with the page under /watch, and a `tape` if `args` ask for a recording."""
    titles, lesson = Titles(), lesson_of(stage.name)
    watched = Watched(engine, titles)
    module = server_module(stage)
    if not hasattr(module, "build_server"):
        module = importlib.import_module("common.serving.server")
    server = module.build_server(watched, args)
    if books.can_pause(engine):
        watched.pace.limit(PACE if args.steps_per_second is None else args.steps_per_second or None)
    app = server.config.app
    hello = watched.view.hello() | {"name": stage.name, "lesson": lesson}
    clients = Clients(server.engine_thread, titles, lesson["system"])
    guard = Guard({args.host}, args.controlled_by)
    boot = {"engines": [{"url": ""}, *({"url": url} for url in args.beside)], "key": bool(args.api_key)}
    app.include_router(router(watched, server.engine_thread, clients, guard, hello | {"folder": str(stage)}, boot))
    app.router.lifespan_context = hanging_up(app.router.lifespan_context, clients)
    server.watched, server.tape = watched, Tape(json.dumps(hello)) if args.record else None
    if server.tape:
        watched.feed.open(server.tape)
    return server


def hanging_up(lifespan, clients: Clients):
    """Wrap the application's lifespan: at its end the load's clients hang up before the engine."""

    @asynccontextmanager
    async def wrapped(app):
        async with lifespan(app) as state:
            yield state
            clients.resize(0)

    return wrapped


def serve(server, args: argparse.Namespace) -> None:
    """Serve until SIGTERM or Ctrl-C, as the stage's own `serve` does, and open the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.engine_thread.on_failure = partial(setattr, server, "should_exit", True)
    listener = server.config.bind_socket()
    listener.listen(server.config.backlog)
    url = f"{url_of(args.host, listener.getsockname()[1])}/watch"
    if not args.controlled_by:  # otherwise another process's page shows it
        print(f"watch it on {url} (OpenAI's API under /v1), Ctrl-C to stop", flush=True)
    if args.browser:
        opener = Timer(OPEN_AFTER_SECONDS, webbrowser.open, [url])
        opener.daemon = True
        opener.start()
    server.run(sockets=[listener])
    if server.engine_thread.failure is not None:
        sys.exit(f"error: {server.engine_thread.error}, and the server has stopped")

"""`python3 course.py watch STAGE`: start a stage's server and open a page on which its engine is seen at work.

With two stages, a process for each, and one page that sends both the same load.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Thread

import torch
from fastapi import Depends
from fastapi.responses import RedirectResponse

from common.cli import add_options, build_parser, check_address, running_engine, server_module
from common.engine import BaseEngine
from common.errors import InvalidInput, expect_writable
from common.loader import choose_implementation, find_checkpoint
from common.memory import parse_bytes
from common.process import free_port
from common.serving.options import add_server_arguments, url_of
from common.serving.server import build_server as build_plain_server
from common.stages import ROOT, load_stage_module, stage_folder
from common.terminal import run_to_end

from . import books
from .document import read_recording, write_recording
from .feed import Tape
from .lessons import lesson_of
from .load import Clients
from .routes import guard, router
from .watched import Watched

PACE = 10.0  # steps per second at the beginning: slow enough to see each


def parse(stage: Path, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the stage's own options, and those of the inspector."""
    parser = build_parser(__doc__, "watch")
    own = load_stage_module(stage, "main") if (stage / "main.py").exists() else None
    getattr(own, "arguments", add_server_arguments)(parser)
    add_options(parser, "the page")
    known = {action.dest for action in parser._actions}
    options = {name: value for name, value in lesson_of(stage.name)["options"].items() if name in known}
    parser.set_defaults(**options)
    args = parser.parse_args(["--serve", *arguments])
    if (args.steps_per_second or 0) < 0:
        raise InvalidInput(f"--steps-per-second must be 0 or more, not {args.steps_per_second:g}")
    if args.record:
        expect_writable(args.record)
    if args.model and "kv_memory" in options and args.kv_memory == options["kv_memory"]:
        # The lesson's memory holds some tokens of the bundled model: give another model bytes for as many of its own.
        folders = find_checkpoint(args.model, with_weights=args.load_format == "auto"), find_checkpoint(None, True)
        mine, bundled = (choose_implementation(each, "auto")[0].kv_bytes_per_token(torch.float32) for each in folders)
        args.kv_memory = parse_bytes(args.kv_memory) * mine // bundled
    if "token_budget" in options and args.token_budget < (args.max_running or 0):
        args.token_budget = None  # The lesson's budget has no token for each request: use the default.
    return args


def build_server(engine: BaseEngine, stage: Path, args: argparse.Namespace):
    """Return the stage's server, with the page under /watch, and a `tape` if `args` ask for a recording.

    Stages 01 and 02 get the server of the later ones around their loop.
    """
    engine.hooks.append(watched := Watched(engine))
    lesson, module = lesson_of(stage.name), server_module(stage)
    server = getattr(module, "build_server", build_plain_server)(engine, args)
    if books.can_pause(engine):
        watched.pace.limit(PACE if args.steps_per_second is None else args.steps_per_second or None)
    app = server.config.app
    name = stage.name if stage.parent == ROOT else f"{stage.parent.name}/{stage.name}"  # A learner's is named my/...
    hello = watched.view.hello() | {"name": name, "lesson": lesson}
    clients = Clients(server.engine_thread, watched.view, lesson["system"])
    engines = [{"url": ""}, *({"url": url} for url in args.beside)]
    boot = {"engines": engines, "key": bool(args.api_key or args.api_keys)}
    routes = router(stage, watched, server.engine_thread, clients, hello, boot)
    app.include_router(routes, dependencies=[Depends(guard(args.host, args.controlled_by))])
    app.add_route("/", lambda _: RedirectResponse("/watch"))  # the bare address, as people type it
    server.shutdown = partial(shutdown, server.shutdown, clients)
    server.watched, server.tape = watched, Tape(json.dumps(hello)) if args.record else None
    if server.tape:
        watched.open_reader(server.tape)
    return server


async def shutdown(server_shutdown, clients: Clients, **sockets) -> None:
    """Shut a server down, after its own clients have left."""
    clients.resize(0)
    await server_shutdown(**sockets)


def show(url: str, args: argparse.Namespace) -> None:
    """Say where the page is, and open it."""
    if not args.controlled_by:  # If it is controlled, another process's page shows it.
        print(f"watch it on {url}/watch (OpenAI's API under /v1), Ctrl-C to stop", flush=True)
    if args.browser:
        Thread(target=webbrowser.open, args=[f"{url}/watch"], daemon=True).start()  # clients can connect already


def watch(stage: Path, args: argparse.Namespace) -> None:
    """Serve one stage until it is told to stop; then write what was recorded, if anything."""
    if args.tensor_parallel > 1:
        raise InvalidInput("watch shows one process: leave out --tensor-parallel")
    args.host = check_address(args.host, args.port)
    server = None
    try:
        with running_engine(stage, args) as (engine, _):
            server = build_server(engine, stage, args)
            server.serve_until_stopped(partial(show, args=args))
    finally:
        if server is not None and server.tape is not None:
            write_recording(args.record, [server.tape.lines])
            if not (args.beside or args.controlled_by):
                print(f"recorded in {args.record}")


def watch_beside(first: Path, second: Path, arguments: list[str]) -> None:
    """Watch two stages, a process for each with its part of the cores; the page of the first shows both."""
    args = parse(first, arguments)
    args.port, other_port = args.port or free_port(), free_port()  # with 0 the origin would not be known
    args.host = check_address(args.host, args.port)  # `watch` then finds the same one.
    page_origin = url_of(args.host, args.port)
    threads = str(max(1, (os.cpu_count() or 2) // 2))
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    os.environ.setdefault("NUMBA_NUM_THREADS", threads)
    with tempfile.TemporaryDirectory() as folder:
        recordings = Path(folder) / "first.html", Path(folder) / "second.html"
        command = [sys.executable, "-m", "common.inspector", str(second), *arguments, "--no-browser"]
        command += ["--port", str(other_port), "--controlled-by", page_origin, "--allow-origin", page_origin]
        command += ["--steps-per-second", str(args.steps_per_second or 0)]
        if args.record:
            command += ["--record", str(recordings[1])]
            args.record, both = recordings[0], args.record
        args.steps_per_second = args.steps_per_second or 0.0
        args.beside = [url_of(args.host, other_port)]
        other = subprocess.Popen(command, start_new_session=True)  # Ctrl-C reaches this process, which ends the other.
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # even while our model loads
            watch(first, args)
        finally:
            other.terminate()
            other.wait()
            if all(path.exists() for path in recordings):
                write_recording(both, [stream for path in recordings for stream in read_recording(path)])
                print(f"recorded in {both}")


def main(arguments: list[str]) -> None:
    names = []
    while arguments and not arguments[0].startswith("-"):
        names.append(arguments.pop(0))
    if not 1 <= len(names) <= 2:
        raise InvalidInput("watch needs a stage, such as 05, or two for one page with both, such as 03 04")
    stages = [stage_folder(name) for name in names]
    if len(stages) == 2:
        watch_beside(*stages, arguments)
    else:
        watch(stages[0], parse(stages[0], arguments))


if __name__ == "__main__":
    run_to_end(partial(main, sys.argv[1:]))

"""The command line options of the server, stages 03 to 08."""

import argparse
import os
from pathlib import Path

from ..policies import add_arguments as add_scheduling_arguments
from ..terminal import positive


def seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def url_of(host: str, port: int) -> str:
    """Return the URL of a server; an address of IPv6 stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--max-queue` and the options for clients, access and logging."""
    server = parser.add_argument_group("clients of the server, with --serve")
    server.add_argument("--max-queue", type=positive, default=1024, help="open requests; more get 429 (default: 1,024)")
    server.add_argument("--served-model-name", metavar="NAME", help="the model's name for clients (default: its own)")
    server.add_argument(
        "--chat-template", type=Path, metavar="FILE", help="a chat template in Jinja, in place of the checkpoint's own"
    )
    server.add_argument(
        "--api-key",
        default=os.environ.get("LLM_SERVER_API_KEY"),
        metavar="KEY",
        help="the key that clients must send (default: the environment's LLM_SERVER_API_KEY, or none)",
    )
    server.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="a line for each tenant: its name, its key and, if it is not 1, its weight with --scheduling fair",
    )
    add_scheduling_arguments(server)
    for name, what in (("ttft", "to the first token"), ("tpot", "for each further token")):
        server.add_argument(
            f"--{name}-objective",
            type=seconds,
            metavar="SECONDS",
            help=f"{what}: requests that would take longer get 429 at once (default: they wait)",
        )
    server.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="accept requests of its web pages; may be repeated",
    )
    server.add_argument(
        "--generation-config",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take sampling parameters that a client does not give from the checkpoint's generation_config.json",
    )
    server.add_argument(
        "--log-level",
        default="warning",
        choices=["error", "warning", "info"],
        help="warning: requests refused for overload or failure; info: every request (default: warning)",
    )
    server.add_argument(
        "--max-body", type=positive, default=1 << 20, metavar="BYTES", help="larger bodies get 413 (default: 1 MiB)"
    )
    server.add_argument(
        "--stream-interval",
        type=positive,
        default=1,
        metavar="N",
        help="send a chunk for every N tokens of a stream, the first one at once: fewer chunks cost less (default: 1)",
    )
    server.add_argument(
        "--api-process",
        action="store_true",
        help="run the server in a process of its own in front of the engine's: for many clients, or a fast engine",
    )

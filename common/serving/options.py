"""The command line options of a server that others use."""

import argparse
import os


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """`--max-queue` and what stands between the engine and the world."""
    server = parser.add_argument_group("clients of the server, with --serve")
    server.add_argument("--max-queue", type=int, default=1024, help="open requests; more get 429 (default: 1,024)")
    server.add_argument("--served-model-name", metavar="NAME", help="what clients call the model (default: its own)")
    server.add_argument(
        "--api-key",
        default=os.environ.get("LLM_SERVER_API_KEY"),
        metavar="KEY",
        help="clients must send it (default: the environment's LLM_SERVER_API_KEY, or none)",
    )
    server.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="let its web pages ask; may be repeated"
    )
    server.add_argument(
        "--generation-config",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="sample as the checkpoint's generation_config.json recommends where a client does not say how",
    )
    server.add_argument(
        "--log-level",
        default="warning",
        choices=["error", "warning", "info"],
        help="warning: requests that are turned away; info: every request (default: warning)",
    )
    server.add_argument(
        "--max-body", type=int, default=1 << 20, metavar="BYTES", help="larger ones get 413 (default: 1 MiB)"
    )

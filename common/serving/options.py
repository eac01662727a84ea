"""The command line options of the server, stages 03 to 08."""

import argparse
import os

from ..terminal import add_table

GROUP = "clients of the server, with --serve"


def url_of(host: str, port: int) -> str:
    """Return the URL of a server; an address of IPv6 stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--max-queue` and the options for clients, access and logging."""
    add_table(parser.add_argument_group(GROUP), GROUP)
    parser.set_defaults(api_key=os.environ.get("LLM_SERVER_API_KEY"))

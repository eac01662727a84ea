"""Stage 06, prefix cache: requests that begin alike share the pages of their beginning."""

import argparse
import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.cli import run_stage
from common.serving.options import add_server_arguments


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage to those of all stages."""
    add_server_arguments(parser)  # how many requests may wait, and what else a server is told
    # How many requests may run, how much a step may do, how much memory K and V may take.
    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-running", type=int, default=64, help="requests in a step (default: 64)")
    engine.add_argument("--token-budget", type=int, help="tokens in a step (default: 2,048; CPU: what 0.1 s allows)")
    engine.add_argument(
        "--kv-memory", metavar="SIZE", help="for K and V, as 512M or 2G (default: 1G; GPU: what is left)"
    )
    # In pieces of which size, and which kernels read them.
    engine.add_argument("--page-size", type=int, default=16, help="tokens in a page (default: 16)")
    engine.add_argument("--attention", default="auto", help="auto, torch, numba, triton or flash (default: auto)")
    engine.add_argument(
        "--kv-dtype", choices=["auto", "int8"], default="auto", help="int8: K and V in 8 bits (default: as --dtype)"
    )


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

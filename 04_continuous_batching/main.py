"""Stage 04, continuous batching: many requests share every step, and each joins and leaves when it wants to."""

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
    # NEW in 04: how many requests may run, how much a step may do, how much memory K and V may take.
    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-running", type=int, default=32, help="requests in a step (default: 32)")
    engine.add_argument("--token-budget", type=int, help="tokens in a step (default: 2,048; CPU: what 0.1 s allows)")
    engine.add_argument(
        "--kv-memory", metavar="SIZE", help="for K and V, as 512M or 2G (default: 1G; GPU: what is left)"
    )


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

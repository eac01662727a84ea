"""Stage 03, streaming: the engine on a thread of its own, and every token sent as soon as it is known."""

import argparse
import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(STAGE.parent))

from common.cli import run_stage


def arguments(parser: argparse.ArgumentParser) -> None:
    """NEW in 03: how many may wait."""
    server = parser.add_argument_group("queue, with --serve")
    server.add_argument("--max-queue", type=int, default=64, help="open requests; more get 429 (default: 64)")


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

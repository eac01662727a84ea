"""Stage 04, continuous batching: many requests share every step, and each joins and leaves when it wants to."""

import argparse
import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.cli import add_options, run_stage
from common.serving.options import add_server_arguments


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage to those of all stages."""
    add_server_arguments(parser)  # how many requests may wait, and what else a server is told
    # NEW in 04: how many requests may run, how much a step may do, how much memory K and V may take.
    add_options(parser, "engine")
    parser.set_defaults(max_running=32)


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

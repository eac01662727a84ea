"""Stage 03, streaming: the engine on a thread of its own, and every token sent as soon as it is known."""

import argparse
import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.cli import run_stage
from common.serving.options import add_server_arguments


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage to those of all stages."""
    add_server_arguments(parser)  # NEW in 03: how many requests may wait, and what else a server is told


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

"""Stage 05, paged attention: K and V in pages that are taken when they are needed."""

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
    # NEW in 05, pages: how many tokens a page holds, and which kernels read it.
    add_options(parser, "engine", "pages")


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

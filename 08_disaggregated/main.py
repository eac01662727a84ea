"""Stage 08, disaggregated: prefill and decode in processes of their own, and pages travel between them."""

import argparse
import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(next(folder for folder in STAGE.parents if (folder / "common").is_dir())))

from common.cli import add_options, run_stage
from common.distributed.options import add_fleet_arguments
from common.serving.options import add_server_arguments


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this stage to those of all stages."""
    add_server_arguments(parser)  # how many requests may wait, and what else a server is told
    add_fleet_arguments(parser)  # NEW in 08: how many workers, and where
    add_options(parser, "engine", "pages", "drafts")


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

"""The command line options of a fleet of workers."""

import argparse
import sys

from ..cli import add_options


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the number of workers, where they run, and when they count as lost."""
    add_options(parser, "workers")
    parser.set_defaults(workers="ray" if "--serve" in sys.argv else "local")

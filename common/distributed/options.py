"""The command line options of a fleet of workers."""

import argparse
import sys


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the number of workers, where they run, and when they count as lost."""
    fleet = parser.add_argument_group("workers")
    fleet.add_argument(
        "--replicas",
        type=int,
        default=0,
        metavar="N",
        help="workers that do the whole job, in place of prefill and decode workers (default: 0)",
    )
    fleet.add_argument("--prefill", type=int, default=1, metavar="N", help="prefill workers (default: 1)")
    fleet.add_argument("--decode", type=int, default=1, metavar="N", help="decode workers (default: 1)")
    fleet.add_argument(
        "--workers",
        choices=["ray", "local"],
        default="ray" if "--serve" in sys.argv else "local",
        help="ray: one process per worker (default with --serve); local: all in this process (default otherwise)",
    )
    fleet.add_argument("--ray-address", metavar="HOST:PORT", help="join this Ray cluster (default: start one)")
    fleet.add_argument(
        "--hang-seconds",
        type=float,
        default=60,
        metavar="S",
        help="replace a worker that is silent for this long (default: 60)",
    )
    fleet.add_argument(
        "--wait-seconds",
        type=float,
        default=60,
        metavar="S",
        help="fail requests that wait this long while no worker is up (default: 60)",
    )

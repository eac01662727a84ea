"""Stage 08, disaggregated: prefill and decode in processes of their own, and pages travel between them."""

import argparse
import sys
from pathlib import Path

STAGE = Path(__file__).resolve().parent
sys.path.insert(0, str(STAGE.parent))

from common.cli import run_stage
from common.serving.options import add_server_arguments

ROLE_OPTIONS = {"max_running": int, "token_budget": int, "kv_memory": str, "attention": str, "num_draft_tokens": int}


def role_options(text: str) -> dict[str, int | str]:
    """NEW in 08: "token_budget=512,kv_memory=2G" as options of a WorkerEngine."""
    options: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ROLE_OPTIONS or not value:
            known = ", ".join(ROLE_OPTIONS)
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE with one of the names {known}")
        options[name] = ROLE_OPTIONS[name](value)
    return options


def arguments(parser: argparse.ArgumentParser) -> None:
    """NEW in 05: how much memory K and V may take, and in pieces of which size."""
    add_server_arguments(parser)
    # NEW in 08: how many workers, and where.
    fleet = parser.add_argument_group("workers")
    fleet.add_argument("--prefill", type=int, default=1, metavar="N", help="workers for prompts (default: 1)")
    fleet.add_argument("--decode", type=int, default=1, metavar="N", help="workers for what follows (default: 1)")
    fleet.add_argument(
        "--workers",
        choices=["ray", "local"],
        default="ray" if "--serve" in sys.argv else "local",
        help="ray: a process each (default with --serve); local: all in this process (default otherwise)",
    )
    for role in ("prefill", "decode"):
        fleet.add_argument(
            f"--{role}-options",
            type=role_options,
            metavar="NAME=VALUE,...",
            help=f"for {role} workers in place of those for both: {', '.join(ROLE_OPTIONS)}",
        )
    fleet.add_argument("--ray-address", metavar="HOST:PORT", help="join this Ray cluster (default: one of our own)")
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
        help="how long requests wait if no worker is up (default: 60)",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-running", type=int, default=64, help="requests in a step (default: 64)")
    engine.add_argument("--token-budget", type=int, default=256, help="tokens in a step (default: 256)")
    engine.add_argument(
        "--kv-memory", metavar="SIZE", help="for K and V, as 512M or 2G (default: 1G; GPU: what is left)"
    )
    engine.add_argument("--page-size", type=int, default=16, help="tokens in a page (default: 16)")
    engine.add_argument("--attention", default="auto", help="auto, torch, numba, triton or flash (default: auto)")
    # NEW in 07: who guesses, and how much.
    engine.add_argument(
        "--draft",
        metavar="NAME",
        default="auto",
        help="a small model with the same vocabulary, which guesses, or lookup, which repeats what followed the same "
        "words before (default: the bundled draft model for the bundled model, otherwise lookup)",
    )
    engine.add_argument(
        "--num-draft-tokens",
        metavar="K",
        type=int,
        help="guesses for each request in a step, 0 to 8, always so many (default: as many as pay)",
    )


if __name__ == "__main__":
    run_stage(STAGE, __doc__, arguments)

"""Every measurement of the course that needs a GPU, in one command.

    python3 -m common.bench.gpu --out DIR                       # all parts, under nine minutes on an H200
    python3 -m common.bench.gpu --out DIR --only throughput,single
    python3 -m common.bench.gpu --out DIR --sizes tiny          # runs everything end to end, on a CPU, in a minute

It writes DIR/<gpu>-<part>.json with a plot beside it, and DIR/<gpu>.json with what all parts found in short, which is
also the last line on stdout. A part whose JSON in DIR is complete, with the same sizes and from the same commit, is not
run again; its plot is drawn again. A part that fails, or takes twice as long as expected, leaves what it measured in
<gpu>-<part>.partial.json, with the reason, and the others go on.

The exit status is 0 if all parts are complete, 1 if one failed or found something wrong, 130 after Ctrl-C.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .parts import ALL_SECONDS, PARTS
from .runner import Runner, draw_all, measure_part


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.measure:
        return measure_part(args.measure, args.out)
    if args.plot_only:
        return draw_all(args.out)
    sizes = args.sizes or ("full" if torch.cuda.is_available() else "tiny")
    if sizes == "full" and not torch.cuda.is_available():
        parser.error("--sizes full needs a CUDA device, and torch sees none here")
    if not args.sizes and sizes == "tiny":
        print(
            "No CUDA device: everything is run with --sizes tiny, which measures nothing worth knowing.",
            file=sys.stderr,
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as cleanly as after Ctrl-C
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        return Runner(args.out, sizes, seconds=60 * args.minutes).run_all(args.only or list(PARTS), args.again)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: parts that were complete stay, and are not run again", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    parts = "\n".join(f"  {part.name:<13} {part.seconds:>3.0f} s   {part.about}" for part in PARTS.values())
    parser = argparse.ArgumentParser(
        "python3 -m common.bench.gpu",
        description=__doc__,
        epilog=f"parts, and what each takes on an H200:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where results are, and are written")
    parser.add_argument("--only", type=part_names, metavar="PART,PART", help="only these, in the order given")
    parser.add_argument("--again", action="store_true", help="also those that are complete")
    parser.add_argument("--sizes", choices=["full", "tiny"], help="default: full, or tiny without a CUDA device")
    parser.add_argument(
        "--minutes",
        type=positive,
        default=ALL_SECONDS / 60,
        metavar="N",
        help="for everything; on a GPU slower than an H200 give more, and each part gets more (default: %(default)g)",
    )
    parser.add_argument("--plot-only", action="store_true", help="measure nothing, draw all that is in DIR")
    parser.add_argument("--measure", choices=PARTS, help=argparse.SUPPRESS)  # the children's own option
    return parser


def part_names(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}; there is {', '.join(PARTS)}")
    return names


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())

"""The command line that all benchmarks share: that of one stage, that of the whole course, and that for a GPU.

`course.py bench my/05` runs a learner's own: the reference of its name is one more side, and the results stay in the
learner's folder. Those of the machine hold the course's stages alone.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from common.terminal import add_table, note, parser_of, run_to_end

from ..errors import InvalidInput
from . import summary
from .documents import read_json
from .harness import Benchmark, Figures, measure_sides
from .settings import Settings
from .suite import RESULTS, Suite, draw

REFERENCE = "reference"  # the side beside a learner's own


def run_benchmark(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> None:
    """Run the command line of a benchmark, as every benchmark.py ends; exit with the status of `main`."""
    defaults = {}
    if os.environ.get("COURSE_STAGE") == str(Path(benchmark.file).resolve().parent):  # course.py has set it
        benchmark, defaults = beside_reference(benchmark), {"home": benchmark.results}
    name = f"python -m {benchmark.module}"
    run_to_end(lambda: main(name, benchmark.description, [benchmark], arguments, **defaults))


def main(
    command: str,
    description: str,
    benchmarks: Sequence[Benchmark],
    arguments: Sequence[str] | None = None,
    **defaults: Any,
) -> int:
    """Parse the command line, with these defaults of its options, and do what it says; return the exit status.

    0: all is measured; 1: a side could not be measured, or an option is wrong, with a sentence; 130: after Ctrl-C.
    """
    parser = parser_of(command, description, "benchmark", "sizes of a benchmark")
    parser.add_argument("--only", metavar="NAME,NAME", help="of " + ", ".join(each.name for each in benchmarks))
    add_table(parser, "runs of a benchmark")
    parser.set_defaults(**{"together": False, "home": RESULTS, "after": bool, **defaults})
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as cleanly as after Ctrl-C
    settings = Settings(args.model, args.device, args.dtype, args.load_format)
    try:
        args.sizes = settings.size_set(args.sizes)
        args.benchmarks = pick(benchmarks, args.only)
        args.again = args.again or len(benchmarks) == 1  # A benchmark that is asked for by its name runs again.
        if args.sizes == "gpu" and not torch.cuda.is_available():
            raise InvalidInput("--sizes gpu needs a CUDA device, and torch sees none here")
        if args.sizes == "gpu" and not (args.out or args.measure):
            raise InvalidInput("--sizes gpu needs --out DIR, the folder for its results")
        if args.minutes is not None and not args.minutes > 0:
            raise InvalidInput(f"--minutes must be more than 0, not {args.minutes:g}")
        if args.measure:
            for answer in measure_sides(benchmarks[0], args.measure.split(","), settings, args.sizes):
                print(json.dumps(answer), flush=True)
            return 0
        return redraw(args) if args.plot_only else measure(args, settings)
    except InvalidInput as error:
        note(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        note("interrupted: what is measured is kept, and the same command goes on from there")
        return 130


def pick(benchmarks: Sequence[Benchmark], names: str | None) -> list[Benchmark]:
    """Return those of the names, given as "02_kv_cache", "02" or "2". Raise InvalidInput that lists what there is."""
    chosen = []
    for name in names.split(",") if names else ():
        found = [each for each in benchmarks if name.zfill(2) in (each.name, each.name[:2])]
        if not found:
            raise InvalidInput(f"there is no benchmark {name!r}; use {', '.join(each.name for each in benchmarks)}")
        chosen += found
    return [each for each in benchmarks if each in chosen or not names]


def measure(args: argparse.Namespace, settings: Settings) -> int:
    """Measure what the options say; print the table, and as the last line on stdout one JSON document."""
    out = args.out or (Path(tempfile.mkdtemp()) if args.sizes == "tiny" else args.home)
    seconds = args.minutes and 60 * args.minutes
    together = args.together or args.sizes.startswith("large")  # a real model takes longer to load than most sides
    suite = Suite(args.benchmarks, settings, args.sizes, out, args.repeats, together, seconds, args.after)
    status = suite.run(again=args.again)
    if suite.path.exists():
        found = summary.read_summary(suite.path)
        note(f"\n{summary.table(found)}\n{suite.path}")
        if not sys.stdout.isatty():  # The JSON is for programs; people have the table.
            path = suite.document_of(args.benchmarks[0]) if len(args.benchmarks) == 1 else None
            print(json.dumps((path and read_json(path)) or found, separators=(",", ":")))
    return status


def redraw(args: argparse.Namespace) -> int:
    """Draw all documents of these benchmarks, of whichever machine they are."""
    documents = [
        (benchmark, path)
        for benchmark in args.benchmarks
        for path in sorted((args.out or benchmark.results).glob("*.json"))
        if (read_json(path) or {}).get("benchmark") == benchmark.name
    ]
    if not documents:
        raise InvalidInput(f"{args.out or 'results/'} holds no results to draw")
    return 1 if any([draw(*each) for each in documents]) else 0


# ---- A learner's stage ----


def beside_reference(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the reference as a side, which the headline compares it with."""
    name, headline = benchmark.name, benchmark.headline

    def measure(settings: Settings, sizes: dict) -> Figures:
        del os.environ["COURSE_STAGE"]  # The name then stands for the reference. This process measures nothing else.
        return benchmark.sides[name](settings, sizes)

    *_, (_, *figure) = headline.values.values()
    values = {side: [side, *figure] for side in (REFERENCE, name)}
    sides = {**benchmark.sides, REFERENCE: measure}
    return replace(benchmark, sides=sides, headline=replace(headline, values=values))

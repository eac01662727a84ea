"""How every benchmark of the course measures, in one place.

A stage's benchmark.py describes itself in a `Benchmark` and calls `run_benchmark`. Every side of the comparison is
measured in a process of its own (`benchmark.py --measure SIDE` prints one JSON line), so that none finds memory, caches
or threads as another left them. The order turns round with every repeat (A B C, C B A, A B C), so that a machine that
slows down as it warms up does so for all of them. Ratios and predictions are computed inside one repeat and only then
aggregated, because what disturbs a machine disturbs neighbours in time alike.

The result is one JSON document: the last line on stdout, and the file that the plot is then drawn from.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from common.model import ModelConfig

from .documents import rounded, write_atomically
from .hardware import hardware, slug, slugify
from .settings import Settings

Figures = dict[str, Any]  # name -> number or list of numbers, from one repeat
REPEATS = 3
SHOWN_LINES = 15
STOP_SECONDS = 15.0  # for a child to end the server that it may have started


@dataclass(frozen=True)
class Benchmark:
    """What a stage's benchmark.py supplies.

    sides: what is compared; each function warms up, measures, and returns its figures.
    sizes, quick_sizes: lengths and counts to measure, as JSON values; the quick ones take a second, for tests.
    derive: (config, dtype, sizes, figures of each side) -> what combines the sides of one repeat: ratios, predictions.
    draw: draws the document that was written, as the PNG of that name.
    """

    script: Path
    description: str
    sides: dict[str, Callable[[Settings, dict], Figures]]
    sizes: dict[str, Any]
    quick_sizes: dict[str, Any]
    derive: Callable[[ModelConfig, torch.dtype, dict, Mapping[str, Figures]], Figures]
    draw: Callable[[dict, Path], None]


class SideFailed(Exception):
    """A side's process failed; the message is what it printed last, and one sentence."""


def run_benchmark(benchmark: Benchmark) -> None:
    """The command line of a benchmark. Exits with 1 and a sentence if a side fails, with 130 after Ctrl-C."""
    args = build_parser(benchmark).parse_args()
    settings = Settings.from_arguments(args)
    sizes = benchmark.quick_sizes if args.quick else benchmark.sizes
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as cleanly as after Ctrl-C
    try:
        if args.measure:
            figures = benchmark.sides[args.measure](settings, sizes)
            print(json.dumps({"model": asdict(settings.config()), "figures": figures}))
        elif args.plot_only:
            redraw(benchmark, args.results or benchmark.script.parent / "results")
        else:
            measure_and_draw(benchmark, args, settings, sizes)
    except SideFailed as error:
        sys.exit(str(error))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted: the results are as they were before", file=sys.stderr)
        sys.exit(130)


def build_parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=benchmark.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Settings.add_arguments(parser)
    parser.add_argument("--repeats", type=int, metavar="N", help=f"default: {REPEATS}, or 1 with --quick")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="default: results/ beside benchmark.py")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results to a temporary folder: for tests")
    parser.add_argument("--plot-only", action="store_true", help="measure nothing, redraw the plots of all results")
    parser.add_argument("--measure", choices=benchmark.sides, help=argparse.SUPPRESS)  # the children's own option
    return parser


def measure_and_draw(benchmark: Benchmark, args: argparse.Namespace, settings: Settings, sizes: dict) -> None:
    device, dtype = settings.place()
    machine = hardware(device)
    usual = 1 if args.quick else REPEATS
    order = alternate(list(benchmark.sides), usual if args.repeats is None else args.repeats)
    model, repeats = measure_sides(benchmark.script, order, settings, args.quick)
    derived = [benchmark.derive(ModelConfig(**model), dtype, sizes, repeat) for repeat in repeats]
    document = {
        "benchmark": benchmark.script.parent.name,
        "quick": args.quick,
        "settings": {
            "model": Path(settings.model).name if settings.model else "bundled",  # a path is nobody else's business
            "device": device.type,
            "dtype": str(dtype).removeprefix("torch."),
            "load_format": settings.load_format,
        },
        "hardware": machine,
        "model": model,
        "sizes": sizes,
        "order": order,
        "sides": {side: aggregate([repeat[side] for repeat in repeats]) for side in benchmark.sides},
        "figures": aggregate(derived),
    }
    folder = args.results or (Path(tempfile.mkdtemp()) if args.quick else benchmark.script.parent / "results")
    path = folder / f"{result_name(machine, settings)}.json"
    write_atomically(path, json.dumps(rounded(document), indent=1) + "\n")
    draw_file(benchmark, path)
    report(document["figures"])
    print(json.dumps(json.loads(path.read_text()), separators=(",", ":")))


def alternate(sides: Sequence[str], repeats: int) -> list[list[str]]:
    """The order of the sides in each repeat: forwards, backwards, forwards ..."""
    if repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {repeats}")
    return [list(sides) if repeat % 2 == 0 else list(reversed(sides)) for repeat in range(repeats)]


def measure_sides(
    script: Path, order: list[list[str]], settings: Settings, quick: bool
) -> tuple[dict, list[dict[str, Figures]]]:
    """Runs every (side, repeat); returns the model's sizes, and for each repeat the figures of each side."""
    runs = [(repeat, side) for repeat, sides in enumerate(order) for side in sides]
    repeats: list[dict[str, Figures]] = [{} for _ in order]
    seconds: dict[str, float] = {}  # of each side's last run
    model: dict = {}
    for done, (repeat, side) in enumerate(runs, start=1):
        start = time.monotonic()
        answer = run_side(script, side, settings, quick)
        seconds[side] = time.monotonic() - start
        repeats[repeat][side], model = answer["figures"], answer["model"]
        usual = statistics.mean(seconds.values())  # for sides that have not run yet
        left = sum(seconds.get(later, usual) for _, later in runs[done:])
        progress = f"{done:>2} of {len(runs)}   repeat {repeat + 1}   {side:<20} {seconds[side]:6.1f} s"
        print(f"{progress}   about {left:.0f} s left", file=sys.stderr, flush=True)
    return model, repeats


def run_side(script: Path, side: str, settings: Settings, quick: bool) -> dict:
    """One side in a fresh process: {"model": ..., "figures": ...}."""
    command = [sys.executable, str(script), "--measure", side, *settings.arguments(), *(["--quick"] if quick else [])]
    # In a process group of its own: Ctrl-C reaches this process alone, which then ends the child and its server.
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = child.communicate()
    except KeyboardInterrupt:
        stop_group(child)
        raise
    if child.returncode:
        last_lines = "\n".join(errors.splitlines()[-SHOWN_LINES:])
        raise SideFailed(f"{last_lines}\n{side} could not be measured: its process ended with {child.returncode}.")
    try:
        return json.loads(output.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise SideFailed(f"{side} could not be measured: its process printed no JSON line.") from error


def stop_group(child: subprocess.Popen) -> None:
    if not hasattr(os, "killpg"):  # Windows: the server has had its Ctrl-C from the console
        child.kill()
        return
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def aggregate(repeats: Sequence[Figures]) -> Figures:
    """The figures of several repeats, each as a `spread`."""
    return {name: spread([repeat[name] for repeat in repeats]) for name in repeats[0]}


def spread(values: list) -> dict[str, Any]:
    """Median, minimum, maximum and all values of one figure; of a list of numbers, element by element."""
    if isinstance(values[0], list):
        elements = [spread(list(column)) for column in zip(*values, strict=True)]
        return {key: [element[key] for element in elements] for key in ("median", "min", "max")} | {"values": values}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "values": values}


def result_name(machine: dict, settings: Settings) -> str:
    """The hardware, then what was asked for beyond the defaults, so that such runs replace no other's file."""
    asked = [Path(settings.model or "").name, settings.dtype if settings.dtype != "auto" else ""]
    return "-".join([slug(machine), *(slugify(text) for text in asked if text)])


def draw_file(benchmark: Benchmark, path: Path) -> None:
    benchmark.draw(json.loads(path.read_text()), path.with_suffix(".png"))
    print(f"{path} and its plot", file=sys.stderr)


def redraw(benchmark: Benchmark, folder: Path) -> None:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"{folder} holds no results to draw")
    for path in paths:
        draw_file(benchmark, path)


def report(figures: Figures) -> None:
    """The figures that are single numbers, for whoever watches."""
    for name, figure in figures.items():
        if not isinstance(figure["median"], list):
            median, low, high = (figure[key] for key in ("median", "min", "max"))
            print(f"{name} = {median:.4g}   ({low:.4g} to {high:.4g})", file=sys.stderr)

"""`python3 course.py predict 05`: guess what a stage's benchmark measures, then see it beside arithmetic.

The stage's own benchmark runs with sizes that take seconds, one process for each side, on the bundled model in float32
on the CPU, so that the results of a class can be laid beside each other. Without a terminal nothing is asked.
"""

import argparse
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from common.bench.commands import RESULTS, environment
from common.bench.documents import write_json
from common.bench.hardware import hardware, slug
from common.bench.harness import Benchmark, Run, run_process
from common.bench.settings import Settings
from common.errors import counted, shortened
from common.model import ModelConfig
from common.setup.progress import LOOK_EVERY, StatusLine, note
from common.stages import stage_folder, stage_folders

from .predict_report import draw, table
from .predictions import Found, Question

SETTINGS = Settings(device="cpu", dtype="float32")
PATIENCE = 10  # times the planned seconds, after which a process hangs
WIDTH = 100  # characters of a line of text


def main(arguments: Sequence[str]) -> int:
    """Ask, measure, and show all three; the first argument is the stage. Return the exit status."""
    stage, *rest = arguments
    module = predictions_of(stage)
    benchmark: Benchmark = module.BENCHMARK
    args = parse_options(benchmark, module.QUESTIONS, rest)
    sizes = benchmark.sizes_of(args.sizes)
    guesses = given_guesses(args, module.QUESTIONS, sizes)
    if sys.stdin.isatty():
        guesses = ask_all(module.QUESTIONS, sizes, guesses, benchmark)
    started = time.monotonic()
    found = measure(benchmark, args.sizes)
    machine = hardware(SETTINGS.place()[0])
    document = {
        "benchmark": f"predict {stage_name(benchmark)}",
        "size_set": args.sizes,
        "settings": SETTINGS.describe(),
        "hardware": machine,
        "sizes": sizes,
        "order": [list(benchmark.sides)],
        "seconds": time.monotonic() - started,
        "questions": [question.result(found, guesses.get(question.name)) for question in module.QUESTIONS],
        "sides": found.sides,
    }
    path = args.out / f"{slug(machine)}-predict-{stage_name(benchmark)[:2]}.json"
    write_json(path, document)
    draw(document, path.with_suffix(".png"))
    print(f"\n{table(document)}\n\n{path.with_suffix('.png')}\n{path}")
    return 0


def predictions_of(stage: str) -> ModuleType:
    """Return the module of a stage given as "05" or as its folder. Exit with a sentence for any other."""
    try:
        folder = stage_folder(stage)
    except ValueError as error:
        sys.exit(f"{str(error).capitalize()}.")
    if folder not in stage_folders():
        sys.exit(f"`predict` measures the course's own stages: give their number, not {stage}.")
    return import_module(f"common.learn.predictions.stage_{folder.name[:2]}")


def stage_name(benchmark: Benchmark) -> str:
    """Return the name of the stage that a benchmark here is about."""
    return stage_folder(benchmark.name.removeprefix("stage_")).name


# ---- Guesses ----


def parse_options(benchmark: Benchmark, questions: Sequence[Question], arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line: an option for each question, with its text as help."""
    number = stage_name(benchmark)[:2]
    sizes = benchmark.sizes_of("quick")
    example = " ".join(f"--{question.name} {','.join(['1.5'] * question.count(sizes))}" for question in questions)
    parser = argparse.ArgumentParser(
        f"course.py predict {number}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        description="Guess what the benchmark of a stage measures, then see your guess beside arithmetic and the\n"
        f"measurement, in a table and in a plot. It takes about {benchmark.seconds['quick']:.0f} s.",
        epilog="At a terminal, what no option answers is asked, and Enter alone is no guess. Without a terminal, for\n"
        f"a class: python3 course.py predict {number} {example}",
    )
    for question in questions:
        at = question.at(sizes)
        help = f"{question.ask.format(**sizes)} In {question.unit}{places(question, at)}."
        parser.add_argument(f"--{question.name}", metavar=",".join(["N"] * (len(at) or 1)), help=help)
    parser.add_argument("--sizes", choices=["quick", "tiny"], default="quick", help="tiny: for tests")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="for PNG and JSON (default: results)")
    return parser.parse_args(arguments)


def given_guesses(
    args: argparse.Namespace, questions: Sequence[Question], sizes: dict[str, Any]
) -> dict[str, list[float]]:
    """Return the guesses among the options, by question. Exit with a sentence if one is not what was asked for."""
    guesses = {}
    for question in questions:
        if (text := getattr(args, question.name)) is not None:
            try:
                guesses[question.name] = parse(text, question.count(sizes))
            except ValueError as error:
                sys.exit(f"--{question.name}: {error}.")
    return guesses


def ask_all(
    questions: Sequence[Question], sizes: dict[str, Any], given: dict[str, list[float]], benchmark: Benchmark
) -> dict[str, list[float]]:
    """Ask at the terminal what is not given, and return all guesses; a question without one is left out."""
    seconds = f"then about {benchmark.seconds['quick']:.0f} s of measuring"
    print(f"{stage_name(benchmark)}: {counted(len(questions), 'question')}, {seconds}. Enter alone: no guess.")
    guesses = dict(given)
    for number, question in enumerate(questions, start=1):
        print("\n" + indented(f"{number}. {question.ask.format(**sizes)}"))
        print(indented(f"   Known: {question.known.format(**sizes)}"))
        if question.name not in given and (guess := ask(question, sizes)) is not None:
            guesses[question.name] = guess
    return guesses


def ask(question: Question, sizes: dict[str, Any]) -> list[float] | None:
    """Ask until the answer is one, and return it; None for an empty answer, or at the end of the input."""
    prompt = f"   {question.unit}{places(question, question.at(sizes))}: "
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            print()
            return None
        if not text:
            return None
        try:
            return parse(text, question.count(sizes))
        except ValueError as error:
            print(indented(f"   {error}."))


def places(question: Question, at: Sequence[float]) -> str:
    """Return what to say of the positions of a curve: ", at 16, 64 tokens in a page"."""
    return f", at {', '.join(map(str, at))} {question.x}" if at else ""


def parse(text: str, count: int) -> list[float]:
    """Return `count` numbers separated by commas. Raise ValueError with what is wrong."""
    words = text.split(",")
    if len(words) != count:
        wanted = "give one number" if count == 1 else f"give {count}, separated by commas"
        raise ValueError(f"{shortened(text)} has {counted(len(words), 'value')}: {wanted}")
    return [parse_number(word.strip()) for word in words]


def parse_number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{shortened(word)} is not a number from 0 up: write it like 12 or 3.5")
    return value


def indented(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="   ")


# ---- Measuring ----


def measure(benchmark: Benchmark, size_set: str) -> Found:
    """Measure every side in a process of its own. Exit with a sentence if one fails."""
    sides, model, count = {}, None, len(benchmark.sides)
    planned = benchmark.seconds["quick"]
    with StatusLine() as status, ticking(status) as activity:
        for place, side in enumerate(benchmark.sides, start=1):
            activity.append(f"{side} ({place} of {count}; about {planned:.0f} s in all)")
            run = Run(benchmark, 0, (side,))
            answers, problem = run_process(run, SETTINGS, size_set, PATIENCE * planned, environment(size_set))
            if problem:
                sys.exit(f"{problem}.")
            sides[side], model = answers[side]["figures"], answers[side]["model"]
    return Found(benchmark.sizes_of(size_set), sides, ModelConfig(**model), SETTINGS.place()[1])


@contextmanager
def ticking(status: StatusLine) -> Iterator[list[str]]:
    """Show the last line of the list that is returned, and the seconds that have passed, until the block ends."""
    activity: list[str] = []
    started, ended = time.monotonic(), threading.Event()

    def show() -> None:
        while not ended.wait(LOOK_EVERY):
            status.say(time.monotonic() - started, activity[-1])

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield activity
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a console that lacks a character shows "?" in its place
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what measures has to be ended as well
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        note("\nInterrupted: nothing is written.")
        status = 130
    sys.exit(status)

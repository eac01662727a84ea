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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from common.bench.ceilings import reference_ms
from common.bench.documents import write_json
from common.bench.hardware import hardware, slug
from common.bench.harness import Benchmark, Run, run_process
from common.bench.run import RESULTS, environment
from common.bench.settings import Settings
from common.errors import counted, shortened
from common.model import ModelConfig
from common.stages import stage_folder, stage_folders
from common.terminal import LOOK_EVERY, StatusLine, note, run_to_end

from .predict_report import draw, table
from .predictions import Found, Question

SETTINGS = Settings(device="cpu", dtype="float32")
PATIENCE = 10  # times the planned seconds, after which a process hangs
WIDTH = 100  # characters of a line of text


class Predictions(NamedTuple):
    """The questions about a stage, and the benchmark that answers them with sizes of one name."""

    stage: str
    benchmark: Benchmark
    questions: Sequence[Question]
    size_set: str = "quick"

    @property
    def sizes(self) -> dict[str, Any]:
        return self.benchmark.sizes_of(self.size_set)

    @property
    def seconds(self) -> float:
        return self.benchmark.seconds["quick"]


def main(arguments: Sequence[str]) -> int:
    """Ask, measure, and show all three; the first argument is the stage. Return the exit status."""
    predictions = predictions_of(arguments[0])
    args = parse_options(predictions, arguments[1:])
    predictions = predictions._replace(size_set=args.sizes)
    guesses = given_guesses(predictions, args)
    if sys.stdin.isatty():
        guesses = ask_all(predictions, guesses)
    started = time.monotonic()
    found, reference = measure(predictions)
    machine, drift = hardware(SETTINGS.place()[0]), 1 - min(reference) / max(reference)
    document = {
        "benchmark": f"predict {predictions.stage}",
        "size_set": predictions.size_set,
        "settings": SETTINGS.describe(),
        "hardware": machine,
        "sizes": found.sizes,
        "order": [list(found.sides)],
        "seconds": time.monotonic() - started,
        "reference_ms": reference,
        "questions": [question.result(found, guesses.get(question.name), drift) for question in predictions.questions],
        "sides": found.sides,
    }
    print(f"\n{table(document)}\n", flush=True)
    path = args.out / f"{slug(machine)}-predict-{predictions.stage[:2]}.json"
    write_json(path, document)
    draw(document, path.with_suffix(".png"))
    print(path.with_suffix(".png"), path, sep="\n")
    return 0


def predictions_of(stage: str) -> Predictions:
    """Return those of a stage given as "05" or as its folder. Exit with a sentence for any other."""
    try:
        folder = stage_folder(stage)
    except ValueError as error:
        sys.exit(f"{str(error).capitalize()}.")
    if folder not in stage_folders():
        sys.exit(f"`predict` measures the course's own stages: give their number, not {stage}.")
    module = import_module(f"common.learn.predictions.stage_{folder.name[:2]}")
    return Predictions(folder.name, module.BENCHMARK, module.QUESTIONS)


# ---- Guesses ----


def parse_options(predictions: Predictions, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line: an option for each question, with its text as help."""
    sizes, command = predictions.sizes, f"course.py predict {predictions.stage[:2]}"
    example = [f"--{one.name} {','.join(['1.5'] * one.count(sizes))}" for one in predictions.questions]
    parser = argparse.ArgumentParser(
        command,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        description="Guess what the benchmark of a stage measures, then see your guess beside arithmetic and the\n"
        f"measurement, in a table and in a plot. It takes about {predictions.seconds:.0f} s.",
        epilog="At a terminal, what no option answers is asked, and Enter alone is no guess. Without a terminal, for\n"
        f"a class: python3 {command} {' '.join(example)}",
    )
    for question in predictions.questions:
        help = f"{question.ask.format(**sizes)} Unit: {question.unit}{places(question, sizes)}."
        parser.add_argument(f"--{question.name}", metavar=",".join(["N"] * question.count(sizes)), help=help)
    parser.add_argument("--sizes", choices=["quick", "tiny"], default="quick", help="tiny: for tests")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="for PNG and JSON (default: results)")
    return parser.parse_args(arguments)


def given_guesses(predictions: Predictions, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the guesses among the options, by question. Exit with a sentence if one is not what was asked for."""
    guesses = {}
    for question in predictions.questions:
        if (text := getattr(args, question.name)) is not None:
            try:
                guesses[question.name] = parse(text, question.count(predictions.sizes))
            except ValueError as error:
                sys.exit(f"--{question.name}: {error}.")
    return guesses


def ask_all(predictions: Predictions, given: dict[str, list[float]]) -> dict[str, list[float]]:
    """Ask at the terminal what is not given, and return all guesses; a question without one is left out."""
    sizes, guesses = predictions.sizes, dict(given)
    seconds = f"then about {predictions.seconds:.0f} s of measuring"
    print(f"{predictions.stage}: {counted(len(predictions.questions), 'question')}, {seconds}. Enter alone: no guess.")
    for number, question in enumerate(predictions.questions, start=1):
        print("\n" + indented(f"{number}. {question.ask.format(**sizes)}"))
        print(indented(f"   Known: {question.known.format(**sizes)}"))
        if question.name not in given and (guess := ask(question, sizes)) is not None:
            guesses[question.name] = guess
    return guesses


def ask(question: Question, sizes: dict[str, Any]) -> list[float] | None:
    """Ask until the answer is one, and return it; None for an empty answer, or at the end of the input."""
    prompt = f"   {question.unit}{places(question, sizes)}: "
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


def places(question: Question, sizes: dict[str, Any]) -> str:
    """Return what to say of the positions of a curve: ", at 16, 64 tokens in a page"."""
    at = question.at(sizes)
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


def measure(predictions: Predictions) -> tuple[Found, list[float]]:
    """Measure every side in a process of its own; return also times of the reference product before and after each.

    Exit with a sentence if a side fails.
    """
    benchmark, seconds, size_set = predictions.benchmark, predictions.seconds, predictions.size_set
    sides, model, count = {}, {}, len(benchmark.sides)
    reference = [reference_ms(*SETTINGS.place())]
    with StatusLine() as status, ticking(status) as begin:
        for place, side in enumerate(benchmark.sides, start=1):
            begin(f"{side} ({place} of {count}; about {seconds:.0f} s in all)")
            run = Run(benchmark, 0, (side,))
            answers, problem = run_process(run, SETTINGS, size_set, PATIENCE * seconds, environment(size_set))
            if problem:
                sys.exit(f"{problem}.")
            reference.append(reference_ms(*SETTINGS.place()))
            sides[side], model = answers[side]["figures"], answers[side]["model"]
    return Found(predictions.sizes, sides, ModelConfig(**model), SETTINGS.place()[1]), reference


@contextmanager
def ticking(status: StatusLine) -> Iterator[Callable[[str], None]]:
    """Yield a function that says what begins; until the block ends, it is shown with the seconds that have passed."""
    activity = ""
    started, ended = time.monotonic(), threading.Event()

    def begin(text: str) -> None:
        nonlocal activity
        activity = text
        status.say(time.monotonic() - started, text)

    def show() -> None:
        while not ended.wait(LOOK_EVERY):
            if activity:
                status.say(time.monotonic() - started, activity)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield begin
    finally:
        ended.set()
        thread.join()


def run() -> int:
    """Run the command line; Ctrl-C writes nothing."""
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        note("\nInterrupted: nothing is written.")
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what measures has to be ended as well
    run_to_end(run)

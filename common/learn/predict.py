"""`python3 course.py predict 05`: guess what a stage's benchmark measures, then see it beside arithmetic.

The stage's own benchmark runs once with sizes that take under a minute, on the bundled model in float32 on the CPU, so
that the results of a class can be laid beside each other; or with --model smollm2, with the sizes for a real model. Its
plot has the guesses as marks. Without a terminal nothing is asked.
"""

import argparse
import signal
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from common.bench.documents import read_json, write_json
from common.bench.hardware import slug
from common.bench.harness import REPEATS, Benchmark
from common.bench.run import RESULTS
from common.bench.settings import Settings
from common.bench.suite import Suite
from common.errors import counted, expect_writable, shortened
from common.stages import stage_folder, stage_folders
from common.terminal import add_table, run_to_end

from .questions import STEADY, WIDTH, Question, drift, read_questions, result, table

SETTINGS = Settings(device="cpu", dtype="float32")
SIZES = {None: "predict", "smollm2": "large"}  # by model
PATIENCE = 10  # times the planned seconds: a process that takes longer hangs
Guesses = dict[str, list[float] | None]  # by question


def main(arguments: Sequence[str]) -> int:
    """Ask, measure, and show all three; the first argument is the stage. Return the exit status."""
    stage = stage_folder(arguments[0])
    if stage not in stage_folders():
        sys.exit(f"`predict` measures the course's own stages: give their number, not {arguments[0]}.")
    benchmark: Benchmark = import_module(f"{stage.name}.benchmark").BENCHMARK
    args = parse_options(benchmark, arguments[1:])
    out = args.out or RESULTS
    expect_writable(out / stage.name)
    size_set = SIZES[args.model]
    questions = read_questions(stage, benchmark.sizes_of(size_set), args.model)
    guesses: Guesses = {question["name"]: getattr(args, question["name"]) for question in questions}
    if sys.stdin.isatty():
        seconds = planned(benchmark, size_set)
        asked = f"{counted(len(questions), 'question')}, then about {seconds:.0f} s of measuring"
        print(f"{stage.name}: {asked}. Enter alone: no guess.")
        guesses = ask_all(questions, guesses)
    elif not any(guesses.values()):
        print("Without a terminal nothing is asked: an option takes each guess (`--help`).")
    document = measure(benchmark, size_set, args.model)
    if document is None:
        return 1
    document["benchmark"] = f"predict {stage.name}"
    if (changed := drift(document) - 1) > STEADY:
        document["headline"]["doubt"] = f"the machine's speed changed by {changed:.0%} meanwhile"
    document["questions"] = [result(question, document, guesses[question["name"]]) for question in questions]
    path = out / f"{slug(document['hardware'])}-predict-{stage.name[:2]}.json"
    write_json(path, document)
    print(f"\n{table(document)}\n", flush=True)
    benchmark.draw(document, path.with_suffix(".png"))
    print(*sorted(path.parent.glob(f"{path.stem}*.png")), path, sep="\n")
    return 0


def measure(benchmark: Benchmark, size_set: str, model: str | None) -> dict[str, Any] | None:
    """Measure every side in a process of its own; return the document, or None after a note of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = PATIENCE * planned(benchmark, size_set)
        settings = replace(SETTINGS, model=model)
        suite = Suite([replace(benchmark, draw=None)], settings, size_set, Path(folder), 1, seconds=seconds)
        return None if suite.run() else read_json(suite.document_of(benchmark))


# ---- Guesses ----


def parse_options(benchmark: Benchmark, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line: an option for each question, with its text as help."""
    stage, first = Path(benchmark.file).parent, argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_table(first, "course.py predict")
    model = first.parse_known_args(arguments)[0].model  # Each question is an option, and questions differ by model.
    size_set = SIZES[model]
    questions = read_questions(stage, benchmark.sizes_of(size_set), model)
    if not questions:
        sys.exit(f"`predict {stage.name[:2]}` asks only about the bundled model: leave out --model.")
    command = f"course.py predict {stage.name[:2]}"
    example = [f"--{one['name']} {','.join('1.5' for _ in one['at'])}" for one in questions]
    parser = argparse.ArgumentParser(
        command,
        usage=argparse.SUPPRESS,
        parents=[first],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        description="Guess what the benchmark of a stage measures, then see your guess beside arithmetic and the\n"
        f"measurement, in a table and in the benchmark's plot. It takes about {planned(benchmark, size_set):.0f} s.",
        epilog="At a terminal, what no option answers is asked, and Enter alone is no guess. Without a terminal, for\n"
        f"a class: python3 {command} {' '.join(example)}",
    )
    for one in questions:
        help = f"{one['ask']} Unit: {one['unit']}{places(one)}."
        metavar = ",".join("N" for _ in one["at"])
        parser.add_argument(f"--{one['name']}", type=partial(parse, one), metavar=metavar, help=help)
    return parser.parse_args(arguments)


def planned(benchmark: Benchmark, size_set: str) -> float:
    """Return the seconds that one repeat takes."""
    return benchmark.seconds.get(size_set, benchmark.seconds["predict"]) / REPEATS[size_set]


def ask_all(questions: Sequence[Question], given: Guesses) -> Guesses:
    """Ask at the terminal what is not given, and return all guesses; None for a question without one."""
    guesses = dict(given)
    for number, question in enumerate(questions, start=1):
        print("\n" + indented(f"{number}. {question['ask']}"))
        print(indented(f"   Known: {question['known']}"))
        if guesses.get(question["name"]) is None:
            guesses[question["name"]] = ask(question)
    return guesses


def ask(question: Question) -> list[float] | None:
    """Ask until the answer is one, and return it; None for an empty answer, or at the end of the input."""
    while True:
        try:
            text = input(f"   {question['unit']}{places(question)}: ").strip()
            return parse(question, text) if text else None
        except EOFError:
            print()
            return None
        except argparse.ArgumentTypeError as error:
            print(indented(f"   {error}."))


def places(question: Question) -> str:
    """Return what to say of the positions of a curve: ", at 16, 64 tokens in a page"."""
    return f", at {', '.join(map(str, question['at']))} {question['x']}" if question["x"] else ""


def parse(question: Question, text: str) -> list[float]:
    """Return the numbers of an answer, separated by commas. Raise ArgumentTypeError with what is wrong."""
    words, count = text.split(","), len(question["at"])
    if len(words) != count:
        wanted = "give one number" if count == 1 else f"give {count}, separated by commas"
        raise argparse.ArgumentTypeError(f"{shortened(text)} has {counted(len(words), 'value')}: {wanted}")
    return [parse_number(word.strip()) for word in words]


def parse_number(word: str) -> float:
    with suppress(ValueError):
        if 0 <= float(word) < float("inf"):
            return float(word)
    raise argparse.ArgumentTypeError(f"{shortened(word)} is not a number from 0 up: write it like 12 or 3.5")


def indented(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="   ")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM must also end the measuring processes.
    run_to_end(lambda: main(sys.argv[1:]))

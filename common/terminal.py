"""How a command of the course gets its options, prints, and ends: quietly if the reader of its output is gone.

It needs only Python: course.py runs before anything is installed.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import InvalidInput, out_of_memory, shortened

READER_GONE = 128 + 13  # how shells report SIGPIPE
LOOK_EVERY = 0.5  # seconds: how often a status is looked at
SAY_EVERY = 15.0  # seconds, in a log


def note(text: str) -> None:
    """Print to stderr, so that stdout holds only what the demos and benchmarks print."""
    print(text, file=sys.stderr, flush=True)


def run_to_end(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its status: 130 after Ctrl-C, READER_GONE once `head` has its lines.

    If input is refused, memory runs out, a disk is full or a folder cannot be written, exit with a sentence.
    """
    if hasattr(sys.stdout, "reconfigure"):  # a console that lacks a character shows "?" in its place
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            status = main() or 0
        except SystemExit as stop:
            status = stop.code
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Otherwise Python complains again at its end.
        status = READER_GONE
    except (OSError, InvalidInput) as error:
        status = f"error: {error}"
    except (MemoryError, RuntimeError) as error:
        if (said := out_of_memory(error)) is None:
            raise
        status = f"error: {said}"
    sys.exit(status)


def parser_of(command: str, description: str = "", *tables: str) -> argparse.ArgumentParser:
    """Return the parser of a command, with the options in these tables of options.toml, or in the one of its name."""
    form = argparse.RawDescriptionHelpFormatter
    usage = argparse.SUPPRESS if command.startswith("course.py") else None  # course.py shows it itself
    parser = argparse.ArgumentParser(command, usage=usage, description=description, formatter_class=form)
    for table in tables or (command,):
        add_table(parser, table)
    return parser


def add_table(parser: Any, table: str) -> None:
    """Add the options in this table of options.toml to a parser, or to a group of one."""
    from .toml import read_toml  # It needs a package before Python 3.11.

    for names, how in read_toml(Path(__file__).with_name("options.toml"))[table].items():
        parser.add_argument(
            *names.split(),
            **how | {key: KINDS[how[key]] for key in ("type", "action", "help") if how.get(key) in KINDS},
        )


def positive(text: str) -> int:
    """Read an option's value: the type of a count in argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def absolute(text: str) -> Path:
    """Return a path that means the same to workers, whose current folder may be another one."""
    return Path(os.path.expanduser(text)).absolute()


def named_folder(text: str) -> tuple[str, Path]:
    """Return the parts of NAME=FOLDER."""
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise argparse.ArgumentTypeError(f"give NAME=FOLDER, not {shortened(text)}")
    return name, absolute(folder)


# The names that the tables of options.toml use.
KINDS = {
    "int": int, "float": float, "path": Path, "positive": positive, "words": shlex.split, "seconds": seconds,
    "absolute path": absolute, "named folder": named_folder, "either": argparse.BooleanOptionalAction,
    argparse.SUPPRESS: argparse.SUPPRESS,
}  # fmt: skip


def markdown(rows: Sequence[Sequence]) -> str:
    """Return a table, the first row being its header."""
    header, *body = [[str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *body])


def paint(text: str, colour: str) -> str:
    """Wrap text in a terminal's colour code, unless there is no terminal or NO_COLOR asks for none."""
    plain = not colour or not sys.stdout.isatty() or os.environ.get("NO_COLOR")
    return text if plain else f"\033[{colour}m{text}\033[0m"


def show(lines: list[str]) -> None:
    """Print the lines of a diff, at a terminal in colours and through a pager."""
    import pydoc  # Its import takes as long as all others together.

    colours = {"+": "32", "-": "31", "@": "36", " ": ""}
    os.environ.setdefault("LESS", "FRX")  # F, X: text that fits on the screen stays there; R: colours
    pydoc.pager("".join(f"{paint(line, colours.get(line[:1], '1'))}\n" for line in lines))


class StatusLine:
    """One line on a terminal that is written over; in a log, a line when an activity is new, and every 15 s."""

    def __init__(self):
        self.live = sys.stderr.isatty()
        self.activities, self.said = set(), 0.0

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def clear(self) -> None:
        """Leave the line empty, for a note."""
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def say(self, seconds: float, text: str) -> None:
        activity = text.split()[0]
        if self.live:
            print(f"\r\033[K{seconds:5.0f} s   {text[:70]}", end="", file=sys.stderr, flush=True)
        elif activity not in self.activities or seconds - self.said >= SAY_EVERY:
            note(f"{seconds:5.0f} s   {text}")
            self.activities.add(activity)
            self.said = seconds

"""Say what pip is doing: on its own it is silent for the minute in which it unpacks."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

LOOK_EVERY = 0.5  # seconds
SAY_EVERY = 15.0  # seconds, in a log
SHOWN_LINES = 15  # of what pip said, if it fails


def note(text: str) -> None:
    """Print to stderr, so that stdout holds only what the demos and benchmarks print."""
    print(text, file=sys.stderr, flush=True)


def run_pip(command: list[str], venv: Path, advice: str, environment: Mapping[str, str] | None = None) -> None:
    """Run pip and say every moment what it is at. If it fails, exit with its last lines and `advice`."""
    # pip decides by itself which lines a terminal gets; through a pipe they are always the same.
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    before, lines, started = count_installed(venv), [], time.monotonic()
    with subprocess.Popen([*command, *options], env=environment, **pipes) as child, StatusLine() as status:
        reader = threading.Thread(target=collect, args=(child.stdout, lines), daemon=True)
        reader.start()
        while reader.is_alive():
            reader.join(LOOK_EVERY)
            status.say(time.monotonic() - started, describe(lines, max(0, count_installed(venv) - before)))
    if child.returncode:
        sys.exit("\n".join([*lines[-SHOWN_LINES:], advice]))


def collect(stream, lines: list[str]) -> None:
    for line in stream:
        lines.append(line.rstrip())


def count_installed(venv: Path) -> int:
    """Count the packages in an environment that are there to their last file, which is RECORD."""
    records = "site-packages/*.dist-info/RECORD"
    return sum(1 for pattern in (f"lib/python3*/{records}", f"Lib/{records}") for _ in venv.glob(pattern))


def describe(lines: list[str], installed: int) -> str:
    """Say what pip is at, from the lines that it has printed and the number of packages that it has installed."""
    for line in reversed(lines):
        if packages := re.match(r"Installing collected packages: (.+)", line):
            names = packages[1].split(", ")
            if installed >= len(names):
                return "checking what was unpacked"
            return f"unpacking {installed + 1} of {len(names)}: {names[installed]}"
        if file := re.match(r"Saved \S*?([^/\\\s]+)\.whl", line):
            return f"saving {file[1].split('-')[0]}"
        if file := re.match(r"\s*(?:Downloading|Using cached) (?:\S*/)?([^/\s]+\.whl) \((.+)\)", line):
            return f"downloading {file[1].split('-')[0]} ({file[2]})"
        if line.startswith(("Collecting ", "Processing ")):
            count = sum(earlier.startswith(("Collecting ", "Processing ")) for earlier in lines)
            return f"choosing versions: {count} package{'s' * (count != 1)} so far"
    return "starting pip"


class StatusLine:
    """One line on a terminal that is written over; in a log, a line when an activity is new, and every 15 s."""

    def __init__(self):
        self.live = sys.stderr.isatty()
        self.activities, self.said = set(), 0.0

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_) -> None:
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

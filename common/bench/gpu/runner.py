"""Runs parts one after another, each in a process of its own, and loses nothing of what is complete."""

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from common.bench.documents import rounded, write_atomically
from common.bench.hardware import ROOT, hardware, slug
from common.bench.harness import stop_group
from common.loader.device import choose_device

from .parts import ALL_SECONDS, PARTS, PATIENCE
from .run import Run

LEAST_SECONDS = 15.0  # no part is begun with less time left
TOO_LONG = "it took longer than"


class Runner:
    """The parts on one machine, with their documents in one folder.

    sizes: "full" or "tiny". seconds: for everything; a part's own limit is in proportion to it.
    """

    def __init__(self, folder: Path, sizes: str, seconds: float = ALL_SECONDS):
        device, _, self.place = choose_device()
        self.folder, self.sizes, self.seconds = folder, sizes, seconds
        self.hardware = hardware(device)
        self.name = slug(self.hardware) + ("-tiny" if sizes == "tiny" else "")
        self.ends = time.monotonic() + seconds

    def run_all(self, names: list[str], again: bool = False) -> int:
        """Runs the parts that are not complete, draws all, and reports. The exit status: 1 if one is not complete."""
        print(f"{len(names)} parts, {self.place}", file=sys.stderr, flush=True)
        problems: dict[str, str] = {}
        for number, name in enumerate(names, start=1):
            document = None if again else self.complete(name)
            title = f"{number} of {len(names)}  {name}: {PARTS[name].about}"
            if document:
                print(f"{title}: complete already", file=sys.stderr, flush=True)
            else:
                print(f"{title}, about {PARTS[name].seconds:.0f} s on an H200", file=sys.stderr, flush=True)
                if problem := self.measure(name):
                    problems[name] = problem
                    print(f"    {name} failed: {problem}", file=sys.stderr, flush=True)
        for name in names:
            if problem := draw(self.path(name)):
                problems.setdefault(name, problem)
        self.report(names, problems)
        return 1 if problems else 0

    def path(self, name: str) -> Path:
        return self.folder / f"{self.name}-{name}.json"

    def part_sizes(self, name: str) -> dict[str, Any]:
        module = PARTS[name].module
        sizes = module.TINY if self.sizes == "tiny" else module.SIZES
        return json.loads(json.dumps(sizes))  # as they are read back: tuples are lists, keys are strings

    def complete(self, name: str) -> dict[str, Any] | None:
        """The part's document, if it was completed with these sizes, by this commit."""
        document = read(self.path(name))
        if not document or not document["complete"] or document["sizes"] != self.part_sizes(name):
            return None
        return document if document["hardware"]["commit"] == self.hardware["commit"] else None

    # ---- Measuring ----

    def measure(self, name: str) -> str | None:
        """Runs one part; None if it is complete now, else a sentence that says why it is not."""
        left = self.ends - time.monotonic()
        if left < LEAST_SECONDS:
            return f"it was not begun: {self.seconds:.0f} s for all parts were over (give more with --minutes)"
        limit = min(left, PATIENCE * PARTS[name].seconds * self.seconds / ALL_SECONDS)
        partial = self.path(name).with_suffix(".partial.json")
        document = {
            "benchmark": "common.bench.gpu",
            "part": name,
            "complete": False,
            "error": None,
            "settings": {"model": "", "device": self.hardware["device"], "dtype": "", "load_format": "auto"},
            "hardware": self.hardware,
            "sizes": self.part_sizes(name),
            "seconds": 0.0,
            "headline": {},
            "figures": {},
        }
        write_atomically(partial, json.dumps(document) + "\n")
        status = self.run_process(name, partial, limit)
        document = read(partial) or document
        if document["complete"]:
            os.replace(partial, self.path(name))
            return None
        if status is None:
            document["error"] = f"{TOO_LONG} {limit:.0f} s and was ended"
        document["error"] = document["error"] or f"its process ended with {status}"
        write_atomically(partial, json.dumps(document, indent=1) + "\n")
        return document["error"]

    def run_process(self, name: str, partial: Path, limit: float) -> int | None:
        """The exit status, or None if it took longer than `limit` seconds; whatever it started has ended with it."""
        command = [sys.executable, "-m", __package__, "--measure", name, "--out", str(partial.absolute())]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # nothing here needs the network, or waits for it
        if self.hardware["device"] != "cuda":
            # Kernels then run in Python; and of what is tiny, threads take longer to wait for each other than to work.
            environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr.fileno(), start_new_session=True)
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            stop_group(child)
            return None
        except KeyboardInterrupt:
            stop_group(child)
            raise

    # ---- Reporting ----

    def report(self, names: list[str], problems: dict[str, str]) -> None:
        """Writes what all parts in the folder found, in short, and prints it."""
        summary: dict[str, Any] = {"benchmark": "common.bench.gpu", "hardware": self.hardware, "parts": {}}
        for name in PARTS:
            document = read(self.path(name))
            if document is None and name not in names:
                continue
            row = {"status": "failed" if name in problems else "complete", "error": problems.get(name)}
            if document and name not in problems:
                row |= {key: document[key] for key in ("seconds", "headline")}
                row["commit"] = document["hardware"]["commit"]
            summary["parts"][name] = row
            numbers = ", ".join(f"{key} {short(value)}" for key, value in row.get("headline", {}).items())
            print(f"{name:<13} {row['status']:<9} {numbers}{row['error'] or ''}", file=sys.stderr)
        text = json.dumps(rounded(summary), indent=1) + "\n"
        write_atomically(self.folder / f"{self.name}.json", text)
        print(json.dumps(json.loads(text), separators=(",", ":")))


def draw(path: Path) -> str | None:
    """Draws the part whose document this is beside it, if it is complete; a sentence that says what went wrong."""
    document = read(path)
    module = PARTS[document["part"]].module if document and document.get("complete") else None
    if not hasattr(module, "draw"):
        return None
    machine = path.stem.removesuffix(f"-{document['part']}")
    others = {name: read(path.with_name(f"{machine}-{name}.json")) or {} for name in PARTS}
    try:
        module.draw(document, path.with_suffix(".png"), others)
    except Exception as error:  # a picture that cannot be drawn is no reason to lose the others
        traceback.print_exc()
        return f"its plot could not be drawn: {type(error).__name__}: {error}"
    return None


def draw_all(folder: Path) -> int:
    """Draws all documents in the folder, of whichever machine they are. The exit status."""
    paths = [path for path in sorted(folder.glob("*.json")) if "part" in (read(path) or {})]
    problems = {path.name: problem for path in paths if (problem := draw(path))}
    for name, problem in problems.items():
        print(f"{name}: {problem}", file=sys.stderr)
    print(f"drawn: {len(paths) - len(problems)} of {len(paths)} documents", file=sys.stderr)
    return 1 if problems or not paths else 0


def short(value: float | None) -> str:
    return "none" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def read(path: Path) -> dict[str, Any] | None:
    """A document, or None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def measure_part(name: str, path: Path) -> int:
    """What a child does: measures one part, and writes its document to `path`. The exit status."""
    run = Run(path, json.loads(path.read_text(encoding="utf-8")))
    try:
        PARTS[name].module.measure(run)
    except Exception as error:
        traceback.print_exc()
        run.document["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        run.keep()
        return 1
    run.document["complete"] = True
    run.keep()
    return 0

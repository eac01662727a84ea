"""Runs benchmarks one after another, every side in a process of its own, and loses nothing of what is done.

After every process its answers are in the journal, `<results file>.partial.json`. What ended after Ctrl-C, or with an
error, goes on from there when the same command is given on the same commit. A benchmark whose sides are all measured
gets its document, its plot and its entry in the machine's results file, and leaves the journal.
"""

import datetime
import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common.model import ModelConfig

from . import summary
from .ceilings import ceilings, reference_ms
from .documents import read_json, rounded, write_json
from .hardware import ROOT, hardware, slug, slugify
from .harness import REPEATS, Benchmark, Run, aggregate, alternate, run_process
from .settings import Settings
from .timing import free_memory

RESULTS = ROOT / "results"  # where a machine's results file is, unless --out says otherwise
PATIENCE = 2.0  # a process that takes as many times as long as expected, where there is a limit, is ended
LEAST_SECONDS = 15.0  # no process is begun with less time left
UNKNOWN = 60.0  # seconds of a benchmark that does not say how long it takes


@dataclass
class Suite:
    """Benchmarks on one machine.

    out: the folder of the results file; if it is not the usual one, the documents of all benchmarks go there, too.
    repeats: None: as many as the size set says. together: all sides of a benchmark in one process, which loads its
    model once. seconds: the limit for everything.
    """

    benchmarks: Sequence[Benchmark]
    settings: Settings
    size_set: str
    out: Path
    repeats: int | None = None
    together: bool = False
    seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device, _ = self.settings.place()
        self.machine = hardware(device) | self.settings.describe()
        suffix = {"full": "", "gpu": ""}.get(self.size_set, f"-{self.size_set}")
        self.path = self.out / f"{result_name(self.machine, self.settings)}{suffix}.json"
        self.journal = self.path.with_suffix(".partial.json")
        self.ends = None if self.seconds is None else time.monotonic() + self.seconds
        self.spent = self.due = 0.0  # seconds of the processes so far: measured, and planned

    # ---- What is there already ----

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Return the journal: by benchmark its sizes, its order, and the answers by repeat and side."""
        facts = {key: self.machine[key] for key in ("commit", "torch", "torch_threads", "model", "dtype", "cpu_cores")}
        journal = read_json(self.journal) or {}
        same = journal.get("machine") == facts and journal.get("schema") == summary.SCHEMA
        return journal if same else {"schema": summary.SCHEMA, "machine": facts, "benchmarks": {}}

    def answers(self, benchmark: Benchmark) -> dict[str, dict[str, dict]]:
        """Return {repeat: {side: answer}} of a benchmark so far; what was measured with other sizes does not count."""
        begun = {"sizes": benchmark.sizes_of(self.size_set), "order": self.order(benchmark)}
        entry = self.kept["benchmarks"].setdefault(benchmark.name, begun | {"answers": {}, "seconds": 0.0})
        if any(entry[key] != value for key, value in begun.items()):
            entry |= begun | {"answers": {}, "seconds": 0.0}
        return entry["answers"]

    def order(self, benchmark: Benchmark) -> list[list[str]]:
        usual = benchmark.sizes_of(self.size_set).get("repeats", REPEATS[self.size_set])
        return alternate(benchmark.sides_of(self.size_set), usual if self.repeats is None else self.repeats)

    def document_of(self, benchmark: Benchmark) -> Path | None:
        """Return where the benchmark's document goes: with those that are committed, or to `out`; None for quick."""
        if self.size_set == "quick":
            return None
        if self.out == RESULTS:
            return benchmark.results / f"{self.path.stem}.json"
        return self.out / f"{self.path.stem}-{benchmark.name}.json"

    def found(self) -> dict[str, Any]:
        """Return the results file as it is, or an empty one. Raise InvalidInput if the file is something else."""
        if self.path.exists():
            return summary.read_summary(self.path)
        kind = {"format": summary.FORMAT, "schema": summary.SCHEMA, "size_set": self.size_set}
        return kind | {"machine": self.machine, "drift": 1.0, "benchmarks": {}}

    def complete(self, benchmark: Benchmark) -> str | None:
        """Return the date of an entry of these sizes by this commit; None if there is none, or its document is gone."""
        entry = self.found()["benchmarks"].get(benchmark.name, {})
        wanted = {"sizes": rounded(benchmark.sizes_of(self.size_set)), "commit": self.machine["commit"]}
        document = self.document_of(benchmark)
        there = document is None or document.exists()
        return entry["date"] if there and all(entry.get(key) == value for key, value in wanted.items()) else None

    # ---- Measuring ----

    def run(self, again: bool = False) -> int:
        """Measure what is not complete; return the exit status: 1 if a side could not be measured."""
        todo = []
        for benchmark in self.benchmarks:
            if (date := self.complete(benchmark)) and not again:
                say(f"{benchmark.name}: complete already, on {date} and this commit (--again measures it again)")
            else:
                todo.append(benchmark)
        runs = [run for benchmark in todo for run in self.runs(benchmark)]
        pending = [run for run in runs if not self.done(run)]
        if pending:
            self.machine |= ceilings(*self.settings.place())
            kept = f", {len(runs) - len(pending)} were measured before" if len(pending) < len(runs) else ""
            say(f"{len(pending)} processes to measure{kept}; {self.left(pending)}")
        for number, run in enumerate(pending, start=1):
            if run.benchmark.name not in self.problems:
                self.measure(run, f"{number:>3} of {len(pending)}", pending[number:])
            if run.benchmark not in (later.benchmark for later in pending[number:]):
                self.finish(run.benchmark)
        if (found := self.found()).get("failed", {}) != self.problems:
            write_json(self.path, found | {"failed": self.problems})
        return 1 if self.problems else 0

    def runs(self, benchmark: Benchmark) -> list[Run]:
        """Return the processes that it takes, in order."""
        parts = [
            (repeat, (tuple(sides),) if self.together else [(side,) for side in sides])
            for repeat, sides in enumerate(self.order(benchmark))
        ]
        return [Run(benchmark, repeat, sides) for repeat, groups in parts for sides in groups]

    def done(self, run: Run) -> bool:
        return set(run.sides) <= self.answers(run.benchmark).get(str(run.repeat), {}).keys()

    def measure(self, run: Run, number: str, later: Sequence[Run]) -> None:
        """Run one process; its answers go to the journal, what went wrong to `problems`."""
        name, there = run.benchmark.name, self.answers(run.benchmark).setdefault(str(run.repeat), {})
        missing = Run(run.benchmark, run.repeat, tuple(side for side in run.sides if side not in there))
        start = time.monotonic()
        left = None if self.ends is None else self.ends - start
        if left is not None and left < LEAST_SECONDS:
            self.problems[name] = f"it was not begun: the {self.seconds:.0f} s for everything are over (see --minutes)"
            return
        # In this process: a child's own threads, left from what it has measured, can double the time of a product.
        device, dtype = self.settings.place()
        before = reference_ms(device, dtype)
        free_memory(device)
        answers, problem = self.run_process(missing, self.limit(run, left))
        reference = {"reference_ms": [before, reference_ms(device, dtype)]}
        seconds = time.monotonic() - start
        self.spent, self.due = self.spent + seconds, self.due + self.planned(run)
        there |= {side: answer | reference for side, answer in answers.items() if "error" not in answer}
        self.kept["benchmarks"][name]["seconds"] += seconds
        write_json(self.journal, self.kept)
        if problem:
            self.problems[name] = problem
        sides = ", ".join(run.sides) if len(run.sides) < 4 else f"{len(run.sides)} sides"
        later = [each for each in later if each.benchmark.name not in self.problems]
        say(f"{number}   {name:<22} repeat {run.repeat + 1}   {sides:<24} {seconds:6.1f} s   {self.left(later)}")

    def run_process(self, run: Run, limit: float | None) -> tuple[dict[str, dict], str | None]:
        return run_process(run, self.settings, self.size_set, limit, self.environment)

    # ---- The time that is left ----

    def planned(self, run: Run) -> float:
        """Return the seconds of a process, by what its benchmark says of all of them."""
        return run.benchmark.seconds.get(self.size_set, UNKNOWN) / len(self.runs(run.benchmark))

    def limit(self, run: Run, left: float | None) -> float | None:
        """Return the seconds after which a process hangs, or its machine is much slower; --minutes gives each more."""
        if left is None:
            return None
        whole = sum(benchmark.seconds.get(self.size_set, UNKNOWN) for benchmark in self.benchmarks)
        return min(left, PATIENCE * self.planned(run) * max(1.0, self.seconds / whole))

    def left(self, runs: Sequence[Run]) -> str:
        """Return how long these processes take, if the pace so far goes on."""
        pace = self.spent / self.due if self.due else 1.0
        seconds = pace * sum(map(self.planned, runs))
        return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"

    # ---- Writing ----

    def finish(self, benchmark: Benchmark) -> None:
        """Write a benchmark's document, plot and entry, if all of its sides are measured."""
        name = benchmark.name
        if name in self.problems:
            return say(f"{name} failed: {self.problems[name]}")
        kept = self.kept["benchmarks"][name]
        repeats = [kept["answers"][str(repeat)] for repeat in range(len(kept["order"]))]
        entry = summary.headline_entry(benchmark, kept["sizes"], repeats)
        document = self.document_of(benchmark)
        if document:
            write_json(document, self.compose(benchmark, repeats) | {"headline": entry, "seconds": kept["seconds"]})
            if problem := draw(benchmark, document):
                self.problems[name] = problem
        else:
            entry["figures"] = sides_of(repeats)
        entry |= {key: kept[key] for key in ("sizes", "order", "seconds")}
        entry |= {"commit": self.machine["commit"], "date": now(), "document": document and shown(document)}
        times = [ms for repeat in repeats for answer in repeat.values() for ms in answer["reference_ms"]]
        entry["reference_ms"] = [min(times), max(times)]
        found = self.found()
        found["machine"] = self.machine
        found["benchmarks"] = dict(sorted({**found["benchmarks"], name: entry}.items()))
        each = [one["reference_ms"] for one in found["benchmarks"].values()]
        found["drift"] = max(high for _, high in each) / min(low for low, _ in each)
        write_json(self.path, found)
        del self.kept["benchmarks"][name]
        if self.kept["benchmarks"]:
            write_json(self.journal, self.kept)
        else:
            self.journal.unlink(missing_ok=True)

    def compose(self, benchmark: Benchmark, repeats: Sequence[Mapping[str, dict]]) -> dict[str, Any]:
        """Return the document of one benchmark."""
        sizes, (_, dtype) = benchmark.sizes_of(self.size_set), self.settings.place()
        settings = self.settings.of_sizes(sizes)
        model = next(iter(repeats[0].values()))["model"]
        derived = [
            benchmark.derive(ModelConfig(**model), dtype, sizes, summary.figures_of(repeat)) for repeat in repeats
        ]
        return {
            "benchmark": benchmark.name,
            "size_set": self.size_set,
            "settings": settings.describe(),
            "hardware": self.machine,
            "model": model,
            "sizes": sizes,
            "order": self.order(benchmark),
            "missing": {side: answer["missing"] for side, answer in repeats[0].items() if "missing" in answer},
            "reference_ms": [{side: answer["reference_ms"] for side, answer in repeat.items()} for repeat in repeats],
            "sides": sides_of(repeats),
            "figures": aggregate(derived),
        }


def sides_of(repeats: Sequence[Mapping[str, dict]]) -> dict[str, Any]:
    """Return the figures of each side that every repeat has, aggregated."""
    figures = [summary.figures_of(repeat) for repeat in repeats]
    sides = [side for side in figures[0] if all(side in each for each in figures)]
    return {side: aggregate([each[side] for each in figures]) for side in sides}


def draw(benchmark: Benchmark, path: Path) -> str | None:
    """Draw a document beside it; a sentence that says what went wrong."""
    if benchmark.draw is None:
        return None
    try:
        benchmark.draw(json.loads(path.read_text()), path.with_suffix(".png"))
    except Exception as error:  # a picture that cannot be drawn is no reason to lose the others
        traceback.print_exc()
        return f"its plot could not be drawn: {type(error).__name__}: {error}"
    say(f"{shown(path)} and its plot")
    return None


def result_name(machine: dict, settings: Settings) -> str:
    """Name the hardware, then what was asked for beyond the defaults: such runs replace no other's file."""
    asked = [Path(settings.model or "").name, settings.dtype if settings.dtype != "auto" else ""]
    return "-".join([slug(machine), *(slugify(text) for text in asked if text)])


def shown(path: Path) -> str:
    """Return the path from the repository's root; elsewhere the name alone: results are published."""
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def now() -> str:
    return datetime.datetime.now().isoformat(timespec="minutes")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

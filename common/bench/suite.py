"""Runs benchmarks one after another, every side in a process of its own, and loses nothing of what is done.

What a side has answered is a file in the folder `<results file>.partial/` as soon as its process has ended: after
Ctrl-C, or an error, the same command on the same commit goes on with those that are missing. A benchmark whose sides
are all measured gets its document, its plot and its entry in the machine's results file, and its folder goes.
"""

import json
import math
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import expect_writable
from common.model import ModelConfig
from common.terminal import note

from . import summary
from .ceilings import ceilings, reference_ms
from .documents import read_json, rounded, write_json
from .hardware import ROOT, hardware, slug
from .harness import REPEATS, Benchmark, Figures, Run, aggregate, alternate, run_process
from .settings import Settings
from .timing import free_memory

RESULTS = ROOT / "results"  # where a machine's results file is, unless --out says otherwise
PATIENCE = 2.0  # With a limit, a process is ended after this many times the expected seconds.
MIN_SECONDS = 15.0  # no process is begun with less time left
MAX_SAID = 500  # characters of what is wrong
UNKNOWN = 60.0  # seconds of a benchmark that does not say how long it takes
# Beside sizes and order, these must be the same to resume.
CONDITIONS = ("commit", "torch", "torch_threads", "model", "load_format", "dtype", "cpu_cores")


@dataclass
class Suite:
    """Benchmarks on one machine.

    out: the folder of the results file; if it is not the usual one, the documents of all benchmarks go there, too.
    repeats: None: as many as the size set says. together: all sides of a benchmark in one process, which loads its
    model once. seconds: the limit for everything. after: called after each process.
    """

    benchmarks: Sequence[Benchmark]
    settings: Settings
    size_set: str
    out: Path
    repeats: int | None = None
    together: bool = False
    seconds: float | None = None
    after: Callable[[], object] = bool

    def __post_init__(self) -> None:
        self.place = self.settings.place()
        self.machine = hardware(self.place[0]) | self.settings.describe()
        suffixes = {"gpu": "", self.settings.size_set("full"): "", self.settings.size_set("quick"): "-quick"}
        suffix = suffixes.get(self.size_set, f"-{self.size_set}")
        self.path = self.out / f"{result_name(self.machine, self.settings)}{suffix}.json"
        self.partial = self.path.with_suffix(".partial")
        self.ends = time.monotonic() + (self.seconds or math.inf)
        self.problems: dict[str, str] = {}  # by benchmark
        self.spent = self.due = 0.0  # seconds of the processes so far: measured, and planned

    # ---- What there is to do, and what is there already ----

    def order(self, benchmark: Benchmark) -> list[list[str]]:
        usual = benchmark.sizes_of(self.size_set).get("repeats", REPEATS[self.size_set])
        sides = benchmark.headline.sides if self.size_set.endswith("quick") else benchmark.sides
        return alternate([*sides], usual if self.repeats is None else self.repeats)

    def runs(self, benchmark: Benchmark) -> list[Run]:
        """Return the processes that it takes, in order."""
        return [
            Run(benchmark, repeat, group)
            for repeat, sides in enumerate(self.order(benchmark))
            for group in ([tuple(sides)] if self.together else [(side,) for side in sides])
        ]

    def file(self, run: Run, side: str) -> Path:
        return self.partial / run.benchmark.name / f"{run.repeat}-{side}.json"

    def conditions(self, benchmark: Benchmark) -> dict[str, Any]:
        """Return what is kept beside an answer: one that was measured under other conditions does not count."""
        work = {"sizes": rounded(benchmark.sizes_of(self.size_set)), "order": self.order(benchmark)}
        return work | {name: self.machine[name] for name in CONDITIONS}

    def answers(self, run: Run) -> dict[str, dict]:
        """Return the answers by side that a process has given, now or before."""
        found = {side: read_json(self.file(run, side)) for side in run.sides}
        conditions = self.conditions(run.benchmark)
        return {side: answer for side, answer in found.items() if answer and answer["conditions"] == conditions}

    def document_of(self, benchmark: Benchmark) -> Path | None:
        """Return where the benchmark's document goes: with those that are committed, or to `out`; None for quick."""
        if self.size_set.endswith("quick"):
            return None
        if self.out == RESULTS:
            return benchmark.results / f"{self.path.stem}.json"
        return self.out / f"{self.path.stem}-{benchmark.name}.json"

    def found(self) -> dict[str, Any]:
        """Return the results file as it is, or an empty one. Raise InvalidInput if the file is something else."""
        if self.path.exists():
            return summary.read_summary(self.path)
        return summary.new_summary(self.size_set, self.machine)

    def complete(self, benchmark: Benchmark) -> str | None:
        """Return the date of an entry of these sizes by this commit, in which nothing is wrong; None if there is none,
        or its document is gone."""
        entry, document = self.found()["benchmarks"].get(benchmark.name, {}), self.document_of(benchmark)
        wanted = rounded(benchmark.sizes_of(self.size_set)), self.machine["commit"]
        same = (entry.get("sizes"), entry.get("commit")) == wanted and (document is None or document.exists())
        return entry["date"] if same and not wrong_in(entry["figures"]) else None

    # ---- Measuring ----

    def run(self, again: bool = False) -> int:
        """Measure what is not complete; return the exit status: 1 if a side could not be measured.

        Raise InvalidInput if nothing can be written in the folder of the results.
        """
        expect_writable(self.path)
        todo = []
        for benchmark in self.benchmarks:
            if (date := self.complete(benchmark)) and not again:
                note(f"{benchmark.name}: complete already, on {date} and this commit (--again measures it again)")
            else:
                todo.append(benchmark)
        runs = [run for benchmark in todo for run in self.runs(benchmark)]
        pending = [run for run in runs if len(self.answers(run)) < len(run.sides)]
        if todo:
            self.machine |= ceilings(*self.place)
            before = f", {len(runs) - len(pending)} were measured before" if len(pending) < len(runs) else ""
            note(f"{len(pending)} process{'es' * (len(pending) != 1)} to measure{before}; {self.left(pending)}")
        for benchmark in todo:
            for number, run in enumerate(pending, start=1):
                if run.benchmark is benchmark and benchmark.name not in self.problems:
                    self.measure(run, f"{number:>3} of {len(pending)}", pending[number:])
                    self.after()
            if benchmark.name not in self.problems:
                self.finish(benchmark)
            if problem := self.problems.get(benchmark.name):
                note(f"{benchmark.name} failed: {problem}")
        return 1 if self.problems else 0

    def measure(self, run: Run, number: str, later: Sequence[Run]) -> None:
        """Run one process; each answer becomes a file, what went wrong goes to `problems`."""
        name, start = run.benchmark.name, time.monotonic()
        if self.ends - start < MIN_SECONDS:
            self.problems[name] = f"it was not begun: the {self.seconds:.0f} s for everything are over (see --minutes)"
            return
        there = self.answers(run)
        missing = run._replace(sides=tuple(side for side in run.sides if side not in there))
        # In this process: a child's own threads, left from what it has measured, can double the time of a product.
        before = reference_ms(*self.place)
        free_memory(self.place[0])
        answers, problem = run_process(missing, self.settings, self.size_set, self.limit(run))
        after, taken = reference_ms(*self.place), time.monotonic() - start
        kept = {"reference_ms": [before, after], "seconds": taken / len(missing.sides)}
        for side, answer in answers.items():
            if "error" not in answer:
                write_json(self.file(run, side), answer | kept | {"conditions": self.conditions(run.benchmark)})
        if problem:
            self.problems[name] = problem
        self.spent, self.due = self.spent + taken, self.due + self.planned(run)
        sides = ", ".join(run.sides) if len(run.sides) < 4 else f"{len(run.sides)} sides"
        left = self.left([each for each in later if each.benchmark.name not in self.problems])
        note(f"{number}   {name:<22} repeat {run.repeat + 1}   {sides:<24} {taken:6.1f} s   {left}")

    def planned(self, run: Run) -> float:
        """Return the seconds of a process, by what its benchmark says of all of them."""
        return run.benchmark.seconds.get(self.size_set, UNKNOWN) / len(self.runs(run.benchmark))

    def limit(self, run: Run) -> float | None:
        """Return the seconds after which a process is ended: it hangs, or is far too slow. --minutes can raise them."""
        if self.seconds is None:
            return None
        whole = sum(benchmark.seconds.get(self.size_set, UNKNOWN) for benchmark in self.benchmarks)
        return min(self.ends - time.monotonic(), PATIENCE * self.planned(run) * max(1.0, self.seconds / whole))

    def left(self, runs: Sequence[Run]) -> str:
        """Return how long these processes take, if the pace so far goes on."""
        seconds = sum(map(self.planned, runs)) * (self.spent / self.due if self.due else 1)
        return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"

    # ---- Writing ----

    def finish(self, benchmark: Benchmark) -> None:
        """Write the document, the plot and the entry of a benchmark whose sides are all measured."""
        sizes, order = benchmark.sizes_of(self.size_set), self.order(benchmark)
        repeats: list[dict[str, dict]] = [{} for _ in order]  # answers by side, for each repeat
        for run in self.runs(benchmark):
            repeats[run.repeat] |= self.answers(run)
        model = next(iter(repeats[0].values()))["model"]
        document = summary.document_of(
            benchmark.name,
            benchmark.headline,
            sizes,
            order,
            repeats,
            size_set=self.size_set,
            settings=self.settings.of_sizes(sizes).describe(),
            hardware=self.machine,
            model=model,
        )
        if wrong := wrong_in(document["sides"]):
            self.problems[benchmark.name] = "; ".join(wrong)[:MAX_SAID]
        if document["sides"] and (path := self.document_of(benchmark)):
            given, each = (ModelConfig(**model), self.place[1]), map(summary.figures_of, repeats)
            document["figures"] = aggregate([benchmark.derive(sizes, figures, *given) for figures in each])
            write_json(path, document)
            if problem := draw(benchmark, path):
                self.problems[benchmark.name] = problem
        write_json(self.path, summary.with_entry(self.found(), document))
        shutil.rmtree(self.partial / benchmark.name)
        with suppress(OSError):  # Other benchmarks still have files in it.
            self.partial.rmdir()


def wrong_in(sides: Mapping[str, Figures]) -> list[str]:
    """Return the sentences that sides of a document have among their figures as "wrong"."""
    return [said for side in sides.values() for each in side.get("wrong", {}).get("values", ()) for said in each]


def draw(benchmark: Benchmark, path: Path) -> str | None:
    """Draw a document beside it; a sentence that says what went wrong."""
    if benchmark.draw is None:
        return None
    try:
        benchmark.draw(json.loads(path.read_text()), path.with_suffix(".png"))
    except Exception as error:  # a picture that cannot be drawn is no reason to lose the others
        traceback.print_exc()
        return f"its plot could not be drawn: {type(error).__name__}: {error}"
    note(f"{path} and its plot")
    return None


def result_name(machine: dict, settings: Settings) -> str:
    """Name the hardware, then what was asked for beyond the defaults: such runs replace no other's file."""
    asked = [
        Path(settings.model or "").name,
        *(each for each in (settings.load_format, settings.dtype) if each != "auto"),
    ]
    name = re.sub(r"[^a-z0-9.]+", "-", "-".join(filter(None, asked)).lower())
    return f"{slug(machine)}.{name}" if name else slug(machine)

"""How every benchmark of the course measures, in one place.

A benchmark describes itself in a `Benchmark`: its sides, its sizes, its headline, its plot. Every side is measured in a
process of its own (`python -m MODULE --measure SIDE` prints one line of JSON), so that none finds memory, caches or
threads as another left them. The order turns round with every repeat (A B C, C B A, A B C), so that a machine that
slows down as it warms up does so for all of them. Ratios and predictions are computed inside one repeat and only then
aggregated, because what disturbs a machine disturbs neighbours in time alike. Before and after every process the parent
times a reference product: how far the machine itself changed.

suite.py runs the sides of one benchmark or of all of them; summary.py keeps what they found in the machine's results
file.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from common.errors import InvalidInput

from .description import described, filled
from .hardware import ROOT
from .settings import Settings
from .timing import free_memory

Figures = dict[str, Any]  # name -> number or list of numbers, from one repeat
Measured = Mapping[str, Figures]  # by side, from one repeat
REPEATS = {"full": 3, "quick": 2, "large": 3, "large-quick": 1, "predict": 1, "gpu": 1, "tiny": 1}
SHOWN_LINES = 15
STOP_SECONDS = 15.0  # for a child to end the server that it may have started


class Unavailable(Exception):
    """Raised by a side that cannot be had on this machine; the message is the reason."""


@dataclass(frozen=True)
class Headline:
    """The figure that sums a benchmark up: values of several sides, and the ratio of the last to the first.

    title: what the values are, such as "a whole answer of {compared_answer} tokens"; sizes are filled in. Sizes for
        another load may have a "headline" that stands for it.
    values: by side or another name, the baseline first: the side, its figure, and of a curve the place, or that of a
        size in a list of sizes, "compared_answer in answers"; without one the median. With --quick only these sides
        are measured.
    better: "more": the ratio is last over first; "less": first over last, so that above 1 is always better; "neither":
        last over first.
    in_turn: whether the values are measured in turn in one process, so that the machine's drift meets all of them.
    """

    title: str
    unit: str
    values: Mapping[str, Sequence[Any]]
    better: str = "more"
    in_turn: bool = False

    @property
    def sides(self) -> list[str]:
        return list(dict.fromkeys(side for side, *_ in self.values.values()))

    def titled(self, sizes: dict) -> str:
        return filled(sizes.get("headline", self.title), sizes)

    def values_of(self, sizes: dict, measured: Measured) -> dict[str, float]:
        """Return the values by side or name, from the figures of each side in one repeat."""
        found = {}
        for name, (side, figure, *places) in self.values.items():
            value = measured[side][figure]
            for place in places:
                if isinstance(place, str):
                    size, curve = place.split(" in ")
                    place = sizes[curve].index(sizes[size])
                value = value[place]
            found[filled(name, sizes)] = statistics.median(value) if isinstance(value, list) else value
        return found


@dataclass(frozen=True, eq=False)
class Benchmark:
    """What a benchmark supplies.

    file: the module's `__file__`. description: its question, method and expectation, which is its docstring.
    sides: what is compared; each function warms up, measures, and returns its figures, or raises Unavailable. Sentences
        among them as "wrong" are kept with the other figures, and the benchmark has failed.
    sizes: lengths and counts to measure, as JSON values: "full", and as changes to it "quick" (seconds a side,
        for the headline), "predict" (under a minute for all sides, for `course.py predict`), "gpu" (with the "model" to
        make from a config) and "tiny" (for tests). "large" is for a model with 20 times the weights and more, such as
        SmolLM2, on a CPU: as informative a load in minutes; "large-quick" changes "large".
    seconds: what all runs of a size set take together: two CPU cores, for "gpu" an H200.
    derive: (sizes, figures of each side, config, dtype) -> what combines the sides of one repeat: ratios, predictions.
    draw: draws the document that was written, as the PNG of that name.
    tables: rows of tables for the lesson, as description.py has them.
    report: the document -> {name: rows of a table, the header first}, for tables that take more than that.
    """

    file: str
    description: str
    sides: Mapping[str, Callable[[Settings, dict], Figures]]
    sizes: Mapping[str, dict[str, Any]]
    derive: Callable[..., Figures] = lambda *_: {}
    draw: Callable[[dict, Path], None] | None = None
    headline: Headline | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    report: Callable[[dict], Mapping[str, Sequence[Sequence[Any]]]] = lambda document: {}

    @classmethod
    def beside(cls, file: str, description: str, **fields: Any) -> "Benchmark":
        """Return the benchmark in this file, with what benchmark.toml beside it says (description.py)."""
        found = described(file)
        headline = found.pop("headline", None)
        return cls(**found, description=description, headline=headline and Headline(**headline), **fields)

    @property
    def module(self) -> str:
        """Return the name to import it by, such as "02_kv_cache.benchmark"."""
        return ".".join(Path(self.file).resolve().relative_to(ROOT).with_suffix("").parts)

    @property
    def name(self) -> str:
        """Return its folder's name, or the file's own where that says more than "benchmark"."""
        path = Path(self.file).resolve()
        return path.parent.name if path.stem == "benchmark" else path.stem

    @property
    def results(self) -> Path:
        return Path(self.file).resolve().parent / "results"

    def sizes_of(self, size_set: str) -> dict[str, Any]:
        """Return the sizes as they are read back from a document: tuples are lists, keys are strings."""
        large = self.sizes.get("large", {}) if size_set.startswith("large") else {}
        return json.loads(json.dumps({**self.sizes["full"], **large, **self.sizes.get(size_set, {})}))


class Run(NamedTuple):
    """One process: some sides of a benchmark in one repeat, one after another."""

    benchmark: Benchmark
    repeat: int
    sides: tuple[str, ...]


def alternate(sides: Sequence[str], repeats: int) -> list[list[str]]:
    """Return the order of the sides in each repeat: forwards, backwards, forwards ..."""
    if repeats < 1:
        raise InvalidInput(f"--repeats must be at least 1, not {repeats}")
    return [list(sides) if repeat % 2 == 0 else list(reversed(sides)) for repeat in range(repeats)]


# ---- One process that measures ----


def measure_sides(benchmark: Benchmark, sides: Sequence[str], settings: Settings, size_set: str) -> Iterator[dict]:
    """Measure the sides one after another, in this process; yield what each answers: figures, or why it has none."""
    sizes = benchmark.sizes_of(size_set)
    settings = settings.of_sizes(sizes)
    for side in sides:
        try:
            answer: dict[str, Any] = {"figures": benchmark.sides[side](settings, sizes)}
        except Unavailable as reason:
            answer = {"missing": str(reason)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        free_memory(settings.place()[0])
        yield answer | {"side": side, "model": asdict(settings.config())}


def run_process(
    run: Run, settings: Settings, size_set: str, limit: float | None = None
) -> tuple[dict[str, dict], str | None]:
    """Measure in a fresh process; return the answer of each side that gave one, and a sentence if a side failed.

    limit: seconds after which the process, with all that it started, is ended.
    """
    command = [sys.executable, "-m", run.benchmark.module, "--measure", ",".join(run.sides), "--sizes", size_set]
    command += settings.arguments()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+", errors="replace") as errors:
        with process(command, os.environ | environment(size_set), stdout=output, stderr=errors) as child:
            try:
                ended = f"ended with {child.wait(limit)}"
            except subprocess.TimeoutExpired:
                ended = f"took longer than {limit:.0f} s and was ended"
        output.seek(0)
        errors.seek(0)
        answers = {answer["side"]: answer for answer in map(parsed, output) if answer}
        last_lines = errors.readlines()[-SHOWN_LINES:]
    for side in run.sides:
        answer = answers.get(side, {"error": f"its process {ended}"})
        if "error" in answer:
            print(*last_lines, sep="", end="", file=sys.stderr)
            return answers, f"{side} could not be measured: {answer['error']}"
    return answers, None


def environment(size_set: str) -> dict[str, str]:
    """Return the variables that the children need beyond this process's own."""
    offline = {"HF_HUB_OFFLINE": "1"}  # nothing that is measured needs the network, or should wait for it
    if size_set == "tiny" and not torch.cuda.is_available():
        # Triton's kernels then run in Python. On tiny work, threads take longer to wait for each other than to compute.
        return offline | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return offline if size_set == "gpu" else {}


@contextmanager
def process(
    command: Sequence, environment: Mapping | None = None, *, leads_group: bool = True, **files: Any
) -> Iterator[subprocess.Popen]:
    """Give a process that Ctrl-C does not reach; when the block ends, end it and all that it started.

    leads_group: False keeps it in the group of this process: it ends even if this process is killed, and Ctrl-C
        reaches both.
    """
    child = None
    try:
        with deferred_interrupt():  # inside of `try`: at its end a delayed Ctrl-C is raised
            child = subprocess.Popen(command, start_new_session=leads_group, cwd=ROOT, env=environment, **files)
        yield child
    finally:
        if child is not None:  # it is None if the program could not be started
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)
            child.kill()
            if leads_group and hasattr(os, "killpg"):  # On Windows the console has sent Ctrl-C to the server.
                with suppress(ProcessLookupError, PermissionError):  # The whole group has ended.
                    os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: Popen interrupted as it starts a child would leave that child running."""
    pending: list[tuple] = []
    handler = signal.signal(signal.SIGINT, lambda *arguments: pending.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pending and callable(handler):  # SIG_IGN cannot be called.
        handler(*pending[0])


def parsed(line: str) -> dict | None:
    """Return an answer; None for anything else that a side printed."""
    with suppress(ValueError):
        value = json.loads(line)
        return value if isinstance(value, dict) and "side" in value else None
    return None


# ---- Repeats ----


def aggregate(repeats: Sequence[Figures]) -> Figures:
    """Return each figure of several repeats as a `spread`; leave out a side that is missing in one of them."""
    names = [name for name in repeats[0] if all(name in repeat for repeat in repeats)]
    return {name: spread([repeat[name] for repeat in repeats]) for name in names}


def curves(points: Sequence[Figures]) -> Figures:
    """Return each figure of several points of a load as a list, of the points that have it."""
    names = dict.fromkeys(name for point in points for name in point)
    return {name: [point[name] for point in points if name in point] for name in names}


def spread(values: list) -> dict[str, Any]:
    """Return median, minimum, maximum and all values of one figure; of a list of numbers, element by element.

    What is not made of numbers, such as the rows of a table, is only kept.
    """
    if isinstance(values[0], list):
        elements = [spread(list(column)) for column in zip(*values, strict=True)]
        if any("median" not in element for element in elements):
            return {"values": values}
        return {key: [element[key] for element in elements] for key in ("median", "min", "max")} | {"values": values}
    if not all(isinstance(value, (int, float)) for value in values):
        return {"values": values}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "values": values}

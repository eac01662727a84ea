"""What there is to see of results that may share an axis: panels of figures, ratios first, and what is odd in a class.

    gains      each stage against the one before it, under the load that its lesson is about
    stairs     each stage's throughput over the first stage's, under one load, for one client and for many
    absolute   throughput, time to first token and time per output token of every stage

A figure is {"median", "min", "max"}, and of a gain also "doubt", why it is noise, and "more", what else its table says.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from common.errors import counted

from .. import plots
from ..harness import spread
from ..plots import short
from .sources import COURSE, JUDGE, METRICS, RATES, SPREAD, Results

# What a stage adds, and what its headline shows to be better, in a few words; the entry's title says it exactly.
STORY = {
    "01": ("the loop", "cost of a token"),
    "02": ("KV cache", "a whole answer"),
    "03": ("streaming", "first text"),
    "04": ("continuous batching", "tokens/s, many clients"),
    "05": ("paged attention", "tokens/s, same memory"),
    "06": ("prefix cache", "first token, 90% cached"),
    "07": ("speculative decoding", "tokens/s, one client"),
    "08": ("disaggregation", "p99 gap, long prompts"),
}
OVER_FIRST = {"over_first": "Times stage 01"}  # one more metric beside METRICS
TINTS = [plots.COLORS[stage] for stage in ("04", "01", "05", "06", "03", "02", "07", "08")]  # of machines

MIN_CLASS = 4  # machines: among fewer, none can be called the odd one
ODD_DEVIATIONS = 4.5  # median absolute deviations from the median, in logarithms: three standard deviations
MIN_ODD_FACTOR = 1.33  # factor of the median: nearer machines are not odd, even in a class that agrees to the percent
FACTS = {  # facts in which a machine may differ from most others
    "cpu_cores": "CPU cores", "torch_threads": "threads", "gpu": "GPU", "dtype": "dtype", "torch": "torch",
    "commit": "commit",
}  # fmt: skip
CLEAR_FACTOR = 1.3  # A rate is named if it is above the median by more than this factor, or below it.
Figure = dict[str, Any]


class Column(NamedTuple):
    """Figures of one machine, or of the median of the class, one for each row of a panel; None where it has none."""

    label: str
    tint: str
    figures: list[Figure | None]
    chart: str = ""  # the title of the axes that it is drawn in
    is_median: bool = False


class Panel(NamedTuple):
    """rows: a stage with what it adds, and a few words beside it."""

    kind: str
    title: str
    text: str
    rows: list[tuple[str, str]]
    columns: list[Column]

    def notes(self) -> Iterator[str]:
        """Say why figures are noise."""
        for column in self.columns:
            for (row, _), figure in zip(self.rows, column.figures, strict=True):
                if figure and figure.get("doubt"):
                    yield f"? {row}, {column.label}: {figure['doubt']}."


class Group:
    """Results that may share an axis; from MIN_CLASS machines on they are a class, which has a median and odd ones.

    odd: by label, in what a machine is far from the median. tints: by label; of more machines than there are colours,
    some are grey, but not the odd ones.
    """

    def __init__(self, members: Sequence[Results]):
        self.members = members
        self.is_class = len(members) >= MIN_CLASS
        self.is_capstone = members[0].size_set == JUDGE
        self.with_course = [results for results in members if results.course]
        self.odd = odd_machines(members) if self.is_class else {}
        labels = sorted((results.label for results in members), key=lambda label: label not in self.odd)
        self.tints = dict.fromkeys(labels, plots.REFERENCE) | dict(zip(labels, TINTS, strict=False))

    def panels(self) -> list[Panel]:
        found = [gains(self)]
        if self.with_course:
            found += [stairs(self), absolute(self)]
        return [panel for panel in found if panel.rows]

    def differences(self, results: Results) -> list[str]:
        """Say what is different about a machine: facts that most others have otherwise, and rates."""
        found = []
        for key, name in FACTS.items():
            [(usual, _)] = Counter(each.machine.get(key) for each in self.members).most_common(1)
            if (own := results.machine.get(key)) != usual:
                found.append(f"{name} {own} (others: {usual})")
        for key, name in zip(RATES, ("memory bandwidth", "matrix products"), strict=True):
            factor = results.machine[key] / statistics.median(each.machine[key] for each in self.members)
            if abs(math.log(factor)) > math.log(CLEAR_FACTOR):
                found.append(f"{name} {factor:.1f} times the median")
        return found


def odd_machines(group: Sequence[Results]) -> dict[str, list[str]]:
    """Return by label the machines with a ratio far from the median of the class, and which."""
    far: dict[str, list[str]] = defaultdict(list)
    for name in sorted({name for results in group for name in results.entries} - {COURSE}):
        measured = [results for results in group if name in results.entries]
        logs = [math.log(results.entries[name]["ratio"]["median"]) for results in measured]
        middle = statistics.median(logs)
        deviation = statistics.median(abs(each - middle) for each in logs)
        limit = max(ODD_DEVIATIONS * deviation, math.log(MIN_ODD_FACTOR))
        for results, each in zip(measured, logs, strict=True):
            if len(measured) >= MIN_CLASS and abs(each - middle) > limit:
                factor = f"{math.exp(each):.1f} times, {math.exp(each - middle):.1f} of the median"
                far[results.label].append(f"{story(name)}: {factor}")
    return far


def story(name: str) -> str:
    """Return the number of a benchmark's stage, and what it adds."""
    return f"{name[:2]} {STORY[name[:2]][0]}" if name[:2] in STORY else name


def with_median(columns: list[Column]) -> list[Column]:
    """Add the median of a class to columns of one chart, which are those of its machines."""
    if len(columns) < MIN_CLASS:
        return columns
    medians: list[Figure | None] = []
    for figures in zip(*(column.figures for column in columns), strict=True):
        values = [figure["median"] for figure in figures if figure]
        medians.append(dict.fromkeys(SPREAD, statistics.median(values)) if len(values) >= MIN_CLASS else None)
    return [*columns, Column("median of the class", plots.TEXT, medians, columns[0].chart, is_median=True)]


# ---- Stage against stage ----


def gains(group: Group) -> Panel:
    names = {name for results in group.members for name in results.entries} - {COURSE}
    names = sorted(name for name in names if name[:2] != "01")  # Stage 01 has no stage before it.
    columns = [
        Column(results.label, group.tints[results.label], [gain(results.entries.get(name)) for name in names])
        for results in group.members
    ]
    rows = [(story(name), STORY.get(name[:2], ("", ""))[1]) for name in names]
    title = "What each stage makes better"
    text = (
        "Each stage against the one before it, under the load that its lesson is about: above 1 is better. A ratio is "
        "the median of the repeats' ratios, and so not always that of the medians. Upright: the median of a class."
    )
    if group.is_capstone:
        title, text = "The capstone", f"Over the reference: {group.members[0].entries[JUDGE]['title']}."
    return Panel("gains", title, text, rows, with_median(columns))


def gain(entry: Mapping[str, Any] | None) -> Figure | None:
    if entry is None:
        return None
    sides = " → ".join(short(side["median"]) for side in entry["sides"].values())
    return entry["ratio"] | {"doubt": entry["doubt"], "more": f"{sides} {entry['unit']}"}


# ---- All stages under one load ----


def stairs(group: Group) -> Panel:
    text = (
        "Throughput of each stage over the first one's, on the same questions. "
        "Stage 08 gives half of the machine to prompts: it trades throughput for steady gaps."
    )
    return under_load(group, OVER_FIRST, "stairs", "The staircase, under one load", text)


def absolute(group: Group) -> Panel:
    text = "The same load, machine beside machine, on logarithmic axes; medians over requests."
    return under_load(group, METRICS, "absolute", "In absolute figures", text)


def under_load(group: Group, metrics: Mapping[str, str], *texts: str) -> Panel:
    """Return a panel with a chart for each metric and end of the load, in which each machine has a staircase."""
    columns: list[Column] = []
    for metric, title in metrics.items():
        for at, clients in group.with_course[0].ends:
            chart = f"{title}, {counted(clients, 'client')}"
            columns += with_median([
                Column(results.label, group.tints[results.label], figures_of(results, metric, at), chart)
                for results in group.with_course
            ])  # fmt: skip
    rows = [(name[:2], STORY.get(name[:2], (name,))[0]) for name in group.with_course[0].course]
    return Panel(*texts, rows, columns)


def figures_of(results: Results, metric: str, at: int) -> list[Figure]:
    """Return a figure for each stage; a ratio to the first one's is that of each repeat."""
    if metric not in OVER_FIRST:
        return results.under_load(metric, at)
    rates = [figures["tokens_per_second"]["values"] for figures in results.course.values()]
    return [spread([mine[at] / first[at] for mine, first in zip(each, rates[0], strict=True)]) for each in rates]

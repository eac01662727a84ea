"""What there is to see of results that may share an axis: panels of figures, ratios first, and what is odd in a class.

    gains      each stage against the one before it, under the load that its lesson is about
    stairs     each stage's throughput over the first stage's, under one load, for one client and for many
    absolute   throughput, time to first token and time per output token of every stage

A figure is {"median", "min", "max"}, and where there is one: "doubt", why it is noise; "step", the factor of a step;
"more", what else its table says.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from common.errors import counted

from .. import plots
from ..harness import spread
from ..plots import short
from .sources import COURSE, JUDGE, SPREAD, Results

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
METRICS = {"tokens_per_second": "Output tokens/s", "ttft_ms": "First token, ms", "tpot_ms": "Output token, ms"}
TINTS = [plots.COLORS[stage] for stage in ("04", "01", "05", "06", "03", "02", "07", "08")]  # of machines
FEWEST, MOST = "#8a9bb0", plots.COLORS["08"]  # clients
LEAST_STEP = 1.1  # a smaller gain has no factor beside it
FEW = 3  # machines: more of them have dots in place of bars, and a row each in place of a column

LEAST = 4  # machines that make a class: among fewer, none can be called the odd one
ODD = 3.0  # robust standard deviations from the median
LEAST_DEVIATION = math.log(1.1)  # a class that agrees to the percent has odd ones only beyond three times this
CLEAR = 1.3  # the factor by which a rate or a speed has changed when it is worth a word
FACTS = {  # what most of the machines have, and one may not
    "cpu_cores": lambda count: counted(count, "core"),
    "torch_threads": lambda count: counted(count, "thread"),
    "gpu": lambda name: name or "no GPU",
    "dtype": str,
    "torch": lambda version: f"torch {version}",
    "commit": lambda commit: f"commit {commit}",
}
RATES = {"copy_bytes_per_second": "memory bandwidth", "matmul_flops_per_second": "matrix products"}
Figure = dict[str, Any]


class Column(NamedTuple):
    """Figures of one machine, one for each row of a panel; None where it has none.

    tint: None for the colours of the stages. chart: the axes that it is drawn in, where there are several; "" for all
    of them.
    """

    label: str
    tint: str | None
    figures: list[Figure | None]
    chart: str = ""
    is_median: bool = False


class Panel(NamedTuple):
    """rows: a stage with what it adds, and a few words beside it."""

    kind: str
    title: str
    text: str
    rows: list[tuple[str, str]]
    columns: list[Column]

    def table(self) -> list[Sequence[Any]]:
        """Return rows of cells: a column for each machine while they are few, and else a row."""
        figures = zip(*(column.figures for column in self.columns), strict=True)
        rows = [["", *self.columns], *([row, *each] for row, each in zip(self.rows, figures, strict=True))]
        return rows if len(self.columns) <= FEW else list(zip(*rows, strict=True))

    def notes(self) -> Iterator[str]:
        """Say why figures are noise."""
        for column in self.columns:
            for (row, _), figure in zip(self.rows, column.figures, strict=True):
                if figure and figure.get("doubt"):
                    yield f"? {row}, {column.label}: {figure['doubt']}."


class Group:
    """Results that may share an axis; from LEAST machines on they are a class, which has a median and odd ones.

    odd: by the place of each odd machine, in what it is far from the median. tints: a colour for each machine; of more
    machines than there are colours, only for the odd ones.
    """

    def __init__(self, members: Sequence[Results]):
        self.members = members
        self.is_class = len(members) >= LEAST
        self.is_capstone = members[0].size_set == JUDGE
        self.with_course = [results for results in members if results.course]
        self.odd = odd_machines(members)
        labels = [results.label for results in members]
        coloured = labels if len(labels) <= len(TINTS) else [labels[place] for place in self.odd]
        self.tints = dict.fromkeys(labels, plots.REFERENCE) | dict(zip(coloured, TINTS, strict=False))

    def panels(self) -> list[Panel]:
        found = [gains(self)]
        if self.with_course:
            found += [stairs(self), absolute(self)]
        return [panel for panel in found if panel.columns and panel.rows]

    def differences(self, results: Results) -> list[str]:
        """Say what is different about a machine: facts that most others have otherwise, rates, a busy machine."""
        many, found = len(self.members) > 2, []
        for key, say in FACTS.items():
            [(usual, _)] = Counter(each.machine.get(key) for each in self.members).most_common(1)
            if results.machine.get(key) != usual:
                found.append(f"{say(results.machine.get(key))} (other{'s' * many}: {say(usual)})")
        for key, name in RATES.items():
            rates = [each.machine[key] for each in self.members if each.machine.get(key)]
            if rate := results.machine.get(key):
                factor = rate / (statistics.median(rates) if many else rates[0])
                if abs(math.log(factor)) > math.log(CLEAR):
                    found.append(f"{name} {factor:.1f} times the {'median' if many else 'other'}")
        if results.drift > CLEAR:
            found.append(f"busy: its own speed changed by {results.drift - 1:.0%} meanwhile")
        return found


def story(name: str) -> str:
    """Return the number of a benchmark's stage, and what it adds."""
    return f"{name[:2]} {STORY[name[:2]][0]}" if name[:2] in STORY else name


def drift(entry: Mapping[str, Any]) -> float:
    """Return by how much the machine's speed changed between the sides of a repeat."""
    return entry["drift"]["max"]


# ---- Stage against stage ----


def gains(group: Group) -> Panel:
    names = {name for results in group.members for name in results.entries} - {COURSE}
    names = sorted(name for name in names if name[:2] != "01")  # it has none before it
    columns = []
    for results in group.members:
        figures: list[Figure | None] = []
        for name in names:
            entry = results.entries.get(name)
            figure = entry and entry["ratio"] | {"doubt": entry["doubt"]}
            if entry and (group.is_capstone or not group.is_class):
                sides = " → ".join(short(side["median"]) for side in entry["sides"].values())
                figure |= {"more": f"{sides} {entry['unit']}"}
            figures.append(figure)
        tint = group.tints[results.label] if len(group.members) > 1 else None
        columns.append(Column(results.label, tint, figures))
    if group.is_class:
        columns.append(median_of(columns))
    rows = [(story(name), STORY.get(name[:2], ("", ""))[1]) for name in names]
    if group.is_capstone:
        title = group.members[0].entries[JUDGE]["title"]
        return Panel("gains", "The capstone", f"Over the reference: {title}.", [("goodput", "")], columns)
    text = (
        "Each stage against the one before it, under the load that its lesson is about: above 1 is better. A ratio is "
        "the median of the repeats' ratios, and so not always that of the medians. "
    )
    text += "Upright: the median of the class." if group.is_class else ""
    return Panel("gains", "What each stage makes better", text, rows, columns)


def over_first(results: Results) -> list[tuple[int, list[Figure]]]:
    """Return, for the least and the most clients, each stage's throughput over the first stage's in each repeat."""
    rates = [figures["tokens_per_second"]["values"] for figures in results.course.values()]
    series = []
    for at, clients in results.ends:
        each = ([mine[at] / first[at] for mine, first in zip(rate, rates[0], strict=True)] for rate in rates)
        series.append((clients, list(map(spread, each))))
    return series


def stairs(group: Group) -> Panel:
    columns: list[Column] = []
    for results in group.with_course:
        *_, (most, figures) = ends = over_first(results)
        for before, now in pairwise(figures):
            factor = now["median"] / before["median"]
            now["step"] = f"{factor:.2g}×" if factor > max(drift(results.entries[COURSE]), LEAST_STEP) else ""
        for clients, figures in ends:
            tint = MOST if clients == most else FEWEST
            columns.append(Column(counted(clients, "client"), tint, figures, chart=results.label))
    text = (
        "Throughput of each stage over the first one's, on the same questions. "
        "A step has its factor beside it where it gains more than the machine's own speed changed meanwhile. "
        "Stage 08 gives half of the machine to prompts: it trades throughput for steady gaps."
    )
    if group.is_class:
        for label, tint in {column.label: column.tint for column in columns}.items():
            columns.append(median_of([each for each in columns if each.label == label], f"median, {label}", tint))
        text += " Wide and pale: the median of the class."
    return Panel("stairs", "The staircase, under one load", text, stages(group), columns)


def stages(group: Group) -> list[tuple[str, str]]:
    return [(name[:2], STORY.get(name[:2], (name,))[0]) for name in group.with_course[0].course]


def absolute(group: Group) -> Panel:
    columns = []
    for metric, title in METRICS.items():
        for at, clients in group.with_course[0].ends:
            for results in group.with_course:
                if all(metric in figures for figures in results.course.values()):
                    figures = [results.at_load(stage, metric, at) for stage in results.course]
                    chart = f"{title}, {counted(clients, 'client')}"
                    columns.append(Column(results.label, group.tints[results.label], figures, chart))
    text = "The same load, machine beside machine, on logarithmic axes; medians over requests."
    return Panel("absolute", "In absolute figures", text, stages(group), columns)


# ---- A class ----


def median_of(columns: Sequence[Column], label: str = "median of the class", tint: str = plots.TEXT) -> Column:
    """Return the class's median in each row that enough machines have."""
    medians: list[Figure | None] = []
    for figures in zip(*(column.figures for column in columns), strict=True):
        values = [figure["median"] for figure in figures if figure]
        medians.append(dict.fromkeys(SPREAD, statistics.median(values)) if len(values) >= LEAST else None)
    return Column(label, tint, medians, is_median=True)


def odd_machines(group: Sequence[Results]) -> dict[int, list[str]]:
    """Return by place in the group the machines with a ratio far from the class's median, and which; none of a few."""
    rows: dict[str, dict[int, float]] = {}
    for place, results in enumerate(group):
        for name in results.entries.keys() - {COURSE}:
            rows.setdefault(story(name), {})[place] = results.entries[name]["ratio"]["median"]
        for clients, figures in over_first(results)[-1:]:
            top = f"the staircase's top, {counted(clients, 'client')}"
            rows.setdefault(top, {})[place] = max(figure["median"] for figure in figures)
    far: dict[int, list[str]] = {}
    for name, values in sorted(rows.items()):
        for place, factor in odd_ones(values).items() if len(values) >= LEAST else ():
            far.setdefault(place, []).append(f"{name}: {values[place]:.1f} times, {factor:.1f} of the median")
    return far


def odd_ones(values: Mapping[int, float]) -> dict[int, float]:
    """Return those of the positive values by machine that are far from their median, as factors of it.

    Far is beyond ODD times the median absolute deviation of the logarithms, as a standard deviation.
    """
    median = statistics.median(values.values())
    logs = {place: math.log(value / median) for place, value in values.items()}
    deviation = max(1.4826 * statistics.median(map(abs, logs.values())), LEAST_DEVIATION)
    return {place: values[place] / median for place, log in logs.items() if abs(log) > ODD * deviation}

"""From results to what page and pictures draw: plain JSON values, the same for both.

A group holds results that may share an axis. Its panels, ratios first:

    gains      each stage against the one before it, under the load that its lesson is about
    stairs     each stage's throughput over the first stage's, under one load, for one client and for many
    machines   each machine's throughput over a baseline's, stage by stage
    absolute   throughput, time to first token and time per output token of every stage

A value is {"median", "min", "max"} and more; "machine" is a place in the group's list of machines, "entry" the name of
the benchmark whose JSON has the value.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.errors import counted

from ..harness import spread
from ..plots import short
from ..summary import doubt
from .classroom import LEAST, RATES, odd_machines
from .expected import most_tokens_per_second, predicted_ratio
from .machines import caption, describe
from .sources import COURSE, SPREAD, Results

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
METRICS = {
    "tokens_per_second": ("Throughput", "output tokens/s"),
    "ttft_ms": ("Time to first token", "ms"),
    "tpot_ms": ("Time per output token", "ms"),
}
LEAST_DRIFT = 1.1  # slowest over fastest of the reference product, from which on it is said at the top
SETS = {"quick": "the quick benchmark", "full": "the whole benchmark", "gpu": "the GPU benchmark"}


def compose(found: Sequence[Results], refused: Sequence[str]) -> dict[str, Any]:
    """Return everything that the page shows."""
    groups = dict.fromkeys(results.group for results in found)
    members = [[each for each in found if each.group == group] for group in groups]
    composed = [compose_group(group) for group in members]
    drifted = [sentence for members_of_one in members for sentence in map(drift_of, members_of_one) if sentence]
    return {"lead": lead(composed[0]), "drifted": drifted, "groups": composed, "refused": list(refused)}


def lead(group: Mapping[str, Any]) -> str:
    """Return the page's first sentence: how far the staircase leads with the most clients.

    A machine counts if the stage's own figure was compared, too. A median is one of a class; fewer are named.
    """
    found = {panel["kind"]: panel for panel in group["panels"]}
    if "stairs" not in found:
        return "Each stage against the one before it."
    stages, multiples = found["stairs"]["stages"], found["stairs"]["multiples"]
    medians = list(map(statistics.median, columns(multiples, -1)))
    best, clients = medians.index(max(medians)), counted(multiples[0]["series"][-1]["clients"], "client")
    rows = found.get("gains", {"rows": []})["rows"]
    having = {value["machine"] for row in rows if row["stage"] == stages[best] for value in row["values"]}
    counting = [one for one in multiples if one["machine"] in having] or multiples
    factors = [one["series"][-1]["values"][best]["median"] for one in counting]
    if len(factors) >= LEAST:
        where, factors = f", in the median of {len(factors)} machines", [statistics.median(factors)]
    else:
        labels = "; ".join(group["machines"][one["machine"]]["label"] for one in counting)
        where = f" ({labels})" if len(multiples) > 1 else ""
    factor = " and ".join(map(short, factors))
    return f"Stage {stages[best]} gives {clients} {factor} times the tokens per second of stage {stages[0]}{where}."


def drift_of(results: Results) -> str | None:
    """Say by how much a machine's speed changed while it was measured, and around which figures; None if it did not."""
    if results.drift is None or results.drift <= LEAST_DRIFT:
        return None
    touched = [
        f"{' '.join([name[:2], story(name)[0]]) if name != COURSE else 'all stages under one load'} by {found - 1:.0%} "
        f"(which measured {short(entry['ratio']['median'])} times)"
        for name, entry in sorted(results.entries.items())
        if (found := drift(entry) or 1.0) > LEAST_DRIFT
    ]
    around = f": around {', '.join(touched)}" if touched else ", and around no figure by more than 10%"
    return f"{results.label}: its own speed changed by {results.drift - 1:.0%} while it was measured{around}."


def compose_group(group: Sequence[Results]) -> dict[str, Any]:
    facts, size_set = group[0].machine, group[0].size_set
    device = "GPU" if facts["device"] == "cuda" else facts["device"].upper()
    weights = ", random weights" if facts["load_format"] == "dummy" else ""
    title = f"{device}: {SETS.get(size_set, size_set)}, {facts['model']} model{weights}"
    drifts = [f"{one.label} {one.drift - 1:.0%}" for one in group if (one.drift or 1.0) > LEAST_DRIFT]
    medians, odd = odd_machines(group, ratios(group))
    panels = gains(group, medians), stairs(group), machines(group), absolute(group)
    return {
        "title": title,
        "remark": f"{title}. Drift: {'; '.join(drifts)}" if drifts and len(group) < LEAST else title,
        "machines": [describe(results, group) for results in group],
        "panels": [panel for panel in panels if panel],
        "caption": caption(group, sorted({name for results in group for name in results.entries})),
        "odd": odd,
        "is_class": len(group) >= LEAST,
        "entries": [{name: followed(entry) for name, entry in results.entries.items()} for results in group],
    }


def ratios(group: Sequence[Results]) -> dict[str, dict[int, float]]:
    """Return each machine's ratio by the name of its row: what a class is compared by."""
    rows: dict[str, dict[int, float]] = {}
    for place, results in enumerate(group):
        for name, entry in results.entries.items():
            if name != COURSE:
                rows.setdefault(f"{name[:2]} {story(name)[0]}", {})[place] = entry["ratio"]["median"]
        for one in steps(results)[-1:]:
            top = max(value["median"] for value in one["values"])
            rows.setdefault(f"the staircase's top, {counted(one['clients'], 'client')}", {})[place] = top
    return dict(sorted(rows.items()))


def followed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of an entry's file, and what the file says of it, but for the figures of each side."""
    kept = {key: value for key, value in entry.items() if key not in ("figures", "file")}
    return {"file": entry["file"].name, "json": kept}


def story(name: str) -> tuple[str, str]:
    """Return what the stage of a benchmark adds, and what is better, in a few words."""
    return STORY.get(name[:2], (name, ""))


def panel(kind: str, title: str, text: str, group: Sequence[Results], names: Sequence[str], **more: Any) -> dict:
    return {"kind": kind, "title": title, "text": text, "caption": caption(group, names), **more}


def measured(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: values[key] for key in SPREAD}


# ---- Stage against stage ----


def gains(group: Sequence[Results], medians: Mapping[str, float]) -> dict[str, Any] | None:
    names = sorted({name for results in group for name in results.entries} - {COURSE})
    rows = []
    for name in names:
        with_it = [(place, results) for place, results in enumerate(group) if name in results.entries]
        entry, (added, better) = with_it[0][1].entries[name], story(name)
        row = {"stage": name[:2], "name": added, "better": better, "title": entry["title"], "unit": entry["unit"]}
        row |= {"values": [gain(results, place, name) for place, results in with_it]}
        rows.append(row | {"median": medians.get(f"{name[:2]} {added}")})
    text = (
        "Each stage against the one before it, under the load that its lesson is about: above 1 is better. "
        "Stage 01 has none before it: its row is how much dearer a token becomes in a long sequence. "
        "The line is what arithmetic predicts."
    )
    return panel("gains", "What each stage makes better", text, group, names, rows=rows) if rows else None


def gain(results: Results, place: int, name: str) -> dict[str, Any]:
    """Return one machine's ratio in one row, with its sides and what arithmetic predicts."""
    entry = results.entries[name]
    prediction = predicted_ratio(name, entry, results.machine)
    return measured(entry["ratio"]) | {
        "machine": place,
        "entry": name,
        "doubt": entry["doubt"],
        "drift": drift(entry),
        "sides": [{"name": side} | measured(values) for side, values in entry["sides"].items()],
        "predicted": prediction and prediction._asdict(),
    }


def drift(entry: Mapping[str, Any]) -> float | None:
    """Return by how much the machine's speed changed between the sides of a repeat; None where nothing is recorded."""
    return entry["drift"]["max"] if entry["drift"] else None


def stairs(group: Sequence[Results]) -> dict[str, Any] | None:
    with_course = [(place, results) for place, results in enumerate(group) if results.course]
    if not with_course:
        return None
    multiples = [
        {"machine": place, "entry": COURSE, "drift": drift(results.entries[COURSE]), "series": steps(results)}
        for place, results in with_course
    ]
    text = (
        "Throughput of each stage over the first one's, on the same questions. "
        "A step has its factor beside it where it gains more than the machine's own speed changed meanwhile."
    )
    more = {"stages": stages(group), "multiples": multiples, "median": None}
    if len(group) >= LEAST:
        more["median"] = [
            list(map(statistics.median, columns(multiples, i))) for i in range(len(multiples[0]["series"]))
        ]
        text += " Grey: the median of the class."
    return panel("stairs", "The staircase, under one load", text, group, [COURSE], **more)


def steps(results: Results) -> list[dict[str, Any]]:
    """Return, for the least and the most clients, each stage's throughput over the first stage's within each repeat."""
    rates = [figures["tokens_per_second"]["values"] for figures in results.course.values()]
    series = []
    for at, clients in results.ends:
        each = [[mine[at] / first[at] for mine, first in zip(rate, rates[0], strict=True)] for rate in rates]
        series.append({"clients": clients, "values": [measured(spread(values)) for values in each]})
    return series


def columns(multiples: Sequence[Mapping[str, Any]], series: int) -> Iterable[Sequence[float]]:
    """Return what all machines have, by stage."""
    return zip(*([value["median"] for value in one["series"][series]["values"]] for one in multiples), strict=True)


def stages(group: Sequence[Results]) -> list[str]:
    """Return the numbers of the stages that were measured under one load."""
    return [name[:2] for name in next(results.course for results in group if results.course)]


# ---- Machine against machine, and absolute figures ----


def machines(group: Sequence[Results]) -> dict[str, Any] | None:
    """Compare throughput with the most clients to a baseline: the median of a class, or else the first machine."""
    with_course = {place: results for place, results in enumerate(group) if results.course}
    if len(with_course) < 2:
        return None
    is_class, first = len(group) >= LEAST, next(iter(with_course))
    at, clients = group[first].ends[-1]
    rows = []
    for stage in group[first].course:
        each = {place: results.at_load(stage, "tokens_per_second", at) for place, results in with_course.items()}
        base = statistics.median(value["median"] for value in each.values()) if is_class else each[first]["median"]
        values = [
            over(group[place], place, value, base, drift(group[first].entries[COURSE]) if not is_class else None)
            for place, value in each.items()
            if is_class or place != first
        ]
        rows.append({"stage": stage[:2], "name": story(stage)[0], "better": f"1 = {short(base)} tokens/s"})
        rows[-1] |= {"title": f"1 is {short(base)}", "unit": "output tokens/s", "values": values, "median": None}
    lines = [] if is_class else rate_ratios(group, first)
    baseline = "the median of the class" if is_class else group[first].label
    text = f"Output tokens per second of {counted(clients, 'client')}, over {baseline}."
    text += " The lines are what memory bandwidth and matrix products alone predict." if lines else ""
    return panel("machines", "Machine against machine", text, group, [COURSE], rows=rows, lines=lines)


def over(
    results: Results, place: int, value: Mapping[str, float], base: float, drifted: float | None
) -> dict[str, Any]:
    """Return a figure over the baseline's, and why it is noise, if either machine drifted by more than it claims."""
    ratio = {key: value[key] / base for key in SPREAD}
    most = max(drift(results.entries[COURSE]) or 1.0, drifted or 1.0)
    return ratio | {"machine": place, "entry": COURSE, "doubt": doubt(ratio, most)}


def rate_ratios(group: Sequence[Results], baseline: int) -> list[dict[str, Any]]:
    """Return how many times as fast as the baseline each machine copies and multiplies."""
    base = group[baseline].machine
    return [
        {"machine": place, "value": results.machine[key] / base[key], "why": why}
        for key, why in RATES.items()
        for place, results in enumerate(group)
        if place != baseline and results.machine.get(key) and base.get(key)
    ]


def absolute(group: Sequence[Results]) -> dict[str, Any] | None:
    charts = []
    for which in (0, 1):
        for metric, (title, unit) in METRICS.items():
            series = [one for place, results in enumerate(group) for one in absolute_series(results, place, metric)]
            series = [one for one in series if one["end"] == which]
            if series:
                load = counted(series[0]["clients"], "client")
                charts.append({"title": f"{title}, {load}", "metric": title, "unit": unit, "series": series})
    if not charts:
        return None
    text = "The same load in absolute figures, on logarithmic axes; medians over requests."
    if any(one["bound"] for chart in charts for one in chart["series"]):
        text += " Dashed: what copy and product rates allow at most, with one token a request and step."
    return panel("absolute", "In absolute figures", text, group, [COURSE], stages=stages(group), charts=charts)


def absolute_series(results: Results, place: int, metric: str) -> Iterable[dict[str, Any]]:
    if not all(metric in figures for figures in results.course.values()):
        return
    for end, (at, clients) in enumerate(results.ends):
        values = [results.at_load(stage, metric, at) for stage in results.course]
        bound = None
        if metric == "tokens_per_second":
            bound = most_tokens_per_second(results.entries[COURSE], results.machine, clients)
        yield {"machine": place, "entry": COURSE, "clients": clients, "end": end, "values": values, "bound": bound}

"""What the load generator has found: one JSON document, the tables, and the four-panel plot.

The document names the model and the workload, not the URL: results are published. It names no hardware either: the
client does not know on what the server runs.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import plots
from .client import Target
from .conversations import Workload
from .metrics import LoadResult
from .plots import short

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "p50", "p90", "p99")
ENDPOINTS = {"completions": "completions", "chat": "chat completions"}
ARRIVALS = {"concurrency": "closed loop", "rate": "Poisson arrivals"}
UNITS = {"concurrency": "requests at once", "rate": "requests arriving per second"}
BUSY = 0.8  # of a core: from here on a chunk may wait for the load generator, which counts as the server's time
TINT = "#3d5a73"  # of no stage: whose server it is, the load generator does not know


def result_document(
    target: Target,
    workload: Workload,
    seed: int,
    axis: str,
    results: Mapping[float, LoadResult],
    objectives: Mapping[str, float],
    interrupted: bool,
) -> dict[str, Any]:
    """Return all that was measured, as JSON values; times in seconds. axis: "concurrency" or "rate", results' keys."""
    return {
        "benchmark": "common.bench.serve",
        "date": datetime.date.today().isoformat(),
        "model": target.model,
        "endpoint": target.endpoint,
        "workload": asdict(workload) | {"description": workload.describe(), "seed": seed},
        "axis": axis,
        "arrivals": ARRIVALS[axis],
        "objectives": dict(objectives),
        "points": [{axis: load} | point_figures(result, objectives) for load, result in results.items()],
        "interrupted": interrupted,
    }


def point_figures(result: LoadResult, objectives: Mapping[str, float]) -> dict[str, Any]:
    successful = result.successful
    return {
        "requests": len(result.records),
        "failed": len(result.records) - len(successful),
        "failures": result.failures,
        "seconds": result.seconds,
        "client_busy": result.client_seconds / result.seconds,  # 1.0 is one core, all that a single event loop can use
        "prompt_tokens": sum(record.prompt_tokens for record in successful),
        "output_tokens": sum(record.output_tokens for record in successful),
        "requests_per_second": result.request_throughput,
        "output_tokens_per_second": result.throughput,
        "total_tokens_per_second": result.total_throughput,
        "goodput": result.goodput(objectives) if objectives else None,
        **{name: None for name in LATENCIES},  # where nothing succeeded
        **result.summary(),
    }


# ---- Tables ----


def print_report(document: dict[str, Any]) -> None:
    """Print throughput, then latencies, a row for each point; then what failed, and what is not to be trusted."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(f"\n{document['model']}, {how(document)}", style="bold")
    console.print(document["workload"]["description"])
    headings = ["\nsent", "\nfailed", "prompt\ntok/req", "output\ntok/req", "\nreq/s", "output\ntok/s", "total\ntok/s"]
    headings += ["goodput\nreq/s"] if document["objectives"] else []
    console.print(new_table(document, headings, map(throughput_row, document["points"])))
    console.print("Latency in milliseconds", style="bold")
    for pair in (LATENCIES[:2], LATENCIES[2:]):
        values = [(name, which) for name in pair for which in STATISTICS]
        headings = [f"{name.upper() if which == 'mean' else ''}\n{which}" for name, which in values]
        rows = [[point[name] and 1e3 * point[name][which] for name, which in values] for point in document["points"]]
        console.print(new_table(document, headings, rows))
    failures = Counter()
    for point in document["points"]:
        failures.update(point["failures"])
    if failures:
        sent = sum(point["requests"] for point in document["points"])
        [(reason, times)] = failures.most_common(1)
        console.print(f"{failures.total()} of {sent} requests failed, {times} of them with: {reason}", style="bold red")
    for warning in busy(document):
        console.print(f"{warning}: a part of those latencies is its own", style="bold red")


def how(document: dict[str, Any]) -> str:
    return f"{ENDPOINTS[document['endpoint']]}, {ARRIVALS[document['axis']]}"


def busy(document: dict[str, Any]) -> list[str]:
    """Return a sentence if the load generator was at its limit, and chunks waited for it; otherwise nothing."""
    where = [f"{point[document['axis']]:g}" for point in document["points"] if point["client_busy"] > BUSY]
    return [f"the load generator was at its limit at {document['axis']} {', '.join(where)}"] if where else []


def throughput_row(point: dict[str, Any]) -> list[float]:
    answered = (point["requests"] - point["failed"]) or 1
    per_request = [point[f"{kind}_tokens"] / answered for kind in ("prompt", "output")]
    per_second = [point[f"{name}_per_second"] for name in ("requests", "output_tokens", "total_tokens")]
    goodput = [point["goodput"]] if point["goodput"] is not None else []
    return [point["requests"], point["failed"], *per_request, *per_second, *goodput]


def new_table(document: dict[str, Any], headings: list[str], rows: Iterable[list[float | None]]):
    """Return a table with these rows, one for each point; red where requests failed."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    axis = {"concurrency": "concur-\nrency", "rate": "rate\nreq/s"}[document["axis"]]
    for heading in [axis, *headings]:
        table.add_column(heading, justify="right", no_wrap=True)
    for point, row in zip(document["points"], rows, strict=True):
        cells = ["-" if value is None else short(value) for value in row]
        table.add_row(f"{point[document['axis']]:g}", *cells, style="red" if point["failed"] else None)
    return table


# ---- Plot ----


def draw(document: dict[str, Any], png: Path) -> None:
    """Draw total latency, inter-token latency, throughput and time to first token, against concurrency or rate."""
    axis, points = document["axis"], [point for point in document["points"] if point["e2el"]]
    if not points:
        raise ValueError("there is nothing to draw: no request succeeded")
    best = max(points, key=lambda point: point["output_tokens_per_second"])
    where = f"at concurrency {best[axis]:g}" if axis == "concurrency" else f"at {best[axis]:g} requests per second"
    message = f"Up to {short(best['output_tokens_per_second'])} output tokens per second, {where}"
    remark = "Lines: median and 99th percentile over all requests; the band reaches to the 90th. Seen by the client."
    with plots.page(png, footer(document), message, rows=2, columns=2, height=8, remark=remark) as panels:
        total, gaps, throughput, first = panels
        loads = [point[axis] for point in points]
        for panel in panels:
            plots.doubling(panel, loads)
            panel.update_datalim([(loads[0], 0)])  # so that there is room above a line that is flat
        percentile_lines(total, loads, [point["e2el"] for point in points])
        percentile_lines(gaps, loads, [point["itl"] for point in points], scale=1e3)
        percentile_lines(first, loads, [point["ttft"] for point in points])
        rates = [point["output_tokens_per_second"] for point in points]
        throughput.plot(loads, rates, color=TINT, marker="o", label="_")
        plots.axes(total, UNITS[axis], "seconds", "Total latency")
        plots.axes(gaps, UNITS[axis], "milliseconds", "Inter-token latency")
        plots.axes(throughput, UNITS[axis], "output tokens per second", "Throughput")
        plots.axes(first, UNITS[axis], "seconds", "Time to first token")


def percentile_lines(panel, loads: list[float], latencies: list[dict | None], scale: float = 1.0) -> None:
    """Leave a hole where a point has no value, such as the gaps of answers that came in one chunk."""
    values = {rank: [scale * (one or {}).get(rank, float("nan")) for one in latencies] for rank in STATISTICS}
    panel.plot(loads, values["p99"], color=TINT, linestyle="--", marker="o", markerfacecolor="white", label="p99")
    panel.plot(loads, values["p50"], color=TINT, marker="o", label="p50")
    panel.fill_between(loads, values["p50"], values["p90"], color=TINT, alpha=0.18, linewidth=0)


def footer(document: dict[str, Any]) -> str:
    """Return which model was asked what, when, and what was not answered."""
    failed = sum(point["failed"] for point in document["points"])
    notes = [f"{failed} requests failed and are not counted"] if failed else []
    notes += ["interrupted before the last point"] if document["interrupted"] else []
    notes += busy(document)
    parts = [f"Model {document['model']} over HTTP, {how(document)}", document["date"], *notes]
    return f"{document['workload']['description']}.\n{'; '.join(parts)}."

"""Measures a running server that speaks OpenAI's API: this course's, vLLM, SGLang, or any other.

    python -m common.bench.serve --url http://127.0.0.1:8000
    python -m common.bench.serve --url http://127.0.0.1:8000 --rate 1,2,4 --workload corpus
    python -m common.bench.serve --url http://127.0.0.1:8000 --concurrency 1,4,16 --plot sweep.png

One request is sent first, to see that the server answers and to warm it up. Then each concurrency (a closed loop of so
many clients) or each rate (Poisson arrivals, whether the server keeps up or not) is a run of its own, with prompts of
its own, so that none finds its prompts in a prefix cache. Another call with the same --seed does find them there.

Workloads: mixed (prompts and answers of 16 to N tokens), shared-prefix (the first half of all prompts is the same),
corpus (the questions that the bundled model was trained on, answers limited to the length of the right ones). A prompt
of N tokens is sent as N common English words, which are about as many tokens to most tokenizers (1.2 times as many to
the bundled one); how many they were is what the server reports.

Metrics are those of `vllm bench serve`, see metrics.py. Client and server on one machine share its processor.
The exit status is 1 if any request failed, and 130 after Ctrl-C, which reports the runs that were complete.
"""

import argparse
import datetime
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from common.errors import InvalidInput, expect_writable
from common.terminal import note, parser_of, run_to_end

from . import plots
from .client import Target, find_target, generate_load
from .documents import rounded, write_json
from .metrics import LATENCIES, LoadResult
from .plots import short
from .workloads import worded_jobs

CONCURRENCIES = [1, 4, 8, 16, 32, 64]
REQUESTS, REQUESTS_PER_CLIENT = 64, 4
AXES = {  # by the option that names the runs: how requests arrive, and the label of the plot's axis
    "concurrency": ("closed loop", "requests at once"),
    "rate": ("Poisson arrivals", "requests arriving per second"),
}
RATES = {  # columns of the first table
    "\nsent": "requests",
    "\nfailed": "failed",
    "\nreq/s": "requests_per_second",
    "output\ntok/s": "output_tokens_per_second",
}
DRAWN_EVERY = 0.5  # seconds: drawing takes milliseconds, in which no chunk's arrival is noticed
BUSY = 0.8  # of a core: above it chunks may wait for the load generator, which counts as the server's time


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. Raise InvalidInput if the server does not answer."""
    args = parse_arguments(arguments)
    [first] = worded_jobs(args.workload, 1, args.prompt_tokens, args.output_tokens, seed=args.seed)
    target = find_target(args.url, first, wanted(args))
    results: dict[float, LoadResult] = {}
    with suppress(KeyboardInterrupt):  # Complete runs are reported.
        measure(args, target, results)
    interrupted = len(results) < len(args.loads)
    if results:
        report(args, result_document(args, target, results, interrupted))
    if interrupted:
        note(f"interrupted: {len(results)} of {len(args.loads)} runs are complete")
        return 130
    return int(any(not record.success for result in results.values() for record in result.records))


# ---- The command line ----


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    tables = "python -m common.bench.serve", "of a server under load", "of the load generator"
    parser = parser_of(tables[0], __doc__, *tables)
    axis = parser.add_mutually_exclusive_group()
    axis.add_argument("--concurrency", metavar="N,N,...", type=partial(numbers, int), help="clients (1,4,8,16,32,64)")
    axis.add_argument("--rate", metavar="R,R,...", type=partial(numbers, float), help="requests arriving per second")
    args = parser.parse_args(arguments)
    args.axis = "rate" if args.rate else "concurrency"
    args.loads = args.rate or args.concurrency or CONCURRENCIES
    for path in filter(None, (args.plot, args.json)):
        expect_writable(Path(path))
    return args


def wanted(args: argparse.Namespace) -> Target:
    return Target(args.model or "", args.endpoint, api_key=args.api_key or os.environ.get("OPENAI_API_KEY"))


def numbers(kind: type, text: str) -> list:
    """Return the positive numbers between commas, each once and in order; whole ones as int, for labels."""
    try:
        values = sorted({kind(part) for part in text.split(",")})
    except ValueError:
        values = [0]
    if not 0 < values[0] <= values[-1] < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers such as 1,2,4")
    return [int(value) if value == int(value) else value for value in values]


# ---- The runs ----


def measure(args: argparse.Namespace, target: Target, results: dict[float, LoadResult]) -> None:
    """Add the result of each run to `results`, by its concurrency or rate."""
    for number, load in enumerate(args.loads, start=1):  # Run 0 was the first request.
        clients = load if args.axis == "concurrency" else 1
        count = max(clients, args.requests or max(REQUESTS, REQUESTS_PER_CLIENT * clients))
        work = {"seed": args.seed, "number": number, "ignore_eos": args.ignore_eos}
        jobs = worded_jobs(args.workload, count, args.prompt_tokens, args.output_tokens, **work)
        with tqdm(desc=f"{args.axis} {load:g}", total=count, mininterval=DRAWN_EVERY) as bar:
            arrivals = {args.axis: load, "seed": args.seed}
            results[load] = generate_load(args.url, jobs, target, **arrivals, answered=bar.update)


# ---- What they found ----


def result_document(
    args: argparse.Namespace, target: Target, results: dict[float, LoadResult], interrupted: bool
) -> dict[str, Any]:
    """Return all that was measured, as JSON values; times in seconds.

    It names neither the URL, since results are published, nor hardware: the client does not know the server's.
    """
    prompts = "" if args.workload == "corpus" else f"prompts of up to {args.prompt_tokens} words, "
    answers = f"answers of up to {args.output_tokens} tokens{', to full length' * args.ignore_eos}"
    return {
        "benchmark": "common.bench.serve",
        "date": datetime.date.today().isoformat(),
        "model": target.model,
        "endpoint": target.endpoint,
        "workload": f"{args.workload}: {prompts}{answers}",
        "sizes": {name: vars(args)[name] for name in ("prompt_tokens", "output_tokens", "ignore_eos", "seed")},
        "axis": args.axis,
        "arrivals": AXES[args.axis][0],
        "points": [{args.axis: load} | result.figures() for load, result in results.items()],
        "interrupted": interrupted,
    }


def report(args: argparse.Namespace, document: dict[str, Any]) -> None:
    """Print a row for each point, then what failed and what is not to be trusted; write the files."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console, axis, points = Console(highlight=False, markup=False), document["axis"], document["points"]
    console.print(f"\n{document['model']}, {document['endpoint']}, {document['arrivals']}", style="bold")
    console.print(f"{document['workload']}. Latencies in milliseconds:")
    for cells_of in (rate_cells, latency_cells):  # side by side they would not fit into 80 characters
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for heading in ("concur-\nrency" if axis == "concurrency" else "rate\nreq/s", *cells_of(points[0])):
            table.add_column(heading, justify="right", no_wrap=True)
        for point in points:
            table.add_row(f"{point[axis]:g}", *cells_of(point).values(), style="red" if point["failed"] else None)
        console.print(table)
    for warning in warnings(document):
        console.print(warning, style="bold red")
    if args.json == "-":
        print(json.dumps(rounded(document)))
    elif args.json:
        write_json(Path(args.json), document)
    if args.plot:
        draw(document, args.plot)


def rate_cells(point: dict[str, Any]) -> dict[str, str]:
    return {heading: short(point[name]) for heading, name in RATES.items()}


def latency_cells(point: dict[str, Any], names: Sequence[str] = LATENCIES) -> dict[str, str]:
    """Return by heading the milliseconds of median and 99th percentile of each latency; "-" where it has no values."""
    return {
        f"{name.upper()}\n{rank}": short(1e3 * point[name][rank]) if point[name] else "-"
        for name in names
        for rank in ("p50", "p99")
    }


def warnings(document: dict[str, Any]) -> list[str]:
    """Return what failed, most often for which reason, and where the load generator was at its own limit."""
    found, points = [], document["points"]
    failures = sum((Counter(point["failures"]) for point in points), Counter())
    for reason, times in failures.most_common(1):
        sent = sum(point["requests"] for point in points)
        found.append(f"{failures.total()} of {sent} requests failed, {times} of them with: {reason}")
    if where := [f"{point[document['axis']]:g}" for point in points if point["client_busy"] > BUSY]:
        limit = f"the load generator was at its limit at {document['axis']} {', '.join(where)}"
        found.append(f"{limit}: a part of those latencies is its own")
    return found + ["interrupted before the last point"] * document["interrupted"]


def draw(document: dict[str, Any], png: Path) -> None:
    """Draw total latency, inter-token latency, throughput and time to first token, against concurrency or rate."""
    axis, points = document["axis"], [point for point in document["points"] if point["e2el"]]
    if not points:
        raise InvalidInput("there is nothing to draw: no request succeeded")
    loads = [point[axis] for point in points]
    rates = [point["output_tokens_per_second"] for point in points]
    message = f"Up to {short(max(rates))} output tokens per second, at {axis} {loads[rates.index(max(rates))]:g}"
    remark = "Median and 99th percentile of requests, or of gaps; the band ends at the 90th. Seen by the client."
    asked = f"{document['workload']}.\nModel {document['model']} over HTTP, {document['endpoint']}"
    footer = "; ".join([f"{asked}, {document['arrivals']}", document["date"], *warnings(document)]) + "."
    with plots.page(png, footer, message, rows=2, columns=2, height=8, remark=remark) as (total, gaps, rate, first):
        plots.line(rate, loads, dict.fromkeys(("median", "min", "max"), rates), "server", "_")
        for panel, name, scale in ((total, "e2el", 1), (gaps, "itl", 1e3), (first, "ttft", 1)):
            # A point without a value leaves a hole: answers that came in one chunk have no gaps, for example.
            p50, p90, p99 = (
                [scale * (point[name] or {}).get(rank, math.nan) for point in points] for rank in ("p50", "p90", "p99")
            )
            plots.line(panel, loads, {"median": p99, "min": p99, "max": p99}, "server", "p99")
            plots.line(panel, loads, {"median": p50, "min": p50, "max": p90}, "server", "p50")
        titles = {"Total latency": "seconds", "Inter-token latency": "milliseconds"}
        titles |= {"Throughput": "output tokens per second", "Time to first token": "seconds"}
        for panel, (title, unit) in zip((total, gaps, rate, first), titles.items(), strict=True):
            plots.doubling(panel, loads)
            panel.update_datalim([(loads[0], 0)])  # With 0 among the data, a flat line has room above it.
            plots.axes(panel, AXES[axis][1], unit, title)


if __name__ == "__main__":
    run_to_end(main)

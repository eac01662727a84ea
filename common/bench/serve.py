"""Measures a running server that speaks OpenAI's API: this course's, vLLM, SGLang, or any other.

    python -m common.bench.serve --url http://127.0.0.1:8000
    python -m common.bench.serve --url http://127.0.0.1:8000 --rate 1,2,4 --workload corpus --slo ttft=0.2,tpot=0.05
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
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.terminal import note, run_to_end

from .client import Connections, Target, ask, closed_loop, open_loop, poisson_arrivals, run, served_models
from .documents import write_json
from .metrics import LoadResult
from .workloads import WORKLOADS, Job, worded_jobs

CONCURRENCIES = [1, 4, 8, 16, 32, 64]
REQUESTS, REQUESTS_PER_CLIENT = 64, 4
OBJECTIVES = ("ttft", "tpot", "e2el")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
ARRIVALS = {"concurrency": "closed loop", "rate": "Poisson arrivals"}
UNITS = {"concurrency": "requests at once", "rate": "requests arriving per second"}
BUSY = 0.8  # of a core: from here on a chunk may wait for the load generator, which counts as the server's time
TINT = "#3d5a73"  # of no stage: whose server it is, the load generator does not know


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    import httpx

    args = parse_arguments(arguments)
    results: dict[float, LoadResult] = {}
    try:
        [first] = worded_jobs(args.workload, 1, args.prompt_tokens, args.output_tokens, seed=args.seed)
        target = run(find_target(args, first))
        with suppress(KeyboardInterrupt):  # what is complete is reported
            measure(args, target, results)
        interrupted = len(results) < len(args.loads)
        if results:
            report(args, result_document(args, target, results, interrupted))
    except (ValueError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        note(f"error: {refusal(error, args.url)}")
        return 1
    if interrupted:
        note(f"interrupted: {len(results)} of {len(args.loads)} runs are complete")
        return 130
    return int(any(not record.success for result in results.values() for record in result.records))


# ---- The command line ----


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m common.bench.serve", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--url", required=True, help="such as http://127.0.0.1:8000")
    add("--model", metavar="NAME", help="default: the first that GET /v1/models lists")
    add("--api-key", metavar="KEY", default=os.environ.get("OPENAI_API_KEY"), help="or OPENAI_API_KEY")
    add("--endpoint", choices=("completions", "chat"), default="completions", help="default: completions")
    axis = parser.add_mutually_exclusive_group()
    default = ",".join(str(clients) for clients in CONCURRENCIES)
    axis.add_argument("--concurrency", metavar="N,N,...", type=numbers(int), help=f"clients (default: {default})")
    axis.add_argument("--rate", metavar="R,R,...", type=numbers(float), help="requests arriving per second")
    default = f"default: {REQUESTS}, or {REQUESTS_PER_CLIENT} for each client where that is more"
    add("--requests", metavar="N", type=positive, help=f"of each run ({default})")
    add("--slo", metavar="NAME=S,...", type=objectives, default={}, help="objectives for goodput, as above")
    add("--workload", choices=WORKLOADS, default="mixed", help="default: mixed lengths")
    add("--prompt-tokens", metavar="N", type=positive, default=256, help="at most (default: 256)")
    add("--output-tokens", metavar="N", type=positive, default=128, help="at most (default: 128)")
    add("--ignore-eos", action="store_true", help="answers of full length, where this is understood")
    add("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    add("--json", metavar="FILE", help="the figures; - for the last line of standard output")
    add("--plot", metavar="FILE.png", type=Path, help="latency and throughput in four panels")
    args = parser.parse_args(arguments)
    args.axis = "rate" if args.rate else "concurrency"
    args.loads = args.rate or args.concurrency or CONCURRENCIES
    if args.requests and args.axis == "concurrency" and args.requests < max(args.loads):
        parser.error(f"--requests {args.requests} is too few for concurrency {max(args.loads)}: give that or more")
    for path in (args.plot, None if args.json == "-" else args.json):
        if path and not Path(path).parent.is_dir():
            parser.error(f"there is no folder {Path(path).parent}")
    return args


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def numbers(kind: type) -> Callable[[str], list]:
    """Return a parser of positive numbers between commas, each once and in order; whole ones as int, for labels."""

    def parse(text: str) -> list:
        try:
            values = {kind(part) for part in text.split(",")}
        except ValueError:
            values = {0}
        if not all(0 < value < float("inf") for value in values):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers such as 1,2,4")
        return [int(value) if value == int(value) else value for value in sorted(values)]

    return parse


def objectives(text: str) -> dict[str, float]:
    """Parse ttft=0.2,tpot=0.05, in seconds."""
    try:
        limits = {name: float(seconds) for name, seconds in (part.split("=") for part in text.split(","))}
    except ValueError:
        limits = {}
    if not limits or set(limits) - set(OBJECTIVES):
        known = ", ".join(OBJECTIVES)
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ttft=0.2,tpot=0.05: seconds, of {known}")
    return limits


# ---- The runs ----


async def find_target(args: argparse.Namespace, first: Job) -> Target:
    """Return the model to ask, after one request that it has answered. Raise ValueError that says why it has not.

    args: has url, api_key, model and endpoint.
    """
    async with Connections(args.url, args.api_key) as connections:
        models = [model["id"] for model in await served_models(connections)]
        if args.model and models and args.model not in models:
            raise ValueError(f"the server has no model {args.model!r}; it serves {', '.join(models)}")
        if not (args.model or models):
            raise ValueError(f"{args.url} does not list its models: name one with --model, if the URL is right")
        target = Target(args.model or models[0], args.endpoint)
        record = await ask(connections, target, first)
        if not record.success:
            raise ValueError(f"the first request failed: {record.error}")
    return target


def refusal(error: Exception, url: str) -> str:
    """Return what an error of a server, or of the way to it, means."""
    import httpx

    unreachable = f"no server answers at {url}: " if isinstance(error, httpx.TransportError) else ""
    return f"{unreachable}{str(error) or type(error).__name__}"


def measure(args: argparse.Namespace, target: Target, results: dict[float, LoadResult]) -> None:
    """Add the result of each run to `results`, by its concurrency or rate, with a progress bar for each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description:>15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    # Drawn twice a second: drawing takes milliseconds in which no chunk's arrival is noticed.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as progress:
        for number, load in enumerate(args.loads, start=1):  # run 0 was the first request's
            clients = load if args.axis == "concurrency" else 0
            count = args.requests or max(REQUESTS, REQUESTS_PER_CLIENT * clients)
            lengths = args.prompt_tokens, args.output_tokens
            jobs = worded_jobs(
                args.workload, count, *lengths, seed=args.seed, number=number, ignore_eos=args.ignore_eos
            )
            bar = progress.add_task(f"{args.axis} {load:g}", total=count)

            async def load_server(jobs=jobs, clients=clients, load=load, bar=bar) -> LoadResult:
                async with Connections(args.url, args.api_key) as connections:

                    async def send(job):
                        record = await ask(connections, target, job)
                        progress.update(bar, advance=1)
                        return record

                    if clients:
                        return await closed_loop(jobs, clients, send)
                    return await open_loop(jobs, poisson_arrivals(len(jobs), load, args.seed), send)

            results[load] = run(load_server())


# ---- What they found ----


def result_document(
    args: argparse.Namespace, target: Target, results: Mapping[float, LoadResult], interrupted: bool
) -> dict[str, Any]:
    """Return all that was measured, as JSON values; times in seconds.

    It names neither the URL, since results are published, nor hardware: the client does not know the server's.
    """
    at_most = "" if args.ignore_eos else "at most "
    sizes = {"prompt_tokens": args.prompt_tokens, "output_tokens": args.output_tokens, "ignore_eos": args.ignore_eos}
    prompts = "" if args.workload == "corpus" else f"prompts of up to {args.prompt_tokens} words, "
    description = f"{args.workload}: {prompts}answers of {at_most}{args.output_tokens} tokens"
    return {
        "benchmark": "common.bench.serve",
        "date": datetime.date.today().isoformat(),
        "model": target.model,
        "endpoint": target.endpoint,
        "workload": {"name": args.workload, **sizes, "seed": args.seed, "description": description},
        "axis": args.axis,
        "arrivals": ARRIVALS[args.axis],
        "objectives": args.slo,
        "points": [{args.axis: load} | point_figures(result, args.slo) for load, result in results.items()],
        "interrupted": interrupted,
    }


def point_figures(result: LoadResult, slo: Mapping[str, float]) -> dict[str, Any]:
    successful = result.successful
    return {
        "requests": len(result.records),
        "failed": len(result.records) - len(successful),
        "failures": dict(Counter(record.error for record in result.records if record.error).most_common()),
        "seconds": result.seconds,
        "client_busy": result.client_seconds / result.seconds,  # 1.0 is one core, all that a single event loop can use
        "prompt_tokens": sum(record.prompt_tokens for record in successful),
        "output_tokens": sum(record.output_tokens for record in successful),
        "requests_per_second": len(successful) / result.seconds,
        "output_tokens_per_second": result.throughput,
        "goodput": result.goodput(slo) if slo else None,
        **{name: None for name in LATENCIES},  # where nothing succeeded
        **result.summary(),
    }


def report(args: argparse.Namespace, document: dict[str, Any]) -> None:
    """Print a row for each point, then what failed and what is not to be trusted; write the files."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from .plots import short

    console, points = Console(highlight=False, markup=False), document["points"]
    console.print(f"\n{document['model']}, {document['endpoint']}, {document['arrivals']}", style="bold")
    console.print(f"{document['workload']['description']}. Latencies in milliseconds:")
    rates = {"requests": "\nsent", "failed": "\nfailed", "requests_per_second": "\nreq/s"}
    rates |= {"output_tokens_per_second": "output\ntok/s"} | ({"goodput": "goodput\nreq/s"} if args.slo else {})
    of_rates = [(heading, [point[name] for point in points]) for name, heading in rates.items()]
    of_latencies = [
        (f"{name.upper() * (rank == 'p50')}\n{rank}", [point[name] and 1e3 * point[name][rank] for point in points])
        for name in LATENCIES
        for rank in ("p50", "p99")
    ]
    for columns in (of_rates, of_latencies):  # side by side they would not fit into 80 characters
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for heading in [
            "concur-\nrency" if args.axis == "concurrency" else "rate\nreq/s",
            *(name for name, _ in columns),
        ]:
            table.add_column(heading, justify="right", no_wrap=True)
        for point, *row in zip(points, *(values for _, values in columns), strict=True):
            cells = ["-" if value is None else short(value) for value in row]
            table.add_row(f"{point[args.axis]:g}", *cells, style="red" if point["failed"] else None)
        console.print(table)
    for warning in warnings(document):
        console.print(warning, style="bold red")
    line = write_json(Path(args.json) if args.json not in (None, "-") else None, document)
    if args.json == "-":
        print(line)
    if args.plot:
        draw(document, args.plot)


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
    from . import plots

    axis, points = document["axis"], [point for point in document["points"] if point["e2el"]]
    if not points:
        raise ValueError("there is nothing to draw: no request succeeded")
    best = max(points, key=lambda point: point["output_tokens_per_second"])
    where = f"at concurrency {best[axis]:g}" if axis == "concurrency" else f"at {best[axis]:g} requests per second"
    message = f"Up to {plots.short(best['output_tokens_per_second'])} output tokens per second, {where}"
    remark = "Lines: median and 99th percentile over all requests; the band reaches to the 90th. Seen by the client."
    asked = f"{document['workload']['description']}.\nModel {document['model']} over HTTP, {document['endpoint']}"
    footer = "; ".join([f"{asked}, {document['arrivals']}", document["date"], *warnings(document)]) + "."
    with plots.page(png, footer, message, rows=2, columns=2, height=8, remark=remark) as panels:
        loads = [point[axis] for point in points]
        named = [("Total latency", "seconds", "e2el", 1), ("Inter-token latency", "milliseconds", "itl", 1e3)]
        named += [("Throughput", "output tokens per second", "", 1), ("Time to first token", "seconds", "ttft", 1)]
        for panel, (title, unit, name, scale) in zip(panels, named, strict=True):
            plots.doubling(panel, loads)
            panel.update_datalim([(loads[0], 0)])  # so that there is room above a line that is flat
            if name:  # with a hole where a point has no value, such as the gaps of answers that came in one chunk
                p50, p90, p99 = (
                    [scale * (point[name] or {}).get(rank, float("nan")) for point in points]
                    for rank in ("p50", "p90", "p99")
                )
                panel.plot(loads, p99, color=TINT, linestyle="--", marker="o", markerfacecolor="white", label="p99")
                panel.plot(loads, p50, color=TINT, marker="o", label="p50")
                panel.fill_between(loads, p50, p90, color=TINT, alpha=0.18, linewidth=0)
            else:
                rates = [point["output_tokens_per_second"] for point in points]
                panel.plot(loads, rates, color=TINT, marker="o", label="_")
            plots.axes(panel, UNITS[axis], unit, title)


if __name__ == "__main__":
    run_to_end(main)

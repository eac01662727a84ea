"""Measures a running server that speaks OpenAI's API: this course's, vLLM, SGLang, or any other.

    python -m common.bench.serve --url http://127.0.0.1:8000
    python -m common.bench.serve --url http://127.0.0.1:8000 --rate 1,2,4 --workload corpus --slo ttft=0.2,tpot=0.05
    python -m common.bench.serve --url http://127.0.0.1:8000 --workload multi-turn --json turns.json --plot turns.png

One request is sent first, to see that the server answers and to warm it up. Then each concurrency (a closed loop of so
many clients) or each rate (Poisson arrivals, whether the server keeps up or not) is a run of its own, with prompts of
its own, so that none finds its prompts in a prefix cache. Another call with the same --seed does find them there.

Workloads: mixed (prompts and answers of 16 to N tokens), fixed (of N), shared-prefix (all prompts begin alike),
multi-turn (each client holds a conversation, and every turn carries all that was said before), corpus (the questions
that the bundled model was trained on, answers limited to the length of the right ones).

Metrics are those of `vllm bench serve`, see metrics.py. Client and server on one machine share its processor.
The exit status is 1 if any request failed, and 130 after Ctrl-C, which reports the runs that were complete.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import client
from .arrivals import closed_loop, open_loop, poisson_arrivals
from .client import Connections, Target, converse, served_models
from .conversations import NAMES, Workload
from .documents import write_json
from .metrics import LoadResult, RequestRecord
from .serve_report import ENDPOINTS, draw, print_report, result_document

CONCURRENCIES = [1, 4, 8, 16, 32, 64]
REQUESTS, REQUESTS_PER_CLIENT = 64, 4
OBJECTIVES = ("ttft", "tpot", "e2el")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    import httpx

    args = parse_arguments(arguments)
    try:
        target = client.run(find_target(args))
        results, interrupted = measure(args, target)
        if results:
            report(args, target, results, interrupted)
    except httpx.TransportError as error:
        return complain(f"no server answers at {args.url}: {str(error) or type(error).__name__}")
    except (ValueError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        return complain(str(error))
    except KeyboardInterrupt:
        results, interrupted = {}, True
    if interrupted:
        print(f"interrupted: {len(results)} of {len(args.loads)} runs are complete", file=sys.stderr)
        return 130
    return int(any(result.failures for result in results.values()))


def complain(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 1


# ---- The command line ----


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser()
    args = parser.parse_args(arguments)
    args.axis = "rate" if args.rate else "concurrency"
    args.loads = args.rate or args.concurrency or CONCURRENCIES
    names = ("prompt_tokens", "output_tokens", "shared_percent", "turns", "ignore_eos", "token_ids", "vocab_size")
    try:
        args.workload = Workload(args.workload, **{name: vars(args)[name] for name in names})
    except ValueError as error:
        parser.error(str(error))
    if args.token_ids and args.endpoint == "chat":
        parser.error("--token-ids needs --endpoint completions: a chat is text")
    at_once = max(args.loads) * args.workload.turns_each if args.axis == "concurrency" else 1
    if args.requests and args.requests < at_once:
        parser.error(f"--requests {args.requests} is too few for concurrency {max(args.loads)}: give {at_once} or more")
    for path in (args.plot, None if args.json == "-" else args.json):
        if path and not Path(path).parent.is_dir():
            parser.error(f"there is no folder {Path(path).parent}")
    return args


def build_parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m common.bench.serve", description=__doc__, formatter_class=form)
    server = parser.add_argument_group("server")
    server.add_argument("--url", required=True, type=http_url, help="such as http://127.0.0.1:8000")
    server.add_argument("--model", metavar="NAME", help="default: the first that GET /v1/models lists")
    server.add_argument("--api-key", metavar="KEY", default=os.environ.get("OPENAI_API_KEY"), help="or OPENAI_API_KEY")
    server.add_argument("--endpoint", choices=ENDPOINTS, default="completions", help="default: completions")

    load = parser.add_argument_group("load")
    axis = load.add_mutually_exclusive_group()
    default = ",".join(str(clients) for clients in CONCURRENCIES)
    axis.add_argument("--concurrency", metavar="N,N,...", type=numbers(int), help=f"clients (default: {default})")
    axis.add_argument("--rate", metavar="R,R,...", type=numbers(float), help="requests arriving per second")
    default = f"default: {REQUESTS}, or {REQUESTS_PER_CLIENT} for each client where that is more"
    load.add_argument("--requests", metavar="N", type=positive, help=f"of each run ({default})")
    load.add_argument(
        "--slo", metavar="NAME=S,...", type=objectives, default={}, help="objectives for goodput, as above"
    )

    work = parser.add_argument_group("workload")
    work.add_argument("--workload", choices=NAMES, default="mixed", help="default: mixed lengths")
    work.add_argument("--prompt-tokens", metavar="N", type=positive, default=256, help="at most (default: 256)")
    work.add_argument("--output-tokens", metavar="N", type=positive, default=128, help="at most (default: 128)")
    work.add_argument(
        "--shared-percent", metavar="P", type=percent, default=50, help="of a shared prefix (default: 50)"
    )
    work.add_argument("--turns", metavar="N", type=positive, default=4, help="of a conversation (default: 4)")
    work.add_argument("--ignore-eos", action="store_true", help="answers of full length, where this is understood")
    work.add_argument("--token-ids", action="store_true", help="send random token ids instead of words")
    work.add_argument("--vocab-size", metavar="N", type=positive, default=4000, help="of the ids (default: 4000)")
    work.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")

    results = parser.add_argument_group("results, beside the table")
    results.add_argument("--json", metavar="FILE", help="the figures; - for the last line of standard output")
    results.add_argument("--plot", metavar="FILE.png", type=Path, help="latency and throughput in four panels")
    return parser


def http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with http:// or https://")
    return text


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def percent(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 100")
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


async def find_target(args: argparse.Namespace) -> Target:
    """Return the model to ask, after one request that it has answered. Raise ValueError that says why it has not."""
    async with Connections(args.url, args.api_key) as connections:
        models = [model["id"] for model in await served_models(connections)]
        if args.model and models and args.model not in models:
            raise ValueError(f"the server has no model {args.model!r}; it serves {', '.join(models)}")
        if not (args.model or models):
            raise ValueError(f"{args.url} does not list its models: name one with --model, if the URL is right")
        target = Target(args.model or models[0], args.endpoint)
        [conversation, *_] = args.workload.conversations(1, args.seed)
        [record] = await converse(connections, target, conversation[:1])
        if not record.success:
            raise ValueError(f"the first request failed: {record.error}")
    return target


def measure(args: argparse.Namespace, target: Target) -> tuple[dict[float, LoadResult], bool]:
    """Return the result of each completed run, by its concurrency or rate, and whether Ctrl-C ended the last one."""
    results: dict[float, LoadResult] = {}
    with progress_bars() as add_bar:
        try:
            for number, load in enumerate(args.loads, start=1):  # run 0 was the first request's
                results[load] = client.run(run(args, target, load, number, add_bar))
        except KeyboardInterrupt:
            return results, True
    return results, False


async def run(args: argparse.Namespace, target: Target, load: float, number: int, add_bar: Callable) -> LoadResult:
    clients = load if args.axis == "concurrency" else 0
    turns = args.workload.turns_each
    requests = args.requests or max(REQUESTS, REQUESTS_PER_CLIENT * clients, turns * clients)
    conversations = args.workload.conversations(requests, args.seed, number)
    done = add_bar(f"{args.axis} {load:g}", turns * len(conversations))
    async with Connections(args.url, args.api_key) as connections:

        async def serve(conversation) -> list[RequestRecord]:
            return await converse(connections, target, conversation, done)

        if clients:
            return await closed_loop(conversations, clients, serve)
        moments = poisson_arrivals(
            len(conversations), load / turns, args.seed
        )  # so `load` is still requests per second
        return await open_loop(conversations, moments, serve)


@contextmanager
def progress_bars():
    """Give a function that adds the bar of a run, and returns what to call with each record of it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description:>15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns.append(TextColumn("[red]{task.fields[problem]}"))
    # Drawn twice a second: drawing takes milliseconds in which no chunk's arrival is noticed.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as progress:

        def add_bar(title: str, requests: int) -> Callable[[RequestRecord], None]:
            bar, failed = progress.add_task(title, total=requests, problem=""), 0

            def done(record: RequestRecord) -> None:
                nonlocal failed
                failed += not record.success
                progress.update(bar, advance=1, problem=f"{failed} failed" if failed else "")

            return done

        yield add_bar


def report(args: argparse.Namespace, target: Target, results: dict[float, LoadResult], interrupted: bool) -> None:
    document = result_document(target, args.workload, args.seed, args.axis, results, args.slo, interrupted)
    print_report(document)
    line = write_json(Path(args.json) if args.json not in (None, "-") else None, document)
    if args.json == "-":
        print(line)
    if args.plot:
        draw(document, args.plot)


if __name__ == "__main__":
    sys.exit(main())

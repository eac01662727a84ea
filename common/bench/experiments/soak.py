"""Keeps a server busy for minutes and watches its memory, which must not grow.

    python -m common.bench.experiments.soak --stage 06 --minutes 5
    python -m common.bench.experiments.soak --stage 08 --minutes 12 --kills 50 --options "--replicas 2"

The server's own /metrics tells its memory. A line is fitted through the second half of the samples; in the first one
caches fill and allocators settle. One more client sends the worst requests there are, one kind after the other. Workers
of stage 08 can be ended meanwhile, at equal intervals: killed, or stopped, which the router is not told. Clients ask
the same questions again and again. The exit status is 1 if a request failed that should not, if one was answered in
two ways, or if memory grew in that half by more than 1 % of itself.
"""

import argparse
import asyncio
import itertools
import random
import re
import shlex
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from common.loader import load_tokenizer
from common.terminal import note, run_to_end

from ..client import PATHS, Connections, Target, ask, closed_loop, run, served_models
from ..documents import write_json
from ..hardware import hardware
from ..harness import Figures
from ..load import running_server
from ..metrics import LoadResult
from ..settings import Settings
from ..workloads import Job, corpus_jobs

SAMPLE_SECONDS = 5.0
MOST_GROWTH = 0.01
POOL = "256M"  # of K and V: a system gives memory out when it is first written to, so a large pool fills for minutes


class Attack(NamedTuple):
    """A request that is as bad as its kind can be, and how a server may answer it."""

    body: dict[str, Any]
    allowed: tuple[int, ...]  # statuses
    hang_up_after: float | None = None  # seconds


def attacks(context: int) -> dict[str, Attack]:
    """Return all kinds by name. `context`: tokens of the longest prompt."""
    prompt, busy = [5 + i % 1000 for i in range(context - 2)], (200, 429)
    echo = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 20}
    stop = ["a" * 200 + f"{i}" for i in range(32)]
    choices = {"prompt": "a", "n": 128, "max_tokens": 8, "logprobs": 20, "ignore_eos": True}
    return {
        "longest prompt": Attack({"prompt": prompt, "max_tokens": 1}, busy),
        "too much text": Attack({"prompt": "the cat sat " * 80_000, "max_tokens": 1}, (400, 413)),
        "longest text": Attack({"prompt": "the cat sat " * (context // 4), "max_tokens": 1}, busy),
        "a body of mistakes": Attack({"prompt": [-1] * 250_000}, (400, 413)),
        "most stop strings": Attack({"prompt": "a", "max_tokens": 64, "ignore_eos": True, "stop": stop}, busy),
        "too many stop strings": Attack({"prompt": "a", "stop": ["a" * 20] * 40_000}, (400, 413)),
        "echo with most logprobs": Attack(echo, busy),
        "128 choices": Attack(choices, (200, 400, 429)),
        "hanging up": Attack(echo, (), hang_up_after=0.2),
    }


async def send(http, attack: Attack) -> str | None:
    """Send it once; what is wrong with the answer, or None."""
    import httpx

    try:
        answer = await asyncio.wait_for(http.post(PATHS["completions"], json=attack.body), attack.hang_up_after)
    except asyncio.TimeoutError:
        return None
    except httpx.HTTPError as error:
        return repr(error)
    if attack.allowed and answer.status_code not in attack.allowed:
        return f"status {answer.status_code}: {answer.text[:200]}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: print a line for each sample, the findings, and a JSON document; return the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m common.bench.experiments.soak", description=__doc__, formatter_class=form
    )
    parser.add_argument("--stage", default="06", help="whose server is kept busy (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=0, help="workers to kill (default: 0)")
    parser.add_argument("--stops", type=int, default=0, help="workers to stop (default: 0)")
    parser.add_argument("--options", default="", help="more options of the server, in one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there, too")
    Settings.add_arguments(parser)
    args = parser.parse_args(arguments)
    settings, sizes = (
        Settings.from_arguments(args),
        {name: vars(args)[name] for name in ("stage", "minutes", "clients", "kills", "stops", "options")},
    )
    try:
        figures = measure(settings, **sizes)
    except ValueError as error:
        note(f"error: {error}")
        return 1
    document = {"benchmark": "common.bench.experiments.soak", "settings": settings.describe()}
    document |= {"hardware": hardware(settings.place()[0]), "sizes": sizes, **figures}
    (_, last), rate = figures["seconds_and_bytes"][-1], figures["tokens_per_second"]
    print(f"{figures['requests']} requests, {figures['failed']} failed, {rate:.0f} output tokens per second")
    print(f"{figures['ended']} workers ended; the longest wait for a next token: {figures['longest_gap']:.1f} s")
    print(f"memory: {last / 1e6:.0f} MB at the end, {100 * figures['growth']:+.2f} % in the second half")
    print(*figures["wrong"], write_json(args.json, document), sep="\n")
    return int(bool(figures["wrong"]))


def measure(
    settings: Settings, stage: str, minutes: float, clients: int, kills: int = 0, stops: int = 0, options: str = ""
) -> Figures:
    jobs = corpus_jobs(load_tokenizer(settings.folder()), 500, most_tokens=128)
    pool = ["--kv-memory", POOL] if stage >= "05" else []
    signals = random.Random(0).sample(["SIGKILL"] * kills + ["SIGSTOP"] * stops, kills + stops)
    with running_server(stage, settings, *pool, *shlex.split(options)) as url:
        result, samples, outcomes, ended, different = run(soak(url, jobs, minutes * 60, clients, signals))
    growth, failures = grown(samples), Counter(record.error for record in result.records if record.error)
    wrong = [f"{count} requests failed: {reason}" for reason, count in failures.items()]
    wrong += [f"the worst client: {outcome}" for outcome in sorted(set(filter(None, outcomes)))]
    wrong += [f"{different} answers differ from an earlier one to the same question"] * bool(different)
    return {
        "requests": len(result.records),
        "failed": len(result.records) - len(result.successful),
        "tokens_per_second": result.throughput,
        "worst_requests": len(outcomes),
        "ended": ended,
        "different": different,
        "longest_gap": max((gap for record in result.records for gap in record.itl), default=0.0),
        "growth": growth,
        "seconds_and_bytes": samples,
        "wrong": wrong + ["its memory grew"] * (growth > MOST_GROWTH),
    }


async def soak(
    url: str, jobs: list[Job], seconds: float, clients: int, signals: Sequence[str] = ()
) -> tuple[LoadResult, list[tuple[float, float]], list[str | None], int, int]:
    """Return all requests, (seconds since the start, bytes of the server) in turn, and the worst client's outcomes.

    And how many workers have been ended by `signals`, and how many answers differ from earlier ones.
    """
    samples: list[tuple[float, float]] = []
    outcomes: list[str | None] = []
    answers: dict[int, set[str]] = {}  # by the place of the job
    start = time.perf_counter()

    def until_the_end(items):
        return itertools.takewhile(lambda _: time.perf_counter() - start < seconds, itertools.cycle(items))

    async with Connections(url) as connections:
        [model, *_] = await served_models(connections)

        async def watch() -> None:
            for _ in until_the_end([None]):
                await asyncio.sleep(SAMPLE_SECONDS)
                async with connections.one() as http:
                    text = (await http.get("/metrics")).text
                resident = float(re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)[1])
                samples.append((time.perf_counter() - start, resident))
                print(f"{samples[-1][0]:6.0f} s  {resident / 1e6:8.1f} MB", flush=True)

        async def worst_client() -> None:
            async with connections.one() as http:
                for attack in until_the_end(attacks(model["max_model_len"]).values()):
                    outcomes.append(await send(http, attack))

        async def ask_again(place_and_job: tuple[int, Job]):
            place, job = place_and_job
            record = await ask(connections, Target(model["id"]), job)
            if record.success:
                answers.setdefault(place, set()).add(record.text)
            return record

        load = closed_loop(until_the_end(enumerate(jobs)), clients, ask_again)
        result, *_, ended = await asyncio.gather(load, watch(), worst_client(), end_workers(signals, seconds))
    return result, samples, outcomes, ended, sum(len(each) - 1 for each in answers.values())


async def end_workers(signals: Sequence[str], seconds: float) -> int:
    """Send each signal, at equal intervals, to any of the server's workers that lives; return how many found one."""
    ended, chance = 0, random.Random(0)
    for name in signals:
        await asyncio.sleep(seconds / (len(signals) + 1))
        if workers := [one for one in psutil.Process().children(recursive=True) if is_living_worker(one)]:
            with suppress(psutil.NoSuchProcess):
                chance.choice(workers).send_signal(getattr(signal, name))
                ended += 1
    return ended


def is_living_worker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has just ended
        return process.name().startswith("ray::Worker") and process.status() != psutil.STATUS_STOPPED
    return False


def grown(samples: list[tuple[float, float]]) -> float:
    """Return how much of itself the memory grows in the second half, by a line through its samples."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return 0.0
    slope, _ = statistics.linear_regression(*zip(*half, strict=True))
    return slope * (half[-1][0] - half[0][0]) / half[0][1]


if __name__ == "__main__":
    run_to_end(main)

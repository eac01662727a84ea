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
from typing import Any, NamedTuple

import psutil

from common.errors import InvalidInput
from common.stages import stage_folder
from common.terminal import run_to_end

from ..client import PATHS, Target, ask, closed_loop, connections, run
from ..documents import write_json
from ..hardware import hardware
from ..harness import Figures
from ..load import running_server
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
    name = "python -m common.bench.experiments.soak"
    parser = argparse.ArgumentParser(name, description=__doc__, formatter_class=form)
    parser.add_argument("--stage", default="06", help="whose server is kept busy (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=5.0, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=0, help="workers to kill (default: 0)")
    parser.add_argument("--stops", type=int, default=0, help="workers to stop (default: 0)")
    parser.add_argument("--options", type=shlex.split, default="", help="more options of the server, in one string")
    args = parser.parse_args(arguments)
    number = stage_folder(args.stage).name[:2]
    if number < "03":
        raise InvalidInput("a soak reads /metrics, which servers have from stage 03 on: give --stage 03 or a later one")
    if args.minutes * 60 < SAMPLE_SECONDS or args.clients < 1:
        raise InvalidInput("a soak takes at least --minutes 0.1 and --clients 1")
    pool = ["--kv-memory", POOL] if number >= "05" else []
    signals = random.Random(0).sample(["SIGKILL"] * args.kills + ["SIGSTOP"] * args.stops, args.kills + args.stops)
    with running_server(args.stage, Settings(), *pool, *args.options) as url:
        figures = run(soak(url, args.minutes * 60, args.clients, signals))
    facts = {"settings": Settings().describe(), "hardware": hardware(Settings().place()[0]), "sizes": vars(args)}
    document = {"benchmark": "common.bench.experiments.soak", **facts, **figures}
    (_, last), rate = figures["seconds_and_bytes"][-1], figures["tokens_per_second"]
    print(f"{figures['requests']} requests, {figures['failed']} failed, {rate:.0f} output tokens per second")
    print(f"{figures['ended']} workers ended; the longest wait for a next token: {figures['longest_gap']:.1f} s")
    print(f"memory: {last / 1e6:.0f} MB at the end, {100 * figures['growth']:+.2f} % in the second half")
    print(*figures["wrong"], write_json(None, document), sep="\n")
    return int(bool(figures["wrong"]))


async def soak(url: str, seconds: float, clients: int, signals: Sequence[str] = ()) -> Figures:
    """Load a server and end its workers by `signals`; return what was seen, and in "wrong" what should not have been.

    "seconds_and_bytes": (seconds since the start, bytes of the server) in turn. "growth": in the second half.
    """
    samples: list[tuple[float, float]] = []
    outcomes: list[str | None] = []  # of the worst client
    answers: dict[int, set[str]] = {}  # by the place of the job
    start, connect = time.perf_counter(), connections(url)

    def until_the_end(items):
        return itertools.takewhile(lambda _: time.perf_counter() - start < seconds, itertools.cycle(items))

    async with connect() as http:
        model, *_ = (await http.get("/v1/models")).json()["data"]

    async def watch() -> None:
        for _ in until_the_end([None]):
            await asyncio.sleep(SAMPLE_SECONDS)
            async with connect() as http:
                text = (await http.get("/metrics")).text
            resident = float(re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)[1])
            samples.append((time.perf_counter() - start, resident))
            print(f"{samples[-1][0]:6.0f} s  {resident / 1e6:8.1f} MB", flush=True)

    async def worst_client() -> None:
        async with connect() as http:
            for attack in until_the_end(attacks(model["max_model_len"]).values()):
                outcomes.append(await send(http, attack))

    async def ask_again(http, place_and_job: tuple[int, Job]):
        place, job = place_and_job
        record = await ask(http, Target(model["id"]), job)
        if record.success:
            answers.setdefault(place, set()).add(record.text)
        return record

    jobs = until_the_end(enumerate(corpus_jobs(None, 500, most_tokens=128)))
    load = closed_loop(jobs, clients, connect, ask_again)
    result, *_, ended = await asyncio.gather(load, watch(), worst_client(), end_workers(signals, seconds))
    growth, different = grown(samples), sum(len(each) - 1 for each in answers.values())
    failures = Counter(record.error for record in result.records if record.error)
    wrong = [f"{count} requests failed: {reason}" for reason, count in failures.items()]
    wrong += [f"the worst client: {outcome}" for outcome in sorted(set(filter(None, outcomes)))]
    wrong += [f"{different} answers differ from an earlier one to the same question"] * bool(different)
    return {
        "requests": len(result.records),
        "failed": failures.total(),
        "tokens_per_second": result.throughput,
        "worst_requests": len(outcomes),
        "ended": ended,
        "different": different,
        "longest_gap": max(result.values("itl"), default=0.0),
        "growth": growth,
        "seconds_and_bytes": samples,
        "wrong": wrong + ["its memory grew"] * (growth > MOST_GROWTH),
    }


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

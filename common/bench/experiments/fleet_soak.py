"""Soaks of stage 08, over HTTP, against the server that the README's command starts.

`kills` ends one worker process after another under load, and compares every answer with that of a fleet which nothing
disturbs. `bursts` sends about as many requests as the workers can take, every eighth with a long prompt, and counts
those that are not answered. Both need Linux, where a server's processes can be found.
"""

import asyncio
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.sampling import SamplingParams
from common.stages import load_engine

from ..arrivals import closed_loop
from ..client import Connections, Target, converse, run
from ..harness import Figures
from ..load import running_server
from ..metrics import RequestRecord
from ..settings import Settings
from ..workloads import Job, random_prompt

TARGET = Target(endpoint="generate")
CLIENTS, JOBS = 8, 40
KILL_AFTER = (0.5, 3.0)  # seconds after all workers are up
STOPPED = 0.1  # share of the workers that are stopped and not killed: only a deadline finds them
HANG_SECONDS = 5
RATE = 25.0  # requests a second, in bursts
MOST_OPEN = 200  # requests; a machine that is too slow for the rate gets fewer
LONG, SHORT = 900, 12  # tokens of a burst's prompts
LINE_SECONDS = 30.0  # from one line on the progress to the next


def kills(settings: Settings, count: int) -> Figures:
    """End `count` workers of one prefill and two decode workers, one when all are up again after another."""
    loaded, rng = settings.load(), random.Random("soak")
    jobs = []
    for i in range(JOBS):
        prompt = random_prompt(rng.choice([20, 100, 400]), loaded.config.vocab_size, f"soak {i}")
        jobs.append(Job(prompt, rng.choice([1, 20, 80]), sampling={"temperature": i % 2, "seed": i}))
    prompts = [job.prompt for job in jobs]
    params = [SamplingParams(max_tokens=job.max_tokens, ignore_eos=True, **job.sampling) for job in jobs]
    expected = [one.token_ids for one in load_engine("08")(loaded).generate(prompts, params)]
    options = ("--decode", "2", "--kv-memory", "64M", "--hang-seconds", str(HANG_SECONDS))
    with tempfile.NamedTemporaryFile() as file, running_server("08", settings, *options, log=Path(file.name)) as url:
        return run(kill_under_load(url, Path(file.name), jobs, expected, count, rng))


async def kill_under_load(
    url: str, log: Path, jobs: Sequence[Job], expected: list[list[int]], count: int, rng: random.Random
) -> Figures:
    found, killed = Counter(dict.fromkeys(("requests", "failed", "tokens", "different", "resumed"), 0)), Counter()
    start, longest, done = time.monotonic(), 0.0, asyncio.Event()
    async with Connections(url) as connections:

        async def serve(number: int) -> list[RequestRecord]:
            nonlocal longest
            [record] = await converse(connections, TARGET, [jobs[number]])
            longest = max([longest, *record.itl])
            if record.success:
                right = record.token_ids == expected[number]
                found.update(requests=1, tokens=record.output_tokens, different=int(not right))
            else:
                found["failed"] += 1
                print(f"request failed: {record.error}", file=sys.stderr)
            return [record]

        async def health() -> dict:
            return (await connections.get("/health")).json()

        async def kill() -> None:
            while killed.total() < count:
                await asyncio.sleep(rng.uniform(*KILL_AFTER))
                while (await health()).get("decode_workers_up") != 2:
                    await asyncio.sleep(0.2)
                number, role, process = rng.choice(list(workers(log).values()))
                stop = rng.random() < STOPPED
                os.kill(process, signal.SIGSTOP if stop else signal.SIGKILL)
                killed[f"{role}, stopped" if stop else role] += 1
                print(
                    f"{time.monotonic() - start:6.0f} s  kill {killed.total()}: worker {number} ({role}), "
                    f"longest gap so far {longest:.1f} s",
                    file=sys.stderr,
                )
                while workers(log).get(number, (0, 0, process))[2] == process:  # until another process has its place
                    await asyncio.sleep(0.2)
            found["resumed"] = (await health())["requests_resumed"]
            done.set()

        numbers = itertools.takewhile(lambda _: not done.is_set(), itertools.cycle(range(len(jobs))))
        await asyncio.gather(kill(), closed_loop(numbers, CLIENTS, serve))
    figures = {**found, "kills": killed.total(), "killed": dict(killed), "hang_seconds": HANG_SECONDS}
    figures |= {"longest_gap_seconds": longest, "seconds": time.monotonic() - start}
    return figures | {"wrong": found["failed"] + found["different"]}


def workers(log: Path) -> dict[int, tuple[int, str, int]]:
    """Return (number, role, process) of each worker, by the newest line in the server's log that says so."""
    found = re.findall(r"worker (\d+) \((\w+)\) is up, process (\d+)", log.read_text())
    return {int(number): (int(number), role, int(process)) for number, role, process in found}


def bursts(settings: Settings, minutes: float) -> Figures:
    """Send requests at RATE on average, that come in bursts, to one prefill and one decode worker."""
    with running_server("08", settings, "--max-queue", "100000") as url:
        return run(send_bursts(url, minutes * 60, settings.config().vocab_size))


async def send_bursts(url: str, seconds: float, vocab_size: int) -> Figures:
    rng, numbers, found, longest = random.Random("bursts"), itertools.count(), Counter(sent=0, answered=0), 0.0
    said, open_requests = 0.0, set()
    async with Connections(url) as connections:

        async def one(number: int) -> None:
            nonlocal longest
            prompt = random_prompt(SHORT if number % 8 else LONG, vocab_size, f"burst {number}")
            job = Job(prompt, rng.randint(2, 24))
            found["sent"] += 1
            [record] = await converse(connections, TARGET, [job])
            if record.error is None and record.output_tokens == job.max_tokens:
                found["answered"] += 1
                longest = max(longest, record.e2el)
            else:
                print(f"request {number} failed: {record.error or 'incomplete'}", file=sys.stderr)

        start = time.monotonic()
        while (now := time.monotonic() - start) < seconds:
            for _ in range(min(rng.choice([1, 1, 2, 16]), MOST_OPEN - len(open_requests))):
                task = asyncio.create_task(one(next(numbers)))
                open_requests.add(task)
                task.add_done_callback(open_requests.discard)
            if now - said > LINE_SECONDS:
                said = now
                print(f"{now:6.0f} s  {dict(found)}, {len(open_requests)} open", file=sys.stderr, flush=True)
            await asyncio.sleep(rng.expovariate(RATE / 5))
        if open_requests:
            await asyncio.wait(open_requests, timeout=300)
    unanswered = found["sent"] - found["answered"]
    figures = {**found, "unanswered": unanswered, "seconds": seconds, "longest_answer_seconds": longest}
    return figures | {"wrong": unanswered}

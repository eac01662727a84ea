"""Soaks of stage 08, over HTTP, against the server that the README's command starts.

`kills` ends one worker process after another under load, and compares every answer with that of a fleet which nothing
disturbs. `bursts` sends about as many requests as the workers can take, every eighth with a long prompt, and counts
those that are not answered. Both need Linux, where a server's processes can be found.
"""

import asyncio
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.sampling import SamplingParams
from common.stages import ROOT, load_engine

from ..harness import stop_group
from ..http_client import events, run
from ..load import free_port, wait_until_healthy
from ..settings import Settings
from ..workloads import random_prompt

CLIENTS, JOBS = 8, 40
KILL_AFTER = (0.5, 3.0)  # seconds after all workers are up
STOPPED = 0.1  # share of the workers that are stopped and not killed: only a deadline finds them
HANG_SECONDS = 5
RATE = 25.0  # requests a second, in bursts
MOST_OPEN = 200  # requests; a machine that is too slow for the rate gets fewer
LONG, SHORT = 900, 12  # tokens of a burst's prompts
LINE_SECONDS = 30.0  # from one line on the progress to the next


@contextmanager
def served(*options: str) -> Iterator[tuple[str, Any]]:
    """Run `python3 course.py serve 08`; give its URL and the file with all it prints."""
    port = free_port()
    command = [sys.executable, str(ROOT / "course.py"), "serve", "08", "--port", str(port), *options]
    with tempfile.NamedTemporaryFile("w+") as log:
        environment = os.environ | {"COURSE_NO_VENV": "1"}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            healthy = wait_until_healthy(server, f"http://127.0.0.1:{port}")
            if healthy:
                yield f"http://127.0.0.1:{port}", log.name
            if not healthy or server.poll() is not None:
                raise RuntimeError(f"the server has ended: {Path(log.name).read_text()[-2000:]}")
        finally:
            stop_group(server)


async def ask(http, prompt: list[int], params: dict, gaps: list[float]) -> list[int]:
    """Return the tokens of one streamed answer. Raise ValueError if it ends with an error."""
    tokens, last = [], None
    async with http.stream("POST", "/generate", json={"prompt": prompt, "stream": True, **params}) as response:
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code}: {(await response.aread()).decode()}")
        async for moment, event in events(response):
            if new := event.get("token_ids"):
                if last is not None:
                    gaps.append(moment - last)
                tokens, last = tokens + new, moment
            if event.get("finish_reason") not in (None, "stop", "length"):
                raise ValueError(f"the answer ended with {event['finish_reason']!r}")
    return tokens


def kills(settings: Settings, count: int) -> dict[str, Any]:
    """End `count` workers of one prefill and two decode workers, one when all are up again after another."""
    loaded, rng = settings.load(), random.Random("soak")
    jobs = [
        (
            random_prompt(rng.choice([20, 100, 400]), loaded.config.vocab_size, f"soak {i}"),
            {"max_tokens": rng.choice([1, 20, 80]), "ignore_eos": True, "temperature": i % 2, "seed": i},
        )
        for i in range(JOBS)
    ]
    prompts, params = [prompt for prompt, _ in jobs], [SamplingParams(**each) for _, each in jobs]
    expected = [one.token_ids for one in load_engine("08")(loaded).generate(prompts, params)]
    with served("--decode", "2", "--kv-memory", "64M", "--hang-seconds", str(HANG_SECONDS)) as (url, log):
        return run(kill_under_load(url, log, jobs, expected, count, rng))


async def kill_under_load(
    url: str, log: str, jobs: Sequence, expected: list[list[int]], count: int, rng: random.Random
) -> dict[str, Any]:
    import httpx

    turns, result, gaps, done = itertools.count(), Counter(), [], asyncio.Event()
    start = time.monotonic()

    async def client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            while not done.is_set():
                number = next(turns) % len(jobs)
                try:
                    tokens = await ask(http, *jobs[number], gaps)
                except (httpx.HTTPError, ValueError) as error:
                    result["failed"] += 1
                    print(f"request failed: {error!r}", file=sys.stderr)
                    continue
                result["requests"] += 1
                result["tokens"] += len(tokens)
                result["different"] += tokens != expected[number]

    async def killer() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            while sum(killed.values()) < count:
                await asyncio.sleep(rng.uniform(*KILL_AFTER))
                while (await http.get("/health")).json().get("decode_workers_up") != 2:
                    await asyncio.sleep(0.2)
                number, role, process = rng.choice(list(workers(log).values()))
                stop = rng.random() < STOPPED
                os.kill(process, signal.SIGSTOP if stop else signal.SIGKILL)
                killed[f"{role}, stopped" if stop else role] += 1
                print(
                    f"{time.monotonic() - start:6.0f} s  kill {sum(killed.values())}: worker {number} ({role}), "
                    f"longest gap so far {max(gaps, default=0):.1f} s",
                    file=sys.stderr,
                )
                while workers(log).get(number, (0, 0, process))[2] == process:  # until another process has its place
                    await asyncio.sleep(0.2)
            result["resumed"] = (await http.get("/health")).json()["requests_resumed"]
        done.set()

    killed: Counter[str] = Counter()
    await asyncio.gather(killer(), *(client() for _ in range(CLIENTS)))
    names = ("requests", "failed", "tokens", "different", "resumed")
    figures = {name: result[name] for name in names} | {"kills": sum(killed.values()), "killed": dict(killed)}
    figures |= {"hang_seconds": HANG_SECONDS, "longest_gap_seconds": max(gaps)}
    return figures | {"seconds": time.monotonic() - start}


def workers(log: str) -> dict[int, tuple[int, str, int]]:
    """Return (number, role, process) of each worker, by the newest line in the server's log that says so."""
    found = re.findall(r"worker (\d+) \((\w+)\) is up, process (\d+)", Path(log).read_text())
    return {int(number): (int(number), role, int(process)) for number, role, process in found}


def bursts(settings: Settings, minutes: float) -> dict[str, Any]:
    """Send requests at RATE on average, that come in bursts, to one prefill and one decode worker."""
    with served("--max-queue", "100000") as (url, _):
        return run(send_bursts(url, minutes * 60, settings.config().vocab_size))


async def send_bursts(url: str, seconds: float, vocab_size: int) -> dict[str, Any]:
    import httpx

    rng, result, gaps, longest = random.Random("bursts"), Counter(), [0.0], 0.0
    start, said, open_requests = time.monotonic(), time.monotonic(), set()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

        async def one(number: int) -> None:
            nonlocal longest
            prompt = random_prompt(SHORT if number % 8 else LONG, vocab_size, f"burst {number}")
            length, begun = rng.randint(2, 24), time.monotonic()
            try:
                tokens = await ask(http, prompt, {"max_tokens": length, "ignore_eos": True}, gaps)
                result["answered" if len(tokens) == length else "incomplete"] += 1
                longest = max(longest, time.monotonic() - begun)
            except (httpx.HTTPError, ValueError) as error:
                result["failed"] += 1
                print(f"request {number} failed: {error!r}", file=sys.stderr)

        while (now := time.monotonic()) - start < seconds:
            for _ in range(min(rng.choice([1, 1, 2, 16]), MOST_OPEN - len(open_requests))):
                task = asyncio.create_task(one(result["sent"]))
                result["sent"] += 1
                open_requests.add(task)
                task.add_done_callback(open_requests.discard)
            if now - said > LINE_SECONDS:
                said = now
                print(f"{now - start:6.0f} s  {dict(result)}, {len(open_requests)} open", file=sys.stderr, flush=True)
            await asyncio.sleep(rng.expovariate(RATE / 5))
        if open_requests:
            await asyncio.wait(open_requests, timeout=300)
    unanswered = result["sent"] - result["answered"]
    return dict(result) | {"unanswered": unanswered, "seconds": seconds, "longest_answer_seconds": longest}


if __name__ == "__main__":
    what, much = sys.argv[1:]
    print(
        json.dumps(
            {"kills": lambda: kills(Settings(), int(much)), "bursts": lambda: bursts(Settings(), float(much))}[what]()
        )
    )

"""What one client may do to the others: each of the worst requests there is, beside clients that stream.

    python -m common.bench.experiments.worst_client --stage 06 --seconds 20 --windows 3 --json FILE

For each kind of request, one client sends it over and over while others stream. A window's figure is the longest gap
between two chunks of any stream. One longest gap is noise, so every kind has several windows, and so has "nothing",
without such a client, of the same length and in turn with the others; the median of the windows and the largest are
shown. What a server cannot avoid is the gap that one step of prefill makes, that of the longest prompt. To measure an
older version of the server, copy this file to a checkout of it.
"""

import asyncio
import itertools
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from ..arrivals import closed_loop
from ..client import PATHS, REQUEST_SECONDS, Connections, Target, converse, run, served_models
from ..experiment import run_experiment
from ..harness import Figures, aggregate, alternate
from ..load import running_server
from ..settings import Settings
from ..workloads import Job

NOTHING = "nothing"  # the windows without a worst client
ANSWER_TOKENS = 100  # of the streams that are watched


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


def send_all(url: str, context: int, kind: str, seconds: float) -> list[str | None]:
    """Send requests of this kind, one after another, at least once; return what was wrong with each answer."""
    import httpx

    async def send_one_by_one() -> list[str | None]:
        attack, outcomes, end = attacks(context)[kind], [], time.perf_counter() + seconds
        async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS) as http:
            while not outcomes or time.perf_counter() < end:
                outcomes.append(await send(http, attack))
        return outcomes

    return [] if kind == NOTHING else run(send_one_by_one())


async def longest_gap(connections: Connections, model: str, streams: int, seconds: float, tokens: int) -> float:
    """Return the longest time between two chunks of one of the streams, in seconds."""
    end = time.perf_counter() + seconds
    numbers = itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count())
    jobs = (Job(f"Story {number % streams}", tokens) for number in numbers)
    result = await closed_loop(jobs, streams, lambda job: converse(connections, Target(model), [job]))
    return max(result.checked().values("itl"))


async def watch(url: str, streams: int, seconds: float, windows: int, tokens: int = ANSWER_TOKENS) -> Figures:
    """Return by kind of request the figures of its windows, and what was wrong with answers."""
    # The worst client has a process of its own: its bodies would hold up the client that measures.
    spawned = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    async with Connections(url) as connections:
        [model, *_] = await served_models(connections)
        name, context = model["id"], model["max_model_len"]
        found: dict[str, list[Figures]] = {kind: [] for kind in (NOTHING, *attacks(context))}
        wrong: dict[str, set[str]] = {kind: set() for kind in found}
        with spawned as worst_client:
            worst_client.submit(send_all, url, context, NOTHING, 0.0).result()  # it has started
            await longest_gap(connections, name, streams, min(seconds, 2.0), tokens)  # warm-up
            for kind in itertools.chain(*alternate(list(found), windows)):
                sending = worst_client.submit(send_all, url, context, kind, seconds)
                gap = await longest_gap(connections, name, streams, seconds, tokens)
                outcomes = sending.result()
                found[kind].append({"longest_gap_s": gap, "sent": len(outcomes)})
                wrong[kind] |= set(filter(None, outcomes))
                print(f"{kind:>24}: {1e3 * gap:8.0f} ms, sent {len(outcomes)} times", file=sys.stderr)
    sides = {kind: aggregate(figures) for kind, figures in found.items()}
    return {"sides": sides, "wrong": {kind: sorted(outcomes) for kind, outcomes in wrong.items() if outcomes}}


def table(document: dict) -> list[str]:
    """Return a line for each kind of request: milliseconds of the longest gap, the windows' median and the largest."""
    gaps = {kind: figures["longest_gap_s"] for kind, figures in document["sides"].items()}
    lines = [f"{kind:>24}  {1e3 * gap['median']:6.0f}  {1e3 * gap['max']:7.0f}" for kind, gap in gaps.items()]
    wrong = [f"{kind}: {outcome}" for kind, said in document["wrong"].items() for outcome in said]
    return [f"{'longest gap in ms':>24}  median  largest", *lines, *wrong]


def measure(
    settings: Settings, stage: str = "06", streams: int = 8, seconds: float = 20.0, windows: int = 3
) -> Figures:
    with running_server(stage, settings) as url:
        return run(watch(url, streams, seconds, windows))


if __name__ == "__main__":
    sys.exit(run_experiment(measure, table=table))

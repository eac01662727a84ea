"""What one client may do to the others: each of the worst requests there is, beside clients that stream.

    python -m common.bench.experiments.worst_client --stage 06 --seconds 20 --windows 3 --json FILE

For each kind of request, one client sends it over and over while others stream. A window's figure is the longest gap
between two chunks of any stream. One longest gap is noise, so every kind has several windows, and so has "nothing",
without such a client, of the same length and in turn with the others; the median of the windows and the largest are
shown. What a server cannot avoid is the gap that one step of prefill makes, that of the longest prompt. To measure an
older version of the server, copy this file to a checkout of it.
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from ..documents import write_json
from ..hardware import hardware
from ..harness import Figures, aggregate, alternate
from ..http_client import events, run
from ..load import running_server
from ..settings import Settings

NOTHING = "nothing"  # the windows without a worst client
ANSWER_TOKENS = 100  # of the streams that are watched
WAIT_SECONDS = 600


class Attack(NamedTuple):
    """A request that is as bad as its kind can be, and how a server may answer it."""

    path: str
    body: dict[str, Any]
    allowed: tuple[int, ...]  # statuses
    hang_up_after: float | None = None  # seconds


def attacks(context: int) -> dict[str, Attack]:
    """Return all kinds by name. `context`: tokens of the longest prompt."""
    completions, busy = "/v1/completions", (200, 429)
    prompt = [5 + i % 1000 for i in range(context - 2)]
    return {
        "longest prompt": Attack(completions, {"prompt": prompt, "max_tokens": 1}, busy),
        "too much text": Attack(completions, {"prompt": "the cat sat " * 80_000, "max_tokens": 1}, (400, 413)),
        "longest text": Attack(completions, {"prompt": "the cat sat " * (context // 4), "max_tokens": 1}, busy),
        "a body of mistakes": Attack(completions, {"prompt": [-1] * 250_000}, (400, 413)),
        "most stop strings": Attack(
            completions,
            {"prompt": "a", "max_tokens": 64, "ignore_eos": True, "stop": ["a" * 200 + f"{i}" for i in range(32)]},
            busy,
        ),
        "too many stop strings": Attack(completions, {"prompt": "a", "stop": ["a" * 20] * 40_000}, (400, 413)),
        "echo with most logprobs": Attack(
            completions, {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 20}, busy
        ),
        "128 choices": Attack(
            completions, {"prompt": "a", "n": 128, "max_tokens": 8, "logprobs": 20, "ignore_eos": True}, (200, 400, 429)
        ),
        "hanging up": Attack(
            completions, {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 20}, (), hang_up_after=0.2
        ),
    }


async def send(http, attack: Attack) -> str | None:
    """Send it once; what is wrong with the answer, or None."""
    import httpx

    try:
        answer = await asyncio.wait_for(http.post(attack.path, json=attack.body), attack.hang_up_after)
    except asyncio.TimeoutError:
        return None
    except httpx.HTTPError as error:
        return repr(error)
    if attack.allowed and answer.status_code not in attack.allowed:
        return f"status {answer.status_code}: {answer.text[:200]}"
    return None


async def longest_gap(http, streams: int, seconds: float, tokens: int) -> float:
    """Return the longest time between two chunks of one of the streams, in seconds."""
    longest, end = 0.0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal longest
        body = {"prompt": f"Story {number}", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        while time.perf_counter() < end:
            async with http.stream("POST", "/v1/completions", json=body) as response:
                response.raise_for_status()
                before = None
                async for moment, _ in events(response):
                    longest = max(longest, moment - before if before else 0.0)
                    before = moment

    await asyncio.gather(*(client(number) for number in range(streams)))
    return longest


@contextmanager
def attacker(url: str, context: int) -> Iterator[Callable[[str], AbstractContextManager[list[str | None]]]]:
    """Run the worst client in a process of its own: bodies would hold up the client that measures.

    Gives a function of a request's name: that request is sent over and over for as long as its block runs; the list
    that it gives has the outcomes afterwards.
    """
    spawn = multiprocessing.get_context("spawn")
    names, answers, stop = spawn.Queue(), spawn.Queue(), spawn.Event()
    process = spawn.Process(target=attack, args=(url, context, names, answers, stop), daemon=True)

    @contextmanager
    def sending(name: str) -> Iterator[list[str | None]]:
        outcomes: list[str | None] = []
        stop.clear()
        names.put(name)
        answers.get(timeout=WAIT_SECONDS)  # it has begun
        try:
            yield outcomes
        finally:
            stop.set()
            outcomes += answers.get(timeout=WAIT_SECONDS)

    process.start()
    try:
        yield sending
    finally:
        names.put(None)
        process.join()


def attack(url: str, context: int, names, answers, stop) -> None:
    """Run in the attacker's process, until the name is None."""

    async def send_all() -> None:
        import httpx

        async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as http:
            while (name := names.get()) is not None:
                request, outcomes = attacks(context)[name], []
                answers.put("begun")
                while not stop.is_set() or not outcomes:
                    outcomes.append(await send(http, request))
                answers.put(outcomes)

    run(send_all())


async def measure(
    url: str, streams: int, seconds: float, windows: int, tokens: int = ANSWER_TOKENS
) -> tuple[dict[str, Figures], dict[str, list[str]]]:
    """Return by kind of request the figures of its windows, and what was wrong with answers."""
    import httpx

    async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS, limits=httpx.Limits(max_connections=None)) as http:
        context = (await http.get("/v1/models")).json()["data"][0]["max_model_len"]
        await longest_gap(http, streams, min(seconds, 2.0), tokens)  # warm-up
        found: dict[str, list[Figures]] = {kind: [] for kind in (NOTHING, *attacks(context))}
        wrong: dict[str, set[str]] = {kind: set() for kind in found}
        with attacker(url, context) as sending:
            for kind in (kind for order in alternate(list(found), windows) for kind in order):
                with nullcontext([]) if kind == NOTHING else sending(kind) as outcomes:
                    gap = await longest_gap(http, streams, seconds, tokens)
                found[kind].append({"longest_gap_s": gap, "sent": len(outcomes)})
                wrong[kind] |= set(filter(None, outcomes))
                print(f"{kind:>24}: {1e3 * gap:8.0f} ms, sent {len(outcomes)} times", file=sys.stderr)
    sides = {kind: aggregate(figures) for kind, figures in found.items()}
    return sides, {kind: sorted(outcomes) for kind, outcomes in wrong.items() if outcomes}


def table(sides: dict[str, Figures]) -> str:
    """Return a line for each kind of request: milliseconds of the longest gap, the windows' median and the largest."""
    gaps = {kind: figures["longest_gap_s"] for kind, figures in sides.items()}
    lines = [f"{kind:>24}  {1e3 * gap['median']:6.0f}  {1e3 * gap['max']:7.0f}" for kind, gap in gaps.items()]
    return "\n".join([f"{'longest gap in ms':>24}  median  largest", *lines])


def main() -> int:
    parser = argparse.ArgumentParser("python -m common.bench.experiments.worst_client", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--stage", default="06", help="default: 06")
    parser.add_argument("--streams", type=int, default=8, help="clients that are watched (default: 8)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a window (default: 20)")
    parser.add_argument("--windows", type=int, default=3, help="for each kind of request (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    Settings.add_arguments(parser)
    args = parser.parse_args()
    settings = Settings.from_arguments(args)
    with running_server(args.stage, settings) as url:
        sides, wrong = run(measure(url, args.streams, args.seconds, args.windows))
    document = {
        "benchmark": "common.bench.experiments.worst_client",
        "settings": settings.describe(),
        "hardware": hardware(settings.place()[0]),
        "sizes": {name: vars(args)[name] for name in ("stage", "streams", "seconds", "windows")},
        "sides": sides,
        "wrong": wrong,
    }
    print(table(sides), *(f"{kind}: {outcome}" for kind, said in wrong.items() for outcome in said),
          write_json(args.json, document), sep="\n")  # fmt: skip
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

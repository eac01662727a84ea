"""What one client may do to the others: each of the worst requests there is, beside clients that stream.

    python -m common.bench.experiments.worst_client --stage 06 --seconds 20 --json FILE

For each kind of request, one client sends it over and over while others stream. Reported is the longest gap between two
chunks of any stream, and the same without such a client. What a server cannot avoid is the gap that one step of prefill
makes, that of the longest prompt. To measure an older version of the server, copy this file to a checkout of it.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..documents import rounded, write_atomically
from ..hardware import hardware
from ..http_client import events, run
from ..load import running_server
from ..settings import Settings

ANSWER_TOKENS = 100  # of the streams that are watched
WAIT_SECONDS = 600


class Attack(NamedTuple):
    """A request that is as bad as its kind can be, and how a server may answer it."""

    path: str
    body: dict[str, Any]
    allowed: tuple[int, ...]  # statuses
    hang_up_after: float | None = None  # seconds


def attacks(context: int) -> dict[str, Attack]:
    """By name. `context`: tokens of the longest prompt."""
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
    """Seconds between two chunks of one of the streams, the longest there was."""
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


class Attacker:
    """The worst client. It is a process of its own, or the client that measures would be held up by the bodies too."""

    def __init__(self, url: str, context: int):
        spawn = multiprocessing.get_context("spawn")
        self.names, self.answers, self.stop = spawn.Queue(), spawn.Queue(), spawn.Event()
        arguments = url, context, self.names, self.answers, self.stop
        self.process = spawn.Process(target=attack, args=arguments, daemon=True)
        self.process.start()

    @contextmanager
    def sending(self, name: str) -> Iterator[list[str | None]]:
        """Send this request over and over for as long as the block runs; the list has the outcomes afterwards."""
        outcomes: list[str | None] = []
        self.stop.clear()
        self.names.put(name)
        self.answers.get(timeout=WAIT_SECONDS)  # it has begun
        try:
            yield outcomes
        finally:
            self.stop.set()
            outcomes += self.answers.get(timeout=WAIT_SECONDS)

    def close(self) -> None:
        self.names.put(None)
        self.process.join()


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


async def measure(url: str, streams: int, seconds: float, tokens: int = ANSWER_TOKENS) -> dict[str, dict[str, Any]]:
    import httpx

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        context = (await http.get("/v1/models")).json()["data"][0]["max_model_len"]
        await longest_gap(http, streams, min(seconds, 2.0), tokens)  # warm-up
        figures: dict[str, dict[str, Any]] = {
            "nothing": {"longest_gap_s": await longest_gap(http, streams, seconds, tokens)}
        }
        attacker = Attacker(url, context)
        for name in attacks(context):
            with attacker.sending(name) as outcomes:
                gap = await longest_gap(http, streams, seconds, tokens)
            wrong = sorted({outcome for outcome in outcomes if outcome})
            figures[name] = {"longest_gap_s": gap, "sent": len(outcomes), "wrong": wrong}
            print(f"{name:>24}: {1e3 * gap:8.0f} ms, sent {len(outcomes)} times {wrong or ''}", file=sys.stderr)
        attacker.close()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser("python -m common.bench.experiments.worst_client", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--stage", default="06", help="default: 06")
    parser.add_argument("--streams", type=int, default=8, help="clients that are watched (default: 8)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kind of request (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    Settings.add_arguments(parser)
    args = parser.parse_args()
    settings = Settings.from_arguments(args)
    with running_server(args.stage, settings) as url:
        figures = run(measure(url, args.streams, args.seconds))
    device, dtype = settings.place()
    document = {"hardware": hardware(device), "dtype": str(dtype), "stage": args.stage, "streams": args.streams}
    line = json.dumps(rounded(document | {"figures": figures}))
    if args.json:
        write_atomically(args.json, line + "\n")
    print(line)
    return int(any(figure.get("wrong") for figure in figures.values()))


if __name__ == "__main__":
    sys.exit(main())

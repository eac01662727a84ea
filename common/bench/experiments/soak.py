"""Keeps a server busy for minutes and watches its memory, which must not grow.

    python -m common.bench.experiments.soak --stage 06 --minutes 5

The server's own /metrics tells its memory. A line is fitted through the second half of the samples; in the first one
caches fill and allocators settle. One more client sends the worst requests there are (worst_client.py), one kind after
the other. The exit status is 1 if a request failed that should not, or if memory grew in that half by more than 1 % of
itself.
"""

import argparse
import asyncio
import itertools
import re
import statistics
import sys
import time
from pathlib import Path

from common.loader import load_tokenizer

from ..documents import write_json
from ..hardware import hardware
from ..http_client import run
from ..load import running_server
from ..metrics import RequestRecord
from ..openai_client import Connections, Target, converse
from ..settings import Settings
from ..workloads import corpus_jobs
from .worst_client import attacks, send

SAMPLE_SECONDS = 5.0
MOST_GROWTH = 0.01
POOL = "256M"  # of K and V: a system gives memory out when it is first written to, so a large pool fills for minutes


def main() -> int:
    parser = argparse.ArgumentParser("python -m common.bench.experiments.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--stage", default="06", help="default: 06")
    parser.add_argument("--minutes", type=float, default=5.0, help="default: 5")
    parser.add_argument("--clients", type=int, default=32, help="default: 32")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples")
    Settings.add_arguments(parser)
    args = parser.parse_args()
    settings = Settings.from_arguments(args)
    pool = ["--kv-memory", POOL] if args.stage >= "05" else []
    with running_server(args.stage, settings, *pool) as url:
        records, samples, wrong = run(soak(url, settings, args.minutes * 60, args.clients))
    failed = [record for record in records if not record.success]
    growth = grown(samples)
    tokens = sum(record.output_tokens for record in records)
    print(f"{len(records)} requests, {len(failed)} failed, {tokens / samples[-1][0]:.0f} output tokens per second")
    print(f"the worst client was answered as it should be {wrong.count(None)} of {len(wrong)} times")
    for outcome in sorted({outcome for outcome in wrong if outcome}):
        print(f"it was not: {outcome}")
    print(f"memory: {samples[-1][1] / 1e6:.0f} MB at the end, {100 * growth:+.2f} % in the second half")
    document = {
        "benchmark": "common.bench.experiments.soak",
        "settings": settings.describe(),
        "hardware": hardware(settings.place()[0]),
        "stage": args.stage,
        "clients": args.clients,
        "requests": len(records),
        "failed": len(failed),
        "worst_requests": len(wrong),
        "growth": growth,
        "seconds_and_bytes": samples,
    }
    write_json(args.json, document)
    return int(bool(failed) or any(wrong) or growth > MOST_GROWTH)


async def soak(
    url: str, settings: Settings, seconds: float, clients: int
) -> tuple[list[RequestRecord], list[tuple[float, float]], list[str | None]]:
    """Return all requests, (seconds since the start, bytes of the server) in turn, and the worst client's outcomes."""
    jobs = itertools.cycle(corpus_jobs(load_tokenizer(settings.folder()), 2000, most_tokens=128))
    records: list[RequestRecord] = []
    samples: list[tuple[float, float]] = []
    outcomes: list[str | None] = []
    start = time.perf_counter()
    async with Connections(url) as connections:

        async def client() -> None:
            while time.perf_counter() - start < seconds:
                records.extend(await converse(connections, Target("bundled"), [next(jobs)]))

        async def watch() -> None:
            while time.perf_counter() - start < seconds:
                await asyncio.sleep(SAMPLE_SECONDS)
                async with connections.one() as http:
                    text = (await http.get("/metrics")).text
                resident = float(re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)[1])
                samples.append((time.perf_counter() - start, resident))
                print(f"{samples[-1][0]:6.0f} s  {resident / 1e6:8.1f} MB  {len(records):>6} requests", flush=True)

        async def worst_client() -> None:
            async with connections.one() as http:
                context = (await http.get("/v1/models")).json()["data"][0]["max_model_len"]
                for attack in itertools.cycle(attacks(context).values()):
                    if time.perf_counter() - start >= seconds:
                        return
                    outcomes.append(await send(http, attack))

        await asyncio.gather(watch(), worst_client(), *(client() for _ in range(clients)))
    return records, samples, outcomes


def grown(samples: list[tuple[float, float]]) -> float:
    """Return how much of itself the memory grows in the second half, by a line through its samples."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return 0.0
    slope, _ = statistics.linear_regression(*zip(*half, strict=True))
    return slope * (half[-1][0] - half[0][0]) / half[0][1]


if __name__ == "__main__":
    sys.exit(main())

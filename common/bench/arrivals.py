"""When the work of a benchmark begins: a closed loop of clients, or an open loop with Poisson arrivals.

In a closed loop N clients each begin their next piece of work when their last one has ended: N are always under way,
and a slow server is asked less often. It finds what a server can do at most. In an open loop work arrives at a rate and
does not wait for answers, as users do not: it shows how long they wait, and above the server's capacity the queue grows
for as long as the run lasts. Gaps between users who know nothing of each other are exponentially distributed: a Poisson
process.

A piece of work is anything (one request, one conversation); `serve` does it and returns the records of its requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import TypeVar

from .metrics import LoadResult, RequestRecord

Work = TypeVar("Work")
Serve = Callable[[Work], Awaitable[list[RequestRecord]]]


async def closed_loop(work: Iterable[Work], clients: int, serve: Serve) -> LoadResult:
    """Do all of the work, by `clients` clients at once."""
    waiting = iter(work)  # one for all clients: each takes the next piece that is left

    async def client() -> list[RequestRecord]:
        return [record for piece in waiting for record in await serve(piece)]

    return await timed(client() for _ in range(clients))


async def open_loop(work: Sequence[Work], moments: Sequence[float], serve: Serve) -> LoadResult:
    """Begin each piece of work at its moment, in seconds from now, however many are still under way."""
    start = time.perf_counter()

    async def arrive(moment: float, piece: Work) -> list[RequestRecord]:
        await asyncio.sleep(start + moment - time.perf_counter())
        return await serve(piece)

    return await timed(arrive(*pair) for pair in zip(moments, work, strict=True))


async def timed(clients: Iterable[Awaitable[list[RequestRecord]]]) -> LoadResult:
    """Run all of them at once."""
    wall, processor = time.perf_counter(), time.process_time()
    answered = await asyncio.gather(*clients)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return LoadResult([record for records in answered for record in records], wall, processor)


def poisson_arrivals(count: int, rate: float, seed: int | str = 0) -> list[float]:
    """Return the moments of `count` arrivals, in seconds, `rate` of them a second on average."""
    rng = Random(f"arrivals/{seed}")
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))

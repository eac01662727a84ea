"""The load of many clients on an engine in this process: what the engine does, without what HTTP adds to it.

The same closed loop as in client.py, and the same metrics: N requests are always under way, and a new one is added when
one ends. It needs no web framework, so that it also runs on GPU machines that have none.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from common.engine import BaseEngine
from common.request import Request
from common.sampling import SamplingParams

from .metrics import LoadResult, RequestRecord
from .workloads import Job

T = TypeVar("T")


def engine_load(engine: BaseEngine, jobs: Sequence[Job], *, concurrency: int) -> LoadResult:
    """Run all jobs, `concurrency` at a time. A step gives a request one chunk, which arrives when the step ends."""
    start = time.perf_counter()
    waiting, finished = iter(jobs), []
    chunks: defaultdict[Request, list[float]] = defaultdict(list)
    for job in islice(waiting, concurrency):
        add(engine, job)
    while engine.has_unfinished:
        changed = engine.step()
        now = time.perf_counter()
        for request in changed:
            chunks[request].append(now)
            if request.finished:
                finished.append(request)
                if (job := next(waiting, None)) is not None:
                    add(engine, job)
    return LoadResult([record(request, chunks[request]) for request in finished], time.perf_counter() - start)


def in_turn(kinds: Iterable[str], rounds: int, run: Callable[[str, int], T]) -> dict[str, list[T]]:
    """Return what run(kind, number) returns for each kind in each round, without round 0, which is a warm-up.

    The order turns round with each round, so that a machine that changes its speed does so for all kinds.
    """
    results: dict[str, list[T]] = {kind: [] for kind in kinds}
    for number in range(1 + rounds):
        for kind in list(results)[:: 1 if number % 2 else -1]:
            found = run(kind, number)
            if number:
                results[kind].append(found)
    return results


def answer(engine: BaseEngine, prompt: Sequence[int], tokens: int) -> Request:
    """Return the request for this prompt once it has `tokens` output tokens."""
    [request] = engine.generate([prompt], SamplingParams(max_tokens=tokens, ignore_eos=True))
    return request


def add(engine: BaseEngine, job: Job) -> Request:
    params = SamplingParams(max_tokens=job.max_tokens, ignore_eos=job.ignore_eos, **job.sampling)
    return engine.add(job.prompt, params)


def record(request: Request, chunks: list[float]) -> RequestRecord:
    prompt_tokens, output_tokens = len(request.prompt_token_ids), len(request.token_ids)
    return RequestRecord(request.timings.arrival, chunks[-1], chunks, prompt_tokens, output_tokens)

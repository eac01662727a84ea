"""The load of many clients on an engine in this process: what the engine does, without what HTTP adds to it.

The same closed loop as in client.py, and the same metrics: N requests are always under way, and a new one is added when
one ends. It needs no web framework, so that it also runs on GPU machines that have none.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from common.engine import BaseEngine
from common.request import Request
from common.sampling import SamplingParams

from .metrics import LoadResult, RequestRecord
from .workloads import Job


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


def add(engine: BaseEngine, job: Job) -> Request:
    params = SamplingParams(max_tokens=job.max_tokens, ignore_eos=job.ignore_eos, **job.sampling)
    return engine.add(job.prompt, params)


def record(request: Request, chunks: list[float]) -> RequestRecord:
    prompt_tokens, output_tokens = len(request.prompt_token_ids), len(request.token_ids)
    return RequestRecord(request.timings.arrival, chunks[-1], chunks, prompt_tokens, output_tokens)

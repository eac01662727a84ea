"""What does one tenant's flood cost the others, and what does a server keep when more comes than it can serve?

Method. Stage 06 serves HTTP, from a process of its own beside the engine's. Four quiet tenants send requests at random
times (Poisson). A fifth does the same, or hundreds of clients of its own send one after another; the policy is first
come, first served, or fair. Times to the first token are those of the four, and tokens per second those of all five,
for as long as requests of the fifth wait. Then one tenant sends at rates from half of what the server can do to twice
as much, with a promise for the first token and without one: how many requests a second keep it.

Expectation. First come, first served, a quiet tenant waits for what is left of the flood. With fairness it waits for a
place in the batch, and its steps are as long as the flood makes them. Beyond its capacity a queue grows for as long as
the load lasts, so without a promise only those who came first are in time; with one about as many as at its capacity.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.bench import plots
from common.bench.client import Target, find_target, generate_load
from common.bench.harness import Benchmark, Figures
from common.bench.load import running_server
from common.bench.metrics import percentiles
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.workloads import Job, worded_jobs

STAGE = "06_prefix_cache"
TENANTS = ("flood", "anna", "bert", "cleo", "dora")
LABELS = {"equals": "no flood", "fcfs": "flood,\nfirst come", "fair": "flood,\nfair"}


def serving(settings: Settings, sizes: dict, *options: str) -> AbstractContextManager[str]:
    """Run the server, with steps of one size: measured at each start, the token budget would differ."""
    step = "--max-running", str(sizes["running"]), "--token-budget", str(sizes["budget"])
    return running_server(STAGE, settings, *step, *options)


def jobs_of(sizes: dict, count: int, number: int) -> list[Job]:
    return worded_jobs("mixed", count, sizes["prompt"], sizes["output"], number=number, ignore_eos=True)


def tenants(policy: str, floods: bool, settings: Settings, sizes: dict) -> Figures:
    """Return what the quiet tenants wait for a first token, in milliseconds, and the rate of all."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(TENANTS)) as pool:
        keys = Path(folder, "keys")
        keys.write_text("".join(f"{name} key-of-{name}\n" for name in TENANTS))
        with serving(settings, sizes, "--scheduling", policy, "--api-keys", str(keys), "--api-process") as url:
            target = find_target(url, jobs_of(sizes, 1, 0)[0], Target(api_key="key-of-flood"))
            loads = []
            for number, name in enumerate(TENANTS, start=1):
                count, arrivals = sizes["quiet"], {"rate": sizes["rate"]}
                if name == "flood" and floods:
                    count, arrivals = sizes["flood"], {"concurrency": sizes["flooding"]}
                send = partial(generate_load, url, jobs_of(sizes, count, number), **arrivals, seed=name)
                loads.append(pool.submit(send, replace(target, api_key=f"key-of-{name}")))
            results = [load.result().checked() for load in loads]
    waits = percentiles([wait for result in results[1:] for wait in result.values("ttft")])
    records = [record for result in results for record in result.records]
    ends = sorted(record.end for record in results[0].records)
    start, end = min(record.start for record in records), ends[-1 - sizes["running"] :][0]
    tokens = sum(record.output_tokens for record in records if record.end <= end)
    return {"p50_ms": 1e3 * waits["p50"], "p99_ms": 1e3 * waits["p99"], "tokens_per_second": tokens / (end - start)}


def overload(promises: bool, settings: Settings, sizes: dict) -> Figures:
    """Return requests per second that have their first token in time, at each load."""
    with serving(settings, sizes, *["--ttft-objective", str(sizes["ttft"])] * promises) as url:
        target = find_target(url, jobs_of(sizes, 1, 0)[0], Target())
        full = generate_load(url, jobs_of(sizes, sizes["requests"], 1), target, concurrency=sizes["clients"])
        capacity = len(full.successful) / full.seconds
        found: Figures = {"capacity": capacity, "goodput": [], "refused_percent": [], "late_percent": []}
        for number, load in enumerate(sizes["loads"], start=2):
            jobs = jobs_of(sizes, max(2, round(load * capacity * sizes["seconds"])), number)
            result = generate_load(url, jobs, target, rate=load * capacity)
            kept, sent = result.meeting({"ttft": sizes["ttft"]}), len(result.records)
            found["goodput"].append(len(kept) / sent * load * capacity)
            found["refused_percent"].append(100 * (sent - len(result.successful)) / sent)
            found["late_percent"].append(100 * (len(result.successful) - len(kept)) / sent)
    return found


def draw(document: dict, png: Path) -> None:
    sides, sizes = document["sides"], document["sizes"]
    message = "A flood makes quiet tenants wait {:.0f} times as long, and with fairness {:.1f} times"
    waits = {side: sides[side]["p99_ms"]["median"] for side in LABELS}
    message = message.format(*(waits[side] / waits["equals"] for side in ("fcfs", "fair")))
    remark = f"A flood of {sizes['flooding']} clients. In time: a first token within {sizes['ttft']:g} s."
    with plots.page(png, document, message, columns=2, height=4.6, remark=remark) as (wait, goodput):
        plots.logarithmic(wait)
        plots.bars(wait, [STAGE] * 3, [sides[side]["p99_ms"] for side in LABELS], list(LABELS.values()))
        plots.axes(wait, "", "milliseconds", "First token of quiet tenants, p99")
        plots.line(goodput, sizes["loads"], sides["promises"]["goodput"], STAGE, "with promises")
        plots.line(goodput, sizes["loads"], sides["no promises"]["goodput"], STAGE, "without", dashed=True)
        plots.axes(goodput, "arriving, in capacities", "requests/s", "Requests in time")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        **{"equals": partial(tenants, "fair", False), "fcfs": partial(tenants, "fcfs", True)},
        **{"fair": partial(tenants, "fair", True)},
        **{"no promises": partial(overload, False), "promises": partial(overload, True)},
    },
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""How much of what the engine generates reaches the clients?

Method. The same requests, 32 at a time, each side in a process of its own: the engine of stage 06 driven by a loop in
its own process, and its server asked over HTTP for streamed completions, the load generator on the same cores; and the
server with `--api-process --stream-interval 8`. The processor time that the client takes is measured as well.

Expectation. An engine's step computes outside of Python's interpreter lock, and while it does, the event loop can write
what the step before has brought. So the server costs the Python between two steps, and, on two cores that the engine
already keeps busy, all of the client's time. A chunk costs each of them some 50 to 100 microseconds.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.bench import plots
from common.bench.client import Target, generate_load
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures
from common.bench.load import running_server
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.bench.workloads import Job, corpus_jobs
from common.loader import load_tokenizer
from common.stages import load_engine

STAGE = "06_prefix_cache"
APART = ("--api-process", "--stream-interval", "8")
SIDES = {
    "engine": "the engine alone",
    "server": "over HTTP, streamed",
    "apart": "over HTTP in a process of its own, 8 tokens a chunk",
}


def jobs_of(settings: Settings, sizes: dict, seed: int) -> list[Job]:
    tokenizer = load_tokenizer(settings.folder())
    return corpus_jobs(tokenizer, sizes["requests"], seed=seed, most_tokens=sizes["most_tokens"])


def measure_engine(settings: Settings, sizes: dict) -> Figures:
    engine = load_engine(STAGE)(settings.load())
    engine_load(engine, jobs_of(settings, sizes, 0), concurrency=sizes["clients"])  # warm-up
    result = engine_load(engine, jobs_of(settings, sizes, 1), concurrency=sizes["clients"])
    return {"tokens_per_second": result.throughput}


def measure_server(settings: Settings, sizes: dict, *options: str) -> Figures:
    with running_server(STAGE, settings, *options) as url:
        for seed in (0, 1):  # the first is a warm-up
            jobs = jobs_of(settings, sizes, seed)
            result = generate_load(url, jobs, Target("bundled"), concurrency=sizes["clients"]).checked()
    client_percent = 100 * result.client_seconds / result.seconds
    return {"tokens_per_second": result.throughput, "client_processor_percent": client_percent}


def draw(document: dict, png: Path) -> None:
    rates = {label: document["sides"][side]["tokens_per_second"] for side, label in measured(document)}
    engine, *servers = (rate["median"] for rate in rates.values())
    shares = " and ".join(f"{100 * server / engine:.0f}" for server in servers)
    message = f"Over HTTP, throughput is {shares} percent of the engine's alone"
    clients = document["sizes"]["clients"]
    remark = f"Stage 06, {clients} clients at once; server and clients share the machine's cores."
    plots.bar_page(png, document, message, remark, rates, "output tokens per second")


def measured(document: dict) -> list[tuple[str, str]]:
    return [(side, label) for side, label in SIDES.items() if side in document["sides"]]


def report(document: dict) -> dict[str, Rows]:
    rows = [["", "output tokens/s", "from least to most", "ms for a token"]]
    for side, label in measured(document):
        rate = document["sides"][side]["tokens_per_second"]
        reach = f"{plots.short(rate['min'])} to {plots.short(rate['max'])}"
        rows.append([label, plots.short(rate["median"]), reach, plots.short(1e3 / rate["median"])])
    return {"throughput": rows}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        "engine": measure_engine,
        "server": measure_server,
        "apart": lambda settings, sizes: measure_server(settings, sizes, *APART),
    },
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""What does a client see of its answer, and when? And what does the machine do meanwhile?

Method. Stages 02 and 03 serve HTTP on this machine, each from a process of its own, and a load generator sends them the
same requests. First one client asks for answers of several lengths: the time until it sees text. Then 1 to 64 clients
at once, each sending its next request when its last one has ended, with questions of the bundled corpus whose answers
are as long as the right ones, up to a limit. Utilisation is the model's arithmetic (2 FLOPs for each parameter and
token) as a share of what one large matrix product reaches on this machine in the same run.

Expectation. Stage 02 answers at the end, so a client of its waits for the whole answer; stage 03 shows the first token
after the prefill, and the end comes no sooner. Both engines run one request at a time: with N clients each waits for
N - 1 others, N times as long (the prediction), first text included; throughput and utilisation stay where they are.
Decoding one token reads every weight for two FLOPs each, so that share is small. Stage 04 is about that.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.ceilings import matmul_flops_per_second
from common.bench.client import Target, generate_load
from common.bench.cost_model import parameters
from common.bench.documents import parts
from common.bench.harness import Benchmark, Figures, Measured, Unavailable
from common.bench.load import running_server
from common.bench.metrics import LoadResult, percentiles
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.workloads import Job, corpus_jobs
from common.loader import load_tokenizer
from common.model import ModelConfig

BEFORE, NOW = "02_kv_cache", "03_streaming"
FIRST, LAST, RATE = "alone_first_text_seconds", "alone_whole_answer_seconds", "output_tokens_per_second"


def measure(stage: str, settings: Settings, sizes: dict, *, stream: bool, options: tuple = ()) -> Figures:
    peak, target = matmul_flops_per_second(*settings.place()), Target(endpoint="generate", stream=stream)
    if (tokenizer := load_tokenizer(settings.folder())) is None:
        raise Unavailable("what is measured here is when text arrives, and this model has no tokenizer")
    with running_server(stage, settings, *options) as url:
        stories = corpus_jobs(tokenizer, sizes["requests_per_answer"], topics=["stories"])

        def load(jobs: list[Job], clients: int) -> LoadResult:
            return generate_load(url, jobs, target, concurrency=clients).checked()

        load([replace(story, max_tokens=max(sizes["answers"])) for story in stories[:2]], 1)  # warm-up
        alone = [load([replace(story, max_tokens=n) for story in stories], 1) for n in sizes["answers"]]
        sweep = []
        for clients in sizes["clients"]:
            count = max(sizes["least_requests"], 2 * clients)
            sweep.append(load(corpus_jobs(tokenizer, count, most_tokens=sizes["most_tokens"]), clients))
    latencies = [percentiles(result.values("e2el")) for result in sweep]
    return {
        "peak_flops_per_second": peak,
        FIRST: [percentiles(result.values("ttft"))["p50"] for result in alone],
        LAST: [percentiles(result.values("e2el"))["p50"] for result in alone],
        "e2el_mean_seconds": [latency["mean"] for latency in latencies],
        "e2el_p50_seconds": [latency["p50"] for latency in latencies],
        RATE: [result.throughput for result in sweep],
        "processed_tokens_per_second": [result.processed_per_second for result in sweep],
    }


def derive(sizes: dict, measured: Measured, config: ModelConfig, *_) -> Figures:
    now, clients = measured[NOW], sizes["clients"]
    share = 100 * 2 * parameters(config) / now["peak_flops_per_second"]  # percent of the peak, for a token per second
    return {
        "utilisation_percent_03_streaming": [share * rate for rate in now["processed_tokens_per_second"]],
        "predicted_e2el_seconds": [n / clients[0] * now["e2el_mean_seconds"][0] for n in clients],
    }


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
    now, clients, tint = sides[NOW], sizes["clients"], plots.color("03")
    message = "One client sees text at once; with many, the queue grows and throughput does not"
    remark = (
        "Over HTTP on one machine, client and server on the same cores. Latency: medians over all requests.\n"
        "Predicted: the number of clients times the mean latency of one."
    )
    panels = [["alone", "latency"], ["alone", "throughput"]]
    with plots.page(png, document, message, mosaic=panels, height=6.4, remark=remark) as (alone, latency, throughput):
        answers, first = sizes["answers"], now[FIRST]
        plots.line(alone, answers, sides[BEFORE][FIRST], BEFORE, "stage 02")
        plots.line(alone, answers, now[LAST], NOW, "stage 03,\nlast text", dashed=True)
        plots.line(alone, answers, first, NOW, "_first text")  # A label at its end would lie on the axis.
        plots.note(alone, answers[-1], first["max"][-1], "stage 03, first text", above=5, align="right", tint=tint)
        for panel in (latency, throughput):
            plots.doubling(panel, clients)
        plots.logarithmic(latency)
        for stage, label in ((BEFORE, "stage 02"), (NOW, "stage 03")):
            plots.line(latency, clients, sides[stage]["e2el_p50_seconds"], stage, label)
            plots.line(throughput, clients, sides[stage][RATE], stage, label)
        plots.predicted(latency, clients, figures["predicted_e2el_seconds"], "predicted")
        plots.axes(alone, "tokens of the answer", "seconds since the request", "One client")
        plots.axes(latency, "clients at once", "seconds", "Many clients: latency of each")
        plots.axes(throughput, "clients at once", "tokens per second", "Many clients: throughput of all")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        BEFORE: partial(measure, BEFORE, stream=False),
        NOW: partial(measure, NOW, stream=True, options=("--max-queue", "128")),
    },
    derive=derive,
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

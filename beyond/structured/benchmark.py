"""What do masks cost? The same 32 requests in stage 06, with a grammar and without, in tokens per second.

Method. Every request gives exactly the same number of tokens at temperature 1: without a grammar because it ignores the
end of a text, with one because the schema wants a longer answer. Both take turns in one process.

Expectation. A mask takes some tens of microseconds of one core for each request, most of them while the model runs. On
two cores the model loses what the masks take: about 32 * 50 us of a step of 20 to 30 ms.
"""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.bench import plots
from common.bench.description import described
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.bench.workloads import corpus_jobs
from common.grammars import json_grammar
from common.stages import load_engine
from common.structured_output import Structure

STAGE = "06_prefix_cache"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"enum": ["red", "green", "blue"]}},
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 1000}


def measure(settings: Settings, sizes: dict) -> Figures:
    """Run the same requests without masks and with them, in turn, so that the machine's own changes meet both alike."""
    engine = load_engine(STAGE)(settings.load())
    samplings = {"free": {}, "masked": {"structure": Structure(json_grammar(SCHEMA))}}
    seconds: dict[str, list[float]] = {kind: [] for kind in samplings}
    for number in range(1 + sizes["rounds"]):
        jobs = corpus_jobs(engine.tokenizer, sizes["requests"], seed=number, most_tokens=sizes["most_tokens"])
        for kind in list(samplings)[:: 1 if number % 2 else -1]:
            sampling = {"temperature": 1.0, "seed": 1} | samplings[kind]
            result = engine_load(
                engine, [replace(job, ignore_eos=True, sampling=sampling) for job in jobs], concurrency=sizes["clients"]
            )
            if number:  # the first is a warm-up
                seconds[kind].append(1 / result.throughput)
    return {f"{kind}_tokens_per_second": 1 / median(each) for kind, each in seconds.items()}


def draw(document: dict, png: Path) -> None:
    free, masked = (document["sides"][STAGE][f"{kind}_tokens_per_second"] for kind in ("free", "masked"))
    # Both took turns, so both met the same machine.
    least, most = (100 * document["headline"]["ratio"][name] for name in ("min", "max"))
    message = f"With a JSON schema, throughput is {least:.0f} to {most:.0f} percent of that without"
    remark = f"Stage 06, {document['sizes']['clients']} requests at once at temperature 1."
    with plots.page(png, document, message, height=4.2, remark=remark) as (panel,):
        plots.bars(panel, ["06", "06"], [free, masked], ["free text", "a JSON schema"])
        plots.axes(panel, "", "output tokens per second")


def report(document: dict) -> dict[str, Rows]:
    rows = [["", "output tokens/s", "from least to most"]]
    for kind, label in (("free", "free text"), ("masked", "a JSON schema for each request")):
        rate = document["sides"][STAGE][f"{kind}_tokens_per_second"]
        rows.append([label, plots.short(rate["median"]), f"{plots.short(rate['min'])} to {plots.short(rate['max'])}"])
    return {"throughput": rows}


BENCHMARK = Benchmark(
    **described(__file__),
    description=__doc__,
    sides={STAGE: measure},
    draw=draw,
    headline=Headline(
        "{clients} requests",
        "output tokens/s",
        (STAGE,),
        lambda sizes, side: {kind: side[f"{kind}_tokens_per_second"] for kind in ("free", "masked")},
        in_turn=True,
    ),
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

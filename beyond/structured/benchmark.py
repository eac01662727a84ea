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
from common.bench.engine_load import engine_load, in_turn
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
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

    def rate(kind: str, number: int) -> float:
        jobs = corpus_jobs(engine.tokenizer, sizes["requests"], seed=number, most_tokens=sizes["most_tokens"])
        jobs = [replace(job, sampling={"temperature": 1.0, "seed": 1} | samplings[kind]) for job in jobs]
        return engine_load(engine, jobs, concurrency=sizes["clients"]).throughput

    rates = in_turn(samplings, sizes["rounds"], rate)
    return {f"{kind}_tokens_per_second": median(each) for kind, each in rates.items()}


def draw(document: dict, png: Path) -> None:
    free, masked = (document["sides"][STAGE][f"{kind}_tokens_per_second"] for kind in ("free", "masked"))
    # Both took turns, so both met the same machine.
    least, most = (100 * document["headline"]["ratio"][name] for name in ("min", "max"))
    message = f"With a JSON schema, throughput is {least:.0f} to {most:.0f} percent of that without"
    remark = f"Stage 06, {document['sizes']['clients']} requests at once at temperature 1."
    rates = {"free text": free, "a JSON schema": masked}
    plots.bar_page(png, document, message, remark, rates, "output tokens per second")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={STAGE: measure},
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

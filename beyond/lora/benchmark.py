"""What do eight adapters in one batch cost, and what do requests pay that have none?

Method. Stage 06 in one process, without HTTP: 32 requests at a time, prompts that share nothing. Three loads in turn,
so that the machine's own changes meet all alike: an engine without adapters; one that holds eight, with requests for
the model alone; and the same one with as many requests for each adapter. The adapters are made up: rank 8, all seven
modules of each layer. A share is the median over the rounds of two rates of one round.

Expectation. A row with an adapter adds 2 r (in + out) operations to each product of 2 in out: for SmolLM2's widths of
576 and 1,536 a thirtieth, as B has zeros beside its own outputs. What is seen is more: four rows share what is read
where 32 did, and the step takes the path of single layers. Requests without an adapter pay for one look at the step.
"""

import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.bench import plots
from common.bench.documents import medians
from common.bench.engine_load import engine_load, in_turn
from common.bench.harness import Benchmark, Figures, spread
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.tables import Rows, reach
from common.bench.workloads import Job, page_prompt
from common.loader import Loaded
from common.lora import random_modules, write_adapter

STAGE = "06_prefix_cache"


def measure(settings: Settings, sizes: dict) -> Figures:
    loaded = settings.load()
    with TemporaryDirectory() as folder:
        names = [f"adapter-{number}" for number in range(sizes["adapters"])]
        folders = {name: Path(folder) / name for name in names}
        for number, of_one in enumerate(folders.values()):
            write_adapter(of_one, random_modules(loaded.config, sizes["rank"], number), alpha=1e-3)
        options = {"token_budget": sizes["token_budget"], "kv_memory": sizes["memory"], "max_running": sizes["clients"]}
        plain, adapted = (engine_of(STAGE, loaded, loras=of, **options) for of in (None, folders))
        loads = {"off": (plain, [None]), "none": (adapted, [None]), "adapters": (adapted, names)}

        def rate(kind: str, number: int) -> float:
            engine, chosen = loads[kind]
            jobs = jobs_for(loaded, sizes, chosen, f"{number}/{kind}")
            return engine_load(engine, jobs, concurrency=sizes["clients"]).throughput

        rates = in_turn(loads, sizes["rounds"], rate)
    return {f"{kind}_tokens_per_second": found for kind, found in rates.items()} | {
        "none_share": share(rates["none"], rates["off"]),
        "adapters_share": share(rates["adapters"], rates["none"]),
    }


def jobs_for(loaded: Loaded, sizes: dict, names: list[str | None], seed: str) -> list[Job]:
    prompts = [page_prompt(loaded, sizes["prompt"], f"{seed}/{i}") for i in range(sizes["requests"])]
    return [Job(one, sizes["output"], sampling={"adapter": names[i % len(names)]}) for i, one in enumerate(prompts)]


def share(rates: list[float], of: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(rates, of, strict=True))


def labels(sizes: dict) -> dict[str, str]:
    held = sizes["adapters"]
    return {
        "off": "without adapters",
        "none": f"{held} adapters held,\nnone asked for",
        "adapters": f"{held} adapters,\n{sizes['clients'] // held} requests each",
    }


def draw(document: dict, png: Path) -> None:
    sizes, sides, _ = medians(document)
    figures = sides[STAGE]
    rates = {label: spread(figures[f"{kind}_tokens_per_second"]) for kind, label in labels(sizes).items()}
    percent = 100 * figures["adapters_share"]
    message = f"{sizes['adapters']} adapters in one batch keep {percent:.0f} percent of the model's own throughput"
    remark = f"{sizes['clients']} requests at a time, {sizes['output']} tokens each, rank {sizes['rank']}."
    plots.bar_page(png, document, message, remark, rates, "output tokens per second")


def report(document: dict) -> dict[str, Rows]:
    figures = document["sides"][STAGE]
    rows = [["requests", "output tokens/s", "share, in turn"]]
    for kind, label in labels(document["sizes"]).items():
        found = figures.get(f"{kind}_share")
        rate = statistics.median(figures[f"{kind}_tokens_per_second"]["median"])
        rows.append([label.replace("\n", " "), plots.short(rate), reach(found) if found else ""])
    return {"throughput": rows}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={STAGE: measure},
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

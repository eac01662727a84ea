"""What is it worth to keep evicted pages on the host, and what does it cost those who never come back?

Method. Stage 06 in one process, without HTTP, with memory for a quarter of all conversations. Each conversation has its
first turn, one after the other; then each comes back, and sends all of it with a few tokens more. Time to first token
of the turns that come back: computed again, from the host, and from the disk after a restart. Then prompts that share
nothing, with a host tier and without, in turn, so that the machine's own changes meet both alike.

Expectation. A page of SmolLM2 takes milliseconds to compute and some tenths of one to copy, so what is left of a turn
is its new tokens. Prompts that never come back pay for the copies out: a page each in 16 tokens.
"""

import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.acceleration.accelerate import make_engine
from common.bench import plots
from common.bench.description import described
from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.bench.workloads import Job, page_prompt
from common.engine import BaseEngine
from common.kv_tiers import TierOptions
from common.loader import Loaded
from common.sampling import SamplingParams
from common.stages import load_engine

STAGE = "06_prefix_cache"
LABELS = {"computed": "computed again", "host": "from the host", "disk": "from the disk, after a restart"}


def measure(settings: Settings, sizes: dict) -> Figures:
    loaded, figures = settings.load(), {}
    with TemporaryDirectory() as folder:
        kinds = {
            "computed": TierOptions(),
            "host": TierOptions(sizes["host"]),
            "disk": TierOptions(sizes["host"], Path(folder)),
        }
        for kind, tiers in kinds.items():
            engine = new_engine(loaded, sizes, tiers)
            said = [turn(engine, page_prompt(loaded, sizes["turn"], i), sizes) for i in range(sizes["conversations"])]
            if kind == "disk":
                engine.close()
                engine = new_engine(loaded, sizes, tiers)
            again = [
                text.all_token_ids + page_prompt(loaded, sizes["more"], f"more {i}") for i, text in enumerate(said)
            ]
            ttft = [turn(engine, prompt, sizes).timings.time_to_first_token for prompt in again]
            figures[f"{kind}_ttft_ms"] = 1e3 * statistics.median(ttft)
            engine.close()
    return figures | nothing_shared(loaded, sizes)


def new_engine(loaded: Loaded, sizes: dict, tiers: TierOptions) -> BaseEngine:
    """Return a warm engine with memory for `fit` conversations, all of which has been touched."""
    tokens = sizes["fit"] * (sizes["turn"] + sizes["more"] + 2 * sizes["answer"] + 16)
    memory = tokens * loaded.config.kv_bytes_per_token(loaded.dtype)
    engine = make_engine(load_engine(STAGE), loaded, tiers=tiers, token_budget=sizes["token_budget"], kv_memory=memory)
    for pages in (engine.cache.k, engine.cache.v):
        pages.zero_()
    turn(engine, page_prompt(loaded, sizes["more"], "warm-up"), sizes)
    return engine


def turn(engine: BaseEngine, prompt: list[int], sizes: dict):
    """Return the request for one turn of a conversation, answered."""
    [request] = engine.generate([prompt], SamplingParams(max_tokens=sizes["answer"], ignore_eos=True))
    return request


def nothing_shared(loaded: Loaded, sizes: dict) -> Figures:
    """Return output tokens per second of prompts that share nothing, and what share of it is left with a host tier."""
    engines = {
        kind: new_engine(loaded, sizes, TierOptions(host)) for kind, host in (("off", None), ("on", sizes["host"]))
    }
    rates: dict[str, list[float]] = {kind: [] for kind in engines}
    for number in range(1 + sizes["rounds"]):
        prompts = [page_prompt(loaded, sizes["prompt"], f"{number}/{i}") for i in range(sizes["prompts"])]
        for kind, engine in list(engines.items())[:: 1 if number % 2 else -1]:
            result = engine_load(engine, [Job(each, sizes["output"]) for each in prompts], concurrency=sizes["clients"])
            if number:  # the first round is a warm-up, and fills the memory
                rates[kind].append(result.throughput)
    shares = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    return {
        "off_tokens_per_second": rates["off"],
        "on_tokens_per_second": rates["on"],
        "share": statistics.median(shares),
    }


def draw(document: dict, png: Path) -> None:
    figures = document["sides"][STAGE]
    times = {label: figures[f"{kind}_ttft_ms"] for kind, label in LABELS.items()}
    ratio = document["headline"]["ratio"]["median"]
    message = f"Pages from the host: a turn that comes back waits {100 / ratio:.0f} percent as long"
    remark = f"{document['sizes']['conversations']} conversations in turn, memory for {document['sizes']['fit']}."
    with plots.page(png, document, message, height=4.2, remark=remark) as (panel,):
        plots.bars(panel, ["06"] * 3, list(times.values()), list(times))
        plots.axes(panel, "", "time to first token (ms)")


def report(document: dict) -> dict[str, Rows]:
    figures = document["sides"][STAGE]
    base = figures["computed_ttft_ms"]["median"]
    rows = [["a turn that comes back", "time to first token, ms", "of computing again"]]
    for kind, label in LABELS.items():
        median = figures[f"{kind}_ttft_ms"]["median"]
        rows.append([label, plots.short(median), f"{median / base:.2f}"])
    off, on = (figures[f"{kind}_tokens_per_second"]["median"] for kind in ("off", "on"))
    shares = sorted(mine / plain for mine, plain in zip(on, off, strict=True))
    throughput = [
        ["nothing shared", "output tokens/s", "share, in turn"],
        ["without a host tier", plots.short(statistics.median(off)), ""],
        [
            "with one",
            plots.short(statistics.median(on)),
            f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})",
        ],
    ]
    return {"returning": rows, "throughput": throughput}


BENCHMARK = Benchmark(
    **described(__file__),
    description=__doc__,
    sides={STAGE: measure},
    draw=draw,
    headline=Headline(
        "first token of a turn that comes back",
        "ms",
        (STAGE,),
        lambda sizes, side: {kind: side[f"{kind}_ttft_ms"] for kind in ("computed", "host")},
        more_is_better=False,
    ),
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

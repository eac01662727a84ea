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

from common.bench import plots
from common.bench.documents import medians, parts
from common.bench.engine_load import answer, engine_load, in_turn
from common.bench.harness import Benchmark, Figures, spread
from common.bench.run import run_benchmark
from common.bench.settings import Settings, warm_engine
from common.bench.tables import Rows, reach
from common.bench.workloads import Job, page_prompt
from common.engine import BaseEngine
from common.kv_tiers import TierOptions
from common.loader import Loaded

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
            starts = [page_prompt(loaded, sizes["turn"], i) for i in range(sizes["conversations"])]
            said = [answer(engine, prompt, sizes["answer"]) for prompt in starts]
            if kind == "disk":
                engine.close()
                engine = new_engine(loaded, sizes, tiers)
            again = [
                text.all_token_ids + page_prompt(loaded, sizes["more"], f"more {i}") for i, text in enumerate(said)
            ]
            ttft = [answer(engine, prompt, sizes["answer"]).timings.time_to_first_token for prompt in again]
            figures[f"{kind}_ttft_ms"] = 1e3 * statistics.median(ttft)
            engine.close()
    return figures | nothing_shared(loaded, sizes)


def new_engine(loaded: Loaded, sizes: dict, tiers: TierOptions) -> BaseEngine:
    """Return a warm engine with memory for `fit` conversations."""
    tokens = sizes["fit"] * (sizes["turn"] + sizes["more"] + 2 * sizes["answer"] + 16)
    engine = warm_engine(STAGE, loaded, tokens, tiers=tiers, token_budget=sizes["token_budget"])
    answer(engine, page_prompt(loaded, sizes["more"], "warm-up"), sizes["answer"])
    return engine


def nothing_shared(loaded: Loaded, sizes: dict) -> Figures:
    """Return output tokens per second, by rounds, of prompts that share nothing, with a host tier and without."""
    engines = {
        kind: new_engine(loaded, sizes, TierOptions(host)) for kind, host in (("off", None), ("on", sizes["host"]))
    }

    def rate(kind: str, number: int) -> float:
        prompts = [page_prompt(loaded, sizes["prompt"], f"{number}/{i}") for i in range(sizes["prompts"])]
        jobs = [Job(prompt, sizes["output"]) for prompt in prompts]
        return engine_load(engines[kind], jobs, concurrency=sizes["clients"]).throughput

    rates = in_turn(engines, sizes["rounds"], rate)  # The warm-up also fills the memory.
    return {f"{kind}_tokens_per_second": each for kind, each in rates.items()}


def draw(document: dict, png: Path) -> None:
    sizes, sides, _ = parts(document)
    times = {label: sides[STAGE][f"{kind}_ttft_ms"] for kind, label in LABELS.items()}
    ratio = document["headline"]["ratio"]["median"]
    message = f"Pages from the host: a turn that comes back waits {100 / ratio:.0f} percent as long"
    remark = f"{sizes['conversations']} conversations in turn, memory for {sizes['fit']}."
    plots.bar_page(png, document, message, remark, times, "time to first token (ms)")


def report(document: dict) -> dict[str, Rows]:
    _, sides, _ = medians(document)
    figures = sides[STAGE]
    off, on = (figures[f"{kind}_tokens_per_second"] for kind in ("off", "on"))
    shares = spread([mine / plain for mine, plain in zip(on, off, strict=True)])
    rows = [["nothing shared", "output tokens/s", "share, in turn"]]
    rows += [["without a host tier", plots.short(statistics.median(off)), ""]]
    return {"throughput": [*rows, ["with one", plots.short(statistics.median(on)), reach(shares)]]}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={STAGE: measure},
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

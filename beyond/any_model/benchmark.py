"""What does the library's model cost, and what do experts cost on a CPU?

Method. The bundled model answers the same requests in stage 06, by common/model.py and by transformers, 1 and 16 at a
time, in turn in one process. And one pass of two library models of random weights is timed, without attention: a Llama
with an MLP of 1,024 values in each layer, and a mixture of 32 experts of 256 each, of which every token takes 4: as
many parameters for a token, eight times as many in all.

Expectation. The library's model calls each small operation by itself, some thirty a layer, at some microseconds each.
That weighs most in a step of one request. One token reads as many weights in the mixture as in the other; 64 tokens
take 4 of 32 experts each, so hardly an expert is left out, and each multiplies 8 rows on average.
"""

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.bench import plots
from common.bench.documents import parts
from common.bench.engine_load import engine_load, in_turn
from common.bench.harness import Benchmark, Figures, curves
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.timing import median_seconds
from common.bench.workloads import corpus_jobs
from common.loader import load_model
from common.stages import load_engine

STAGE = "06_prefix_cache"
IMPLS = {"transformers": "the library's model", "course": "common/model.py"}
KINDS = {"dense": "one MLP", "mixture": "4 of 32 experts"}
WIDTHS = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
LAYERS = {
    "dense": ("Qwen3Config", {"intermediate_size": 1024}),
    "mixture": ("Qwen3MoeConfig", {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 256}),
}


def measure_load(settings: Settings, sizes: dict) -> Figures:
    """Run the same requests by both models in turn, so that the machine's own changes meet both alike."""
    device, dtype = settings.place()
    engines = {
        impl: load_engine(STAGE)(load_model(settings.model, device=device, dtype=dtype, model_impl=impl))
        for impl in IMPLS
    }
    points = []
    for clients, requests in zip(sizes["clients"], sizes["requests"], strict=True):

        def rate(impl: str, number: int, count: int = requests, concurrency: int = clients) -> float:
            engine = engines[impl]
            jobs = corpus_jobs(engine.tokenizer, count, seed=number, most_tokens=sizes["most_tokens"])
            return engine_load(engine, jobs, concurrency=concurrency).throughput

        rates = in_turn(IMPLS, sizes["rounds"], rate)
        points.append({f"{impl}_tokens_per_second": median(each) for impl, each in rates.items()})
    return curves(points)


@torch.inference_mode()
def measure_experts(settings: Settings, sizes: dict) -> Figures:
    """Time passes of a dense model and of a mixture, without attention."""
    import transformers

    device, dtype = settings.place()
    figures: Figures = {}
    for kind, (config, fields) in LAYERS.items():
        with TemporaryDirectory() as folder:
            getattr(transformers, config)(**WIDTHS, **fields, vocab_size=1024).save_pretrained(folder)
            options = {"device": device, "dtype": dtype, "load_format": "dummy", "model_impl": "transformers"}
            model = load_model(folder, **options).model
        figures[f"{kind}_milliseconds"] = []
        for tokens in sizes["tokens"]:
            ids = torch.randint(1024, (tokens,), device=device, generator=torch.Generator(device).manual_seed(tokens))
            inputs = [(ids, torch.arange(tokens, device=device), lambda layer, q, k, v: q)]
            seconds = median_seconds(model, device, inputs, graph=False, repeats=sizes["passes"])
            figures[f"{kind}_milliseconds"].append(1e3 * seconds)
    return figures


def draw(document: dict, png: Path) -> None:
    sizes, sides, _ = parts(document)
    times = document["headline"]["ratio"]["median"]
    message = f"The course's model gives a single request {times:.1f} times the tokens per second"
    remark = "Left: stage 06. Right: random weights, without attention; the mixture reads as many weights of MLPs for a"
    remark += " token, and has 8 times as many."
    panels = (
        ("load", "tokens_per_second", IMPLS, sizes["clients"], "requests at once", "output tokens per second"),
        ("experts", "milliseconds", KINDS, sizes["tokens"], "tokens in a pass", "milliseconds per pass"),
    )
    with plots.page(png, document, message, columns=2, remark=remark) as places:
        for panel, (side, figure, labels, groups, x_label, y_label) in zip(places, panels, strict=True):
            figures = {label: sides[side][f"{key}_{figure}"] for key, label in labels.items()}
            tints = dict(zip(figures, (plots.REFERENCE, plots.color(STAGE)), strict=True))
            plots.grouped_bars(panel, groups, figures, tints)
            plots.axes(panel, x_label, y_label)
            panel.legend(frameon=False, loc="upper left")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={"load": measure_load, "experts": measure_experts},
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

"""What does a token cost when nothing is remembered?

Method. One request at a time, on pieces of the lessons' pages, end-of-sequence ignored. On the left, the time of one
more token in a sequence of S tokens (the median of fifteen). On the right, one long answer after a prompt of 32 tokens:
the moment of its n-th token is the time that an answer of n tokens takes. `generate` of transformers with
use_cache=False does the same work, and shows that the cost is the method's and not this engine's.

Expectation. A step of S tokens costs 2 FLOPs for every weight and token, and 4 for every dimension of every pair of
tokens in attention; the FLOPs per second are taken from the measurement at one length. So a token costs in proportion
to S at first, more than that where attention counts, and an answer costs the square of its length. Short sequences
come out dearer than predicted: there the fixed cost of a step, Python's and PyTorch's, is what one waits for.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.cost_model import step_flops
from common.bench.documents import parts
from common.bench.harness import Benchmark, Figures, Measured
from common.bench.offline import engine_writing, transformers_writing
from common.bench.run import run_benchmark
from common.model import ModelConfig


def derive(sizes: dict, measured: Measured, config: ModelConfig, *_) -> Figures:
    calibration = sizes["lengths"].index(sizes["calibration_length"])
    flops_per_ms = step_flops(config, sizes["calibration_length"]) / measured["01_naive"]["ms_per_token"][calibration]
    steps = [step_flops(config, sizes["prompt"] + i) / flops_per_ms for i in range(max(sizes["answers"]))]
    return {
        "predicted_ms_per_token": [step_flops(config, length) / flops_per_ms for length in sizes["lengths"]],
        "predicted_seconds": [sum(steps[:n]) / 1e3 for n in sizes["answers"]],
    }


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
    message = "Without a cache, every token costs more than the last"
    remark = (
        f"Predicted: the FLOPs of each step, at the rate measured at {sizes['calibration_length']} tokens. "
        "transformers: generate(use_cache=False)."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (token, answer):
        for panel, x, name in ((token, sizes["lengths"], "ms_per_token"), (answer, sizes["answers"], "seconds")):
            plots.predicted(panel, x, figures[f"predicted_{name}"], "predicted")
            plots.line(panel, x, sides["transformers"][name], "transformers", "transformers")
            plots.line(panel, x, sides["01_naive"][name], "01_naive", "stage 01")
        plots.axes(token, "tokens in the sequence", "milliseconds per token", "One more token")
        x_label = f"tokens written after a prompt of {sizes['prompt']}"
        plots.axes(answer, x_label, "seconds", "A whole answer")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        "01_naive": partial(engine_writing, "01_naive"),
        "transformers": partial(transformers_writing, use_cache=False),
    },
    derive=derive,
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

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
from collections.abc import Mapping
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.cost_model import step_flops
from common.bench.description import described
from common.bench.harness import Benchmark, Figures, Headline
from common.bench.offline import engine_writer, measure_writing, transformers_writer
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows, by_size
from common.model import ModelConfig


def measure_naive(settings: Settings, sizes: dict) -> Figures:
    return measure_writing(engine_writer(settings, "01_naive"), sizes, settings.load())


def measure_transformers(settings: Settings, sizes: dict) -> Figures:
    return measure_writing(transformers_writer(settings, use_cache=False), sizes, settings.without_weights())


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    naive = measured["01_naive"]
    calibration = sizes["lengths"].index(sizes["calibration_length"])
    flops_per_ms = step_flops(config, sizes["calibration_length"]) / naive["ms_per_token"][calibration]
    steps = [step_flops(config, sizes["prompt"] + i) / flops_per_ms for i in range(max(sizes["answers"]))]
    return {
        "predicted_ms_per_token": [step_flops(config, length) / flops_per_ms for length in sizes["lengths"]],
        "predicted_seconds": [sum(steps[:n]) / 1e3 for n in sizes["answers"]],
    }


def headline(sizes: dict, side: Figures) -> dict[str, float]:
    return {f"at {sizes['lengths'][at]} tokens": side["ms_per_token"][at] for at in (0, -1)}


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = document["sizes"], document["sides"], document["figures"]
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


def report(document: dict) -> dict[str, Rows]:
    sizes, sides, predicted = document["sizes"], document["sides"], document["figures"]

    def columns(name: str) -> dict[str, Figures]:
        ours, theirs = (sides[side][name] for side in ("01_naive", "transformers"))
        return {"stage 01": ours, "predicted": predicted[f"predicted_{name}"], "transformers": theirs}

    ends = [sizes["lengths"][at] for at in (0, -1)]
    times = [columns("ms_per_token")[side]["median"] for side in ("stage 01", "predicted")]
    growth = [f"{each[-1] / each[0]:.1f}" for each in times]
    header = [*(f"one more token after {length}, ms" for length in ends), "times as long", "by the operations"]
    return {
        "shape": [header, [*(plots.short(times[0][at]) for at in (0, -1)), *growth]],
        "token": by_size("tokens so far", sizes["lengths"], columns("ms_per_token"), unit="ms", only=(64, 512, 2048)),
        "answer": by_size("tokens written", sizes["answers"], columns("seconds"), unit="s", only=(128, 256, 512)),
    }


BENCHMARK = Benchmark(
    **described(__file__),
    description=__doc__,
    sides={"01_naive": measure_naive, "transformers": measure_transformers},
    derive=derive,
    draw=draw,
    headline=Headline("one more token", "ms", ("01_naive",), headline, more_is_better=None),
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

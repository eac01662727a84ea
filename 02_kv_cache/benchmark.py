"""What does remembering K and V buy, and what does it cost in memory?

Method. One request at a time, on pieces of the lessons' pages, end-of-sequence ignored, greedy: stage 01, this stage,
and transformers' `generate` with its own cache. The time of one more token in a sequence of S tokens; the moments
of the n-th token of one long answer after a prompt of 32 tokens; the bytes that the engine says it holds for requests
of several sizes.

Expectation. Stage 01 pays for the whole sequence with every token. With the cache a token reads each weight once, and
K and V of the tokens before it: 2 * layers * H_kv * D * bytes per number for each of them. So its cost grows slowly
with the sequence, the time for an answer in proportion to its length, and the memory by the formula exactly. The
predictions take their rates, FLOPs per second and bytes per second, from the measurement at one length. A model this
small is read in no time, and the fixed cost of a step is most of a decode step: it grows less than its bytes do.
"""

import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.bench import plots
from common.bench.cost_model import decode_bytes, step_flops
from common.bench.documents import parts
from common.bench.harness import Benchmark, Figures, Measured
from common.bench.offline import engine_writing, transformers_writing
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.workloads import page_prompt
from common.model import ModelConfig
from common.sampling import SamplingParams
from common.stages import load_engine


def measure_kv_cache(settings: Settings, sizes: dict) -> Figures:
    """Measure the same, and the bytes that a running request of each size holds, prompt and answer together."""
    figures, held = engine_writing("02_kv_cache", settings, sizes), []
    engine = load_engine("02_kv_cache")(settings.load())
    for tokens in sizes["cache_tokens"]:
        prompt = page_prompt(engine, tokens // 2)
        request = engine.add(prompt, SamplingParams(max_tokens=tokens - len(prompt), ignore_eos=True))
        engine.step()
        held.append(engine.stats()["kv_bytes_reserved"])
        engine.abort(request.request_id)
    return figures | {"cache_bytes": held}


def derive(sizes: dict, measured: Measured, config: ModelConfig, dtype: torch.dtype) -> Figures:
    naive, cached = measured["01_naive"], measured["02_kv_cache"]
    lengths, calibration_length = sizes["lengths"], sizes["calibration_length"]
    calibration = lengths.index(calibration_length)
    flops_per_ms = step_flops(config, calibration_length) / naive["ms_per_token"][calibration]
    bytes_per_ms = decode_bytes(config, calibration_length, dtype) / cached["ms_per_token"][calibration]
    answer = range(sizes["prompt"], sizes["prompt"] + sizes["compared_answer"])  # tokens before each answer token
    return {
        "predicted_naive_answer_ms": sum(step_flops(config, past) for past in answer) / flops_per_ms,
        "predicted_cached_answer_ms": sum(decode_bytes(config, past, dtype) for past in answer) / bytes_per_ms,
        "predicted_naive_ms_per_token": [step_flops(config, length) / flops_per_ms for length in lengths],
        "predicted_cached_ms_per_token": [decode_bytes(config, length, dtype) / bytes_per_ms for length in lengths],
        "predicted_cache_bytes": [tokens * config.kv_bytes_per_token(dtype) for tokens in sizes["cache_tokens"]],
    }


LABELS = {"01_naive": "stage 01", "02_kv_cache": "stage 02", "transformers": "transformers"}


def draw(document: dict, png: Path) -> None:
    sizes, sides, figures = parts(document)
    compared = sizes["compared_answer"]
    at = sizes["answers"].index(compared)
    top, bottom = (sides[side]["seconds"]["median"][at] for side in ("01_naive", "02_kv_cache"))
    message = f"With a KV cache, {compared} tokens take {plots.short(bottom)} s in place of {plots.short(top)} s"
    remark = (
        "Predicted: FLOPs of a step for stage 01, bytes read by a step for stage 02, each at the rate measured at "
        f"{sizes['calibration_length']} tokens."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (token, answer):
        plots.doubling(token, sizes["lengths"])
        plots.logarithmic(token)
        for kind in ("naive", "cached"):
            plots.predicted(token, sizes["lengths"], figures[f"predicted_{kind}_ms_per_token"], "predicted")
        for side, label in LABELS.items():
            plots.line(token, sizes["lengths"], sides[side]["ms_per_token"], side, label)
            plots.line(answer, sizes["answers"], sides[side]["seconds"], side, label)
        plots.axes(token, "tokens in the sequence", "milliseconds per token", "One more token")

        answer.annotate("", (compared, bottom), (compared, top), arrowprops={"arrowstyle": "<->", "color": plots.TEXT})
        plots.note(answer, compared, top, f"{top / bottom:.1f} times", above=6, align="right")
        x_label = f"tokens written after a prompt of {sizes['prompt']}"
        plots.axes(answer, x_label, "seconds", "A whole answer")


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={
        "01_naive": partial(engine_writing, "01_naive"),
        "02_kv_cache": measure_kv_cache,
        "transformers": partial(transformers_writing, use_cache=True),
    },
    derive=derive,
    draw=draw,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

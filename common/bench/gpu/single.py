"""One request alone: how close is a decode step to the time that its bytes take?

Method. Stage 06 writes one answer; the median of the times between its tokens, greedy, in several answers. With CUDA
graphs and the overlap of steps, and without; and stage 03, which launches every operation
by itself. The floor is every weight read once, and K and V of what stands before the token, at the bandwidth that a
large copy reaches here.

Expectation. A kernel of a microsecond takes the CPU five to launch. A step of 36 layers with a dozen kernels each
cannot be faster than the CPU launches them, however little there is to read; as one graph it is launched at once, and
what remains over the floor are the starts and ends of kernels and the sampler.
"""

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.harness import spread
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.sampling import SamplingParams

from .run import Run, free_memory, mode_name

SIZES: dict[str, Any] = {
    "models": ["Qwen3-8B", "Qwen2.5-14B"],
    "prompt": 512,
    "answer": 96,
    "answers": 3,
    "target_ratio": 1.3,
}
TINY = SIZES | {"models": ["tiny"], "prompt": 20, "answer": 8, "answers": 2}
LAUNCHING, NOW = "03_streaming", "06_prefix_cache"


def measure(run: Run) -> None:
    sizes, models = run.sizes, {}
    context = sizes["prompt"] + sizes["answer"] / 2
    for name in sizes["models"]:
        loaded = run.load(name)
        floor = 1e3 * run.step_floor(loaded.config, 1, context)
        models[name] = {"floor_ms": floor, "ms_per_token": {}, "over_floor": {}}
        sides = [(f"stage 06, {mode_name(mode)}", NOW, mode) for mode in run.modes()]
        sides = [*sides[:2], ("stage 03", LAUNCHING, {})]  # both, neither
        for label, stage, mode in sides:
            engine = run.try_engine(
                stage, loaded, max_running=8, token_budget=4 * sizes["prompt"], kv_memory="2G", **mode
            )
            if engine is None:
                continue
            milliseconds = [1e3 * seconds_per_token(engine, sizes, i) for i in range(1 + sizes["answers"])][1:]
            models[name]["ms_per_token"][label] = spread(milliseconds)
            models[name]["over_floor"][label] = statistics.median(milliseconds) / floor
            run.keep(models=models)
            run.say(f"{name}, {label}: {statistics.median(milliseconds):.3f} ms per token, floor {floor:.3f} ms")
            del engine
            free_memory(run.device)
        del loaded
        free_memory(run.device)
    ratios = {name: min(figures["over_floor"].values()) for name, figures in models.items()}
    run.headline(**{f"{name} over floor": ratio for name, ratio in ratios.items()}, target=sizes["target_ratio"])


def seconds_per_token(engine: BaseEngine, sizes: dict[str, Any], number: int) -> float:
    """The median time between two tokens of one answer; the first answer of an engine is a warm-up."""
    prompt = random_prompt(sizes["prompt"], engine.config.vocab_size, f"single {number}")
    [request] = engine.generate([prompt], SamplingParams(max_tokens=sizes["answer"], ignore_eos=True))
    return statistics.median(after - before for before, after in pairwise(request.timings.tokens))


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    sizes, models = document["sizes"], document["figures"]["models"]
    ratios = [min(figures["over_floor"].values()) for figures in models.values()]
    message = f"Alone, a token takes {' and '.join(f'{ratio:.2f}' for ratio in ratios)} times as long as its bytes"
    remark = (
        f"One request, greedy, {sizes['prompt']} tokens of prompt and {sizes['answer']} of answer; the time between "
        f"two tokens, medians of {sizes['answers']} answers.\nDashed: all weights, and K and V of the context, at the "
        "bandwidth of a large copy on this device."
    )
    with plots.page(png, document, message, columns=len(models), remark=remark) as panels:
        for panel, (name, figures) in zip(panels, models.items(), strict=True):
            measured, floor = figures["ms_per_token"], figures["floor_ms"]
            labels = [label.replace(", ", "\n").replace(" and ", "\nand ") for label in measured]
            plots.bars(panel, [label.removeprefix("stage ")[:2] for label in measured], list(measured.values()), labels)
            plots.floor_line(panel, len(labels), floor, f"{plots.short(floor)}:\nits bytes")
            plots.axes(panel, "", "milliseconds per token", name)
            panel.tick_params(axis="x", labelsize=10)

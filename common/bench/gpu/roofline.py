"""Why batch? Draw what a decode step takes at least, by its bytes, arithmetic and launches, for 1 to 512 requests.

    .venv/bin/python -m common.bench.gpu.roofline --card h200      # writes common/bench/gpu/results/roofline-h200.png

The roof is the longest of the three, bytes together: no step takes less. On the left is the CPU that the lessons
measure on, on the right the card. Where budget.py has run on the card, it has measured two steps, and the rates beside
them; elsewhere rates are those of NVIDIA's data sheets.
"""

from pathlib import Path

from common.bench import plots
from common.bench.cost_model import step_parts
from common.bench.gpu.budget import BENCHMARK, LAYER_LAUNCHES, SMALLEST_KERNEL
from common.bench.tables import LARGE, committed
from common.loader.device import DTYPES
from common.model import ModelConfig
from common.terminal import parser_of, run_to_end

SIZES = BENCHMARK.sizes["full"]  # sizes of the measured steps
REQUESTS = [2**i for i in range(10)]
CARDS = {  # bytes and FLOPs per second, of products in bfloat16 without sparsity
    "h200": ("NVIDIA H200", 4.8e12, 989e12),
    "h100": ("NVIDIA H100 SXM", 3.35e12, 989e12),
    "a100": ("NVIDIA A100 SXM, 80 GB", 2.04e12, 312e12),
    "l4": ("NVIDIA L4", 300e9, 121e12),
    "4090": ("NVIDIA GeForce RTX 4090", 1.008e12, 165e12),
}
RATES = "copy_bytes_per_second", "matmul_flops_per_second"
PARTS = "read the weights", "read K and V", "compute", "launch kernels"


def draw(card: str, png: Path) -> None:
    """Draw both roofs, with the steps that were measured."""
    message = "Why batch: up to a point, many requests take as long as one"
    remark = "Thick: the roof, the longest of reading, computing, launching. Dots: steps of stage 04 and, right, 06."
    with plots.page(png, "Qwen3-0.6B, bfloat16, random weights.", message, columns=2, remark=remark) as (left, right):
        cpu, (name, *rates) = committed("05_paged_attention.benchmark", LARGE[-1]), CARDS[card]
        times = cpu["sides"]["04_continuous_batching"]["step_total_ms"]["median"]
        points = dict(zip(cpu["sizes"]["batches"], times, strict=True))
        draw_roof(left, plots.place(cpu["hardware"]), cpu, points, cpu["sizes"]["context"])
        gpu = committed("common.bench.gpu.budget", f"{name.lower().replace(' ', '-')}-budget")
        steps = gpu["sides"]["graphs and overlap"]["ms"]["values"][0] if gpu else ()
        points = {B: step["step"] for B, step in zip(SIZES["requests"], steps, strict=False)}
        gpu = gpu or cpu | {"hardware": dict(zip(RATES, rates, strict=True))}
        draw_roof(right, name, gpu, points, SIZES["context"], (5 + LAYER_LAUNCHES) * gpu["model"]["num_layers"])


def draw_roof(panel, title: str, document: dict, points: dict[int, float], context: int, launches: int = 0) -> None:
    """Draw the parts of a step, the roof and the measured points: milliseconds by requests. launches: of a step."""
    config = ModelConfig(**document["model"])
    dtype = DTYPES[document["settings"]["dtype"]]
    rates = [document["hardware"][rate] for rate in RATES]
    steps = [(*step_parts(config, B, context, dtype, *rates), launches * SMALLEST_KERNEL) for B in REQUESTS]
    roof = [1e3 * max(weights + kv, *others) for weights, kv, *others in steps]
    plots.doubling(panel, REQUESTS[::2])
    plots.logarithmic(panel)
    panel.plot(REQUESTS, roof, color=plots.TEXT, alpha=0.2, linewidth=7, label="_roof")
    for part, seconds in zip(PARTS, zip(*steps, strict=True), strict=True):
        if any(seconds):
            times = [1e3 * each for each in seconds]
            panel.plot(REQUESTS, times, color=plots.PREDICTION, linewidth=1.5, label=part)
    panel.plot([*points], [*points.values()], "o", color=plots.TEXT, label="_measured")
    if points:
        plots.note(panel, min(points), points[min(points)], "measured", above=9)
    plots.axes(panel, f"requests, {context} tokens behind each", "milliseconds of a step", title)
    panel.set_ylim(min(roof) / 30)


def main() -> None:
    """Run the command line."""
    options = parser_of("python -m common.bench.gpu.roofline", __doc__).parse_args()
    draw(options.card, options.out or Path(__file__).parent / "results" / f"roofline-{options.card}.png")


if __name__ == "__main__":
    run_to_end(main)

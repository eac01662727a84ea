"""Steps of 256 requests on a line of time, Python and GPU: kernels launched one by one, as graphs, and overlapped.

    .venv/bin/python -m common.bench.gpu.timeline [--out PNG]     # without it common/acceleration/timeline.png

torch's profiler records the steps, which slows Python down a little, and files for https://ui.perfetto.dev lie beside
the PNG.
"""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from common.bench import plots
from common.bench.gpu.budget import BENCHMARK, STAGE, part_of
from common.bench.settings import Settings, engine_of
from common.bench.steps import ENDLESS, decoding
from common.bench.timing import free_memory
from common.engine import BaseEngine
from common.errors import InvalidInput
from common.stages import ROOT
from common.terminal import parser_of, run_to_end
from common.transfers import ToHost, synchronize

SIZES = BENCHMARK.sizes["full"]
STEPS, REQUESTS = 3, SIZES["requests"][0]
WAYS = {  # graphs, overlap
    "Launched one by one": (False, False),
    "With graphs": (True, False),
    "With graphs and the overlapped loop": (True, True),
}
WORK = {  # what is drawn: its row, and its colour
    "attention": (0, plots.COLORS["01"]),
    "products": (0, plots.COLORS["04"]),
    "small kernels": (0, plots.COLORS["05"]),
    "sampler": (0, plots.COLORS["06"]),
    "other": (0, plots.REFERENCE),
    "Python": (1, plots.TEXT),
    "waiting": (1, plots.GRID),
}
Span = tuple[str, float, float]  # a name in WORK, start and end in seconds


def recorded(engine: BaseEngine, requests: int, context: int, trace: Path) -> list[Span]:
    """Record STEPS steps in which that many requests decode, `context` tokens behind each; write the trace, too."""
    from torch.profiler import profile, record_function

    original, params = ToHost.tolist, replace(ENDLESS, temperature=0.6)

    def tolist(self: ToHost) -> list:
        with record_function("waiting"):
            return original(self)

    with decoding(engine, requests, context, params), patch.object(ToHost, "tolist", tolist), profile() as profiler:
        for _ in range(STEPS):
            with record_function("Python"):
                engine.step()
        synchronize(engine.device)
    profiler.export_chrome_trace(str(trace))
    spans = []
    for event in profiler.events():
        on_host = event.device_type == torch.autograd.DeviceType.CPU
        if on_host == (event.name in WORK):  # A GPU's event with such a name is a mark around kernels.
            name = event.name if on_host else part_of(event.name)
            spans.append((name, event.time_range.start / 1e6, event.time_range.end / 1e6))
    first = min(start for _, start, _ in spans)
    return [(name, start - first, end - first) for name, start, end in spans]


def draw(ways: dict[str, list[Span]], png: Path, below: str) -> None:
    """Draw two panels for each way: STEPS steps, and a millisecond of the second one."""
    message = "Graphs close the gaps between kernels, the overlapped loop those between steps"
    whole = 1e3 * max(end for spans in ways.values() for _, _, end in spans)
    with plots.page(png, below, message, rows=len(ways), columns=2, height=6.4) as panels:
        for place, (way, spans) in enumerate(ways.items()):
            middle, (left, right) = 1e3 * spans[len(spans) // 2][1], panels[2 * place : 2 * place + 2]
            left.set(xlim=(0, whole), title=way)
            right.set(xlim=(middle, middle + 1), title="One millisecond of it")
            for panel in (left, right):
                for name, (row, tint) in WORK.items():
                    bars = [(1e3 * start, 1e3 * (end - start)) for what, start, end in spans if what == name]
                    panel.broken_barh(bars, (row - 0.35, 0.7), color=tint, linewidth=0, label=name)
                panel.set(yticks=(0, 1), yticklabels=("GPU", "Python"))
                panel.grid(visible=False)
        panels[-2].legend(*(each[:4] for each in left.get_legend_handles_labels()), loc="center right", frameon=False)
        for panel in panels[-2:]:
            panel.set_xlabel("milliseconds")


def main() -> None:
    """Run the command line."""
    options = parser_of("python -m common.bench.gpu.timeline", __doc__).parse_args()
    png, ways = options.out or ROOT / "common/acceleration/timeline.png", {}
    if not torch.cuda.is_available():
        raise InvalidInput("it needs a CUDA device, and torch sees none here")
    png.parent.mkdir(parents=True, exist_ok=True)
    loaded = Settings(SIZES["model"], load_format="dummy").load()
    for number, (way, (graphs, overlap)) in enumerate(WAYS.items()):
        engine = engine_of(STAGE, loaded, max_running=REQUESTS, graphs=graphs, overlap=overlap)
        ways[way] = recorded(engine, REQUESTS, SIZES["context"], png.with_suffix(f".{number}.trace.json"))
        del engine
        free_memory(loaded.device)
    work = f"{REQUESTS} requests to {SIZES['model']}, {SIZES['context']} tokens behind each"
    draw(ways, png, f"{work}. Recorded on one {torch.cuda.get_device_name()}; pale: Python waits.")


if __name__ == "__main__":
    run_to_end(main)

"""Steps of 256 requests on a line of time, Python and GPU: kernels launched one by one, as graphs, and overlapped.

    .venv/bin/python -m common.bench.gpu.timeline [--out PNG]     # without it common/acceleration/timeline.png

On a GPU torch's profiler records the steps, which slows Python down a little, and files for https://ui.perfetto.dev lie
beside the PNG. Elsewhere the steps are put together from what nano.py measured on an H200: how many kernels each part
of a step launches and how long they take, and how long Python takes for each launch in a step of prompts.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from common.bench import plots
from common.bench.gpu.budget import STAGE, part_of
from common.bench.gpu.nano import SIZES
from common.bench.settings import Settings, engine_of
from common.bench.steps import ENDLESS, decoding
from common.bench.tables import committed
from common.bench.timing import free_memory
from common.engine import BaseEngine
from common.stages import ROOT
from common.terminal import run_to_end
from common.transfers import ToHost, synchronize

STEPS, REQUESTS = 3, SIZES["decode"][0]
WAYS = {  # graphs, overlap
    "Launched one by one": (False, False),
    "With graphs": (True, False),
    "With graphs and the overlapped loop": (True, True),
}
# The parts of a layer's kernels in their order, the first of which adds and norms.
LAYER = ["small kernels", "products", "small kernels", "attention"]
LAYER += ["products", "small kernels", "products", "small kernels", "products"]
AFTER = ["small kernels", "products", "sampler", "sampler"]  # the last norm, and the logits
BOOKKEEPING = 1.8e-3  # seconds of Python in a step beside its launches, in a trial run on an H200
WORK = {  # what is drawn: its row, and its colour
    "attention": (0, plots.COLORS["01"]),
    "products": (0, plots.COLORS["04"]),
    "small kernels": (0, plots.COLORS["05"]),
    "sampler": (0, plots.COLORS["06"]),
    "other": (0, plots.REFERENCE),
    "Python": (1, plots.TEXT),
    "waiting": (1, plots.GRID),
}
Span = tuple[str, float, float]  # of WORK; start and end in seconds


def measured(document: dict) -> tuple[list[tuple[str, float]], float]:
    """Return part and seconds of each kernel in a step of many requests, in order; seconds of Python for a launch."""
    decode, _, prompts = document["sides"]["profile"]["steps"]["values"][0]
    counts, seconds = Counter(), Counter()
    for name, count, us in decode["kernels"]:
        counts[part_of(name)] += round(count)
        seconds[part_of(name)] += 1e-6 * us
    order = ["other"] * counts["other"] + LAYER * document["model"]["num_layers"] + AFTER
    launch = 1e-3 * prompts["host_ms"] / sum(count for _, count, _ in prompts["kernels"])
    return [(part, seconds[part] / counts[part]) for part in order], launch


def expected(kernels: Sequence[tuple[str, float]], launch: float, graphs: bool, overlap: bool) -> list[Span]:
    """Return the spans of STEPS steps. A kernel runs once it has been launched and the one before it has ended."""
    spans, ends, now, free = [], [], 0.0, 0.0
    for _ in range(STEPS):
        begun, now = now, now + BOOKKEEPING / 2 + launch * graphs
        for part, seconds in kernels:
            now += launch * (not graphs)
            spans.append((part, max(now, free), free := max(now, free) + seconds))
        spans.append(("Python", begun, now))
        ends.append(free)
        if len(ends) > overlap:  # then there is a step to wait for and to commit
            now = max(now, ends[-1 - overlap])
            spans.append(("Python", now, now := now + BOOKKEEPING / 2))
    return spans


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
        if on_host == (event.name in WORK):  # on a GPU a mark of that name lies around the kernels
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
    parser = argparse.ArgumentParser("python -m common.bench.gpu.timeline", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="PNG", default=ROOT / "common/acceleration/timeline.png")
    png, ways = parser.parse_args().out, {}
    png.parent.mkdir(parents=True, exist_ok=True)
    if torch.cuda.is_available():
        loaded = Settings(SIZES["model"], load_format="dummy").load(SIZES["context"])
        for number, (way, (graphs, overlap)) in enumerate(WAYS.items()):
            engine = engine_of(STAGE, loaded, max_running=REQUESTS, graphs=graphs, overlap=overlap)
            ways[way] = recorded(engine, REQUESTS, SIZES["behind"], png.with_suffix(f".{number}.trace.json"))
            del engine
            free_memory(loaded.device)
        below = f"Recorded on one {torch.cuda.get_device_name()}; pale: Python waits."
    else:
        kernels, launch = measured(committed("common.bench.gpu.nano", "nvidia-h200-nano"))
        ways = {way: expected(kernels, launch, *options) for way, options in WAYS.items()}
        below = (
            "Not a recording: put together from the kernels of a step as measured on an H200, and from "
            f"{1e6 * launch:.0f} us of Python for each launch and {1e3 * BOOKKEEPING:.1f} ms beside the launches."
        )
    draw(ways, png, f"{REQUESTS} requests to {SIZES['model']}, {SIZES['behind']} tokens behind each. {below}")


if __name__ == "__main__":
    run_to_end(main)

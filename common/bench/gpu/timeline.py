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
from typing import NamedTuple
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
TINTS = {"attention": "01", "products": "04", "small kernels": "05", "sampler": "06"}


class Span(NamedTuple):
    """Work on one thing; times in seconds."""

    row: str  # Python or GPU
    part: str
    start: float
    end: float


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
            spans.append(Span("GPU", part, max(now, free), free := max(now, free) + seconds))
        spans.append(Span("Python", "", begun, now))
        ends.append(free)
        if len(ends) > overlap:  # then there is a step to wait for and to commit
            now = max(now, ends[-1 - overlap])
            spans.append(Span("Python", "", now, now := now + BOOKKEEPING / 2))
    return spans


def recorded(engine: BaseEngine, requests: int, context: int, trace: Path) -> list[Span]:
    """Record STEPS steps in which that many requests decode, `context` tokens behind each; write the trace, too."""
    from torch.profiler import profile, record_function

    original = ToHost.tolist

    def tolist(self: ToHost) -> list:
        with record_function("wait"):
            return original(self)

    with decoding(engine, requests, context, replace(ENDLESS, temperature=0.6)), patch.object(ToHost, "tolist", tolist):
        synchronize(engine.device)
        with profile() as profiler:
            for _ in range(STEPS):
                with record_function("step"):
                    engine.step()
            synchronize(engine.device)
    profiler.export_chrome_trace(str(trace))
    marks, spans = ("step", "wait"), []
    for event in profiler.events():
        on_host = event.device_type == torch.autograd.DeviceType.CPU
        if on_host == (event.name in marks):  # on a GPU marks lie around the kernels
            times = event.time_range.start / 1e6, event.time_range.end / 1e6
            spans.append(Span(*("Python", event.name) if on_host else ("GPU", part_of(event.name)), *times))
    first = min(span.start for span in spans)
    return [span._replace(start=span.start - first, end=span.end - first) for span in spans]


def draw(ways: dict[str, list[Span]], png: Path, below: str) -> None:
    """Draw two panels for each way: STEPS steps, and a millisecond of the second one."""
    message = "Graphs close the gaps between kernels, the overlapped loop those between steps"
    whole = 1e3 * max(span.end for spans in ways.values() for span in spans)
    with plots.page(png, below, message, rows=len(ways), columns=2, height=6.4) as panels:
        for place, (way, spans) in enumerate(ways.items()):
            middle = 1e3 * spans[len(spans) // 2].start
            for panel, title, window in zip(
                panels[2 * place :], (way, "One millisecond of it"), ((0, whole), (middle, middle + 1)), strict=False
            ):
                for y, row in enumerate(("GPU", "Python")):
                    own = sorted((span for span in spans if span.row == row), key=lambda span: span.start)
                    bars = [(1e3 * span.start, 1e3 * (span.end - span.start)) for span in own]
                    panel.broken_barh(bars, (y - 0.35, 0.7), linewidth=0, color=[tint_of(span.part) for span in own])
                panel.set(xlim=window, yticks=(0, 1), yticklabels=("GPU", "Python"), title=title)
                panel.grid(visible=False)
        for part, stage in TINTS.items():
            panels[-2].bar(0, 0, color=plots.color(stage), label=part)
        panels[-2].legend(loc="center right", frameon=False, fontsize=10.5)
        for panel in panels[-2:]:
            panel.set_xlabel("milliseconds")


def tint_of(part: str) -> str:
    return {"": plots.TEXT, "step": plots.TEXT, "wait": plots.GRID}.get(part) or plots.color(TINTS.get(part, ""))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m common.bench.gpu.timeline", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="PNG", default=ROOT / "common/acceleration/timeline.png")
    png, ways = parser.parse_args().out, {}
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

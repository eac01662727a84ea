"""How long does Python need for a decode step? The engine as a GPU has it, with a model that computes nothing.

    python -m common.bench.gpu.host                     # 256 requests, 558 tokens behind each
    python -m common.bench.gpu.host --profile           # and which functions take it

A GPU waits for Python wherever a step's Python takes longer than its kernels. To measure that Python no GPU is needed:
stage 06 runs with the overlapped loop and with graphs, whose replays, like the kernels that draw tokens, do nothing
here. Scheduling, the batch and its copies, the sampler's numbers, detokenization and bookkeeping are what they are in
serving; tokens are those of a text. On a GPU each copy is a launch besides, of a few microseconds.

Figures are milliseconds of the thread's CPU time, of the median step and of the fastest. Waiting for other processes
does not count, but what they do to the caches does: on a busy machine the fastest says more.
"""

import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from common import sampling, sampling_kernels
from common.acceleration import accelerate, graphs
from common.attention.torch_backend import TorchAttention
from common.bench.experiment import run_experiment
from common.bench.hardware import ROOT
from common.bench.harness import Figures
from common.bench.settings import Settings
from common.bench.steps import ENDLESS, decoding
from common.engine import BaseEngine
from common.loader import Loaded
from common.stages import load_engine
from common.transfers import to_device

STAGE, TOKEN_BUDGET = "06", 16_384


class NoModel:
    """In place of a model: hidden states and scores of the right shapes, which are never computed."""

    def __init__(self, loaded: Loaded, requests: int):
        self.config, self.cos = loaded.config, loaded.model.cos
        self.hidden = torch.zeros(TOKEN_BUDGET, loaded.config.hidden_size)
        self.scores = torch.zeros(requests, loaded.config.vocab_size)

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: object) -> Tensor:
        return self.hidden[: len(token_ids)]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.scores[: len(hidden)]


@contextmanager
def nothing_computed(text: Sequence[int]) -> Iterator[None]:
    """Make graphs replay nothing, and return a text's tokens in place of drawn ones, within the context."""
    texts = torch.tensor(text)

    def draw_plain(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> Tensor:
        to_device([temperatures, uniforms], torch.float64, logits.device)
        start = int(uniforms[0] * (len(text) - len(logits)))
        return texts[start : start + len(logits)]

    with (
        patch.object(accelerate, "why_no_graphs", lambda *_: None),
        patch.object(graphs, "Capture", lambda: lambda function: lambda: None),
        patch.object(sampling, "has_kernels", lambda device: True),
        patch.object(sampling_kernels, "draw_plain", draw_plain),
        patch.object(TorchAttention, "prepare", lambda self, batch: batch),  # Triton's prepares nothing
    ):
        yield


def measure(
    settings: Settings, requests: int = 256, context: int = 558, steps: int = 50, profile: bool = False
) -> Figures:
    """Return milliseconds of Python in a step. profile: also print the functions that take most to stderr."""
    loaded = settings.load()
    text = loaded.tokenizer((ROOT / "GLOSSARY.md").read_text(encoding="utf-8"))["input_ids"]
    loaded = replace(loaded, model=NoModel(loaded, requests))
    pages = requests * (-(-context // 16) + 16)
    options = {"max_running": requests, "token_budget": TOKEN_BUDGET, "attention": "torch"}
    options["kv_memory"] = pages * 16 * loaded.config.kv_bytes_per_token(loaded.dtype)
    with nothing_computed(text):
        engine = accelerate.make_engine(load_engine(STAGE), loaded, graphs=True, overlap=True, **options)
        with decoding(engine, requests, context, replace(ENDLESS, temperature=0.6)):
            seconds = [step_seconds(engine) for _ in range(steps)]
            if profile:
                with cProfile.Profile() as profiler:
                    for _ in range(steps):
                        engine.step()
                pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return {"host_ms": 1e3 * statistics.median(seconds), "least_ms": 1e3 * min(seconds)}


def step_seconds(engine: BaseEngine) -> float:
    start = time.thread_time()
    engine.step()
    return time.thread_time() - start


if __name__ == "__main__":
    sys.exit(run_experiment(measure, device="cpu"))

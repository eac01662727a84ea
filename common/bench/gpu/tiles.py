"""Which tile of the decode kernel is fastest on this GPU, and does dependent launch pay? The answers are kept.

`python -m common.bench.gpu --only kernels` runs it, and so does `python -m common.bench.gpu.tiles` alone. Results go to
common/attention/tuned.json, from which the Triton backend takes its tile from then on. A tile changes how fast decode
is, and in which order a piece's sums are added: so the file is part of what a measurement is made with.

Programmatic dependent launch (`launch_options`) is kept if layers of a decode step give the same numbers with it, bit
for bit, and take less time.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

from common.attention import PagedBatch
from common.attention.triton_backend import TILES, Tile, TritonAttention, tile_key
from common.bench.documents import write_atomically
from common.bench.experiment import run_experiment
from common.bench.harness import Figures
from common.bench.settings import Settings
from common.bench.timing import REPEATS, median_seconds
from common.fused import triton_launch
from common.fused.triton_launch import DEPENDENT, dependent
from common.loader import find_checkpoint
from common.loader.config import first_sentence, read_config
from common.model import ModelConfig
from common.stages import load_stage_module

PAGE_SIZE = 16
MODELS = ("Qwen3-8B", "TinyLlama-1.1B")  # head dimensions of 128 and 64
BATCHES, CONTEXT = (1, 64, 256), 1024
EARLIEST = (9, 0)  # the compute capability from which there is dependent launch


@torch.inference_mode()
def time_tiles(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    batches: Sequence[int],
    context: int,
    repeats: int = REPEATS,
) -> dict[Tile, list[float]]:
    """Return seconds of attention in decode for each number of requests in `batches`, without tiles that do not fit."""
    times: dict[Tile, list[float]] = {}
    for tile in TILES:
        try:
            times[tile] = [time_tile(tile, config, device, dtype, B, context, repeats) for B in batches]
        except Exception as error:  # Triton has no common class for what a GPU or its compiler refuses
            print(f"{tile}: {first_sentence(error)}", file=sys.stderr)
    return times


def time_tile(
    tile: Tile, config: ModelConfig, device: torch.device, dtype: torch.dtype, B: int, context: int, repeats: int
) -> float:
    from .kernel_cases import attention_case  # needs Triton

    case = attention_case(config, B, context, device, dtype, {"tile": (TritonAttention(dtype, tile), PAGE_SIZE)})
    return median_seconds(case.variants["tile"], device, case.inputs(device), repeats=repeats)


def best_tile(times: dict[Tile, list[float]]) -> Tile:
    """Return what loses least to the fastest of each batch size, in the mean. ValueError if none was timed."""
    if not times:
        raise ValueError("no tile of the decode kernel runs here")
    fastest = [min(column) for column in zip(*times.values(), strict=True)]
    return min(times, key=lambda tile: sum(t / best for t, best in zip(times[tile], fastest, strict=True)))


@torch.inference_mode()
def decode_step(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, B: int, context: int, repeats: int
) -> tuple[float, Tensor]:
    """Time a few layers of a decode step as a graph replays them.

    Return the seconds, and the hidden states `[B, hidden_size]`, which are the same in every call.
    """
    from common.fused import fuse

    from .kernel_cases import layers_of

    torch.manual_seed(0)
    model, pages = fuse(layers_of(config, device, dtype)), -(-context // PAGE_SIZE)
    one_layer = SimpleNamespace(config=replace(config, num_layers=1), device=device, dtype=dtype)
    cache = load_stage_module("06", "kv_cache").KVCache(one_layer, B * pages, PAGE_SIZE, TritonAttention(dtype))
    cache.k.normal_(), cache.v.normal_()
    tables = torch.arange(B * pages).view(B, -1)
    last = torch.full((B,), context - 1, device=device)
    slots = (tables[:, -1] * PAGE_SIZE + (context - 1) % PAGE_SIZE).to(device)
    attend = cache.bind(PagedBatch.pack([1] * B, [context] * B, tables.tolist(), slots, PAGE_SIZE))
    run = lambda: model(torch.zeros_like(last), last, attend)  # noqa: E731
    return median_seconds(run, device, repeats=repeats), run()


def pays(alone: Sequence[tuple[float, Tensor]], early: Sequence[tuple[float, Tensor]]) -> bool:
    """Say whether steps launched early give the numbers of those launched one by one, and sooner in the mean."""
    pairs = list(zip(alone, early, strict=True))
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs) and statistics.mean(t / s for (s, _), (t, _) in pairs) < 1


def keep(gpu: str, key: str, value: object) -> None:
    """Add it to the file, or replace what was known."""
    path = triton_launch.TUNED
    known = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault(gpu, {})[key] = value
    write_atomically(path, json.dumps(known, indent=1, sort_keys=True) + "\n")


def tune(device: torch.device, dtype: torch.dtype, models: Sequence[str] = MODELS) -> dict[str, object]:
    """Time, choose and keep: a tile for the head dimension of each model, and whether to launch early. Return both."""
    gpu, chosen = torch.cuda.get_device_name(device), {}
    configs = [read_config(find_checkpoint(name, with_weights=False)) for name in models]
    for config in configs:
        times = time_tiles(config, device, dtype, BATCHES, CONTEXT)
        for tile, seconds in times.items():
            print(f"D={config.head_dim} {tile}: {[round(1e6 * one, 1) for one in seconds]} us", file=sys.stderr)
        chosen[tile_key(dtype, config.head_dim)] = list(best_tile(times))
    if torch.cuda.get_device_capability(device) >= EARLIEST:
        chosen[DEPENDENT] = tune_dependent_launch(configs[0], device, dtype)
    for key, value in chosen.items():
        keep(gpu, key, value)
    return chosen


def tune_dependent_launch(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Time a step without and with dependent launch, and use it in this process if it pays."""
    place, steps = torch.zeros(0, device=device).device, {}  # with the number of the GPU, as tensors have it
    for wanted in (False, True):
        dependent[place] = wanted
        try:
            steps[wanted] = [decode_step(config, device, dtype, B, CONTEXT, REPEATS) for B in BATCHES]
            said = f"{[round(1e6 * seconds, 1) for seconds, _ in steps[wanted]]} us"
        except Exception as error:  # Triton has no common class for what a GPU or its driver refuses
            said = first_sentence(error)
        print(f"{DEPENDENT} {'on' if wanted else 'off'}: {said}", file=sys.stderr)
    dependent[place] = len(steps) == 2 and pays(steps[False], steps[True])
    return dependent[place]


def measure(settings: Settings) -> Figures:
    return {"kept": tune(*settings.place())}


if __name__ == "__main__":
    sys.exit(run_experiment(measure, device="cuda"))

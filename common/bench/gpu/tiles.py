"""Which tile of the decode kernel is fastest on this GPU, for a type and head dimension; the answer is kept.

`python -m common.bench.gpu --only kernels` runs it, and so does `python -m common.bench.gpu.tiles` alone. Results go to
common/attention/tuned.json, from which the Triton backend takes its tile from then on. A tile changes how fast decode
is, and in which order a piece's sums are added: so the file is part of what a measurement is made with.
"""

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from common.attention import PagedBatch, triton_backend
from common.attention.triton_backend import TILES, Tile, TritonAttention, tile_key
from common.bench.documents import write_atomically
from common.bench.timing import REPEATS, inputs_beyond_cache, median_seconds
from common.loader import find_checkpoint
from common.loader.config import first_sentence, read_config
from common.loader.device import choose_device
from common.model import ModelConfig

PAGE_SIZE = 16
MODELS = ("Qwen3-8B", "TinyLlama-1.1B")  # head dimensions of 128 and 64


@torch.inference_mode()
def time_tiles(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    batches: Sequence[int],
    context: int,
    repeats: int = REPEATS,
) -> dict[Tile, list[float]]:
    """Seconds of attention in decode for each number of requests in `batches`; a tile that does not fit is left out."""
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
    H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
    pages = -(-context // PAGE_SIZE)
    order = torch.randperm(B * pages, generator=torch.Generator().manual_seed(0))  # pages lie anywhere
    slots = torch.zeros(B, dtype=torch.int64, device=device)  # nothing is written
    batch = PagedBatch.pack([1] * B, [context] * B, order.view(B, -1).tolist(), slots, PAGE_SIZE)
    attention = TritonAttention(dtype, tile)
    nbytes = 2 * B * pages * PAGE_SIZE * H_kv * D * dtype.itemsize
    inputs = [
        (torch.randn(B, H, D, device=device, dtype=dtype),)
        + tuple(torch.randn(B * pages, PAGE_SIZE, H_kv, D, device=device, dtype=dtype) for _ in range(2))
        for _ in range(inputs_beyond_cache(nbytes, device))
    ]
    attend = lambda q, k, v: attention.attend(q, k, v, attention.prepare(batch))  # noqa: E731
    return median_seconds(attend, device, inputs, repeats=repeats)


def best_tile(times: dict[Tile, list[float]]) -> Tile:
    """The one that loses least to the fastest of each batch size, in the mean. ValueError if none was timed."""
    if not times:
        raise ValueError("no tile of the decode kernel runs here")
    fastest = [min(column) for column in zip(*times.values(), strict=True)]
    return min(times, key=lambda tile: sum(t / best for t, best in zip(times[tile], fastest, strict=True)))


def keep(gpu: str, dtype: torch.dtype, head_dim: int, tile: Tile) -> None:
    """Add it to the file, or replace what was known."""
    path = triton_backend.TUNED
    known = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault(gpu, {})[tile_key(dtype, head_dim)] = list(tile)
    write_atomically(path, json.dumps(known, indent=1, sort_keys=True) + "\n")


def tune(device: torch.device, dtype: torch.dtype, models: Sequence[str] = MODELS) -> dict[str, list[int]]:
    """Time, choose and keep, for the head dimension of each model; return the tiles by `tile_key`."""
    chosen = {}
    for name in models:
        config = read_config(find_checkpoint(name, with_weights=False))
        times = time_tiles(config, device, dtype, (1, 64, 256), 1024)
        for tile, seconds in times.items():
            print(f"D={config.head_dim} {tile}: {[round(1e6 * one, 1) for one in seconds]} us", file=sys.stderr)
        tile = best_tile(times)
        keep(torch.cuda.get_device_name(device), dtype, config.head_dim, tile)
        chosen[tile_key(dtype, config.head_dim)] = list(tile)
    return chosen


def main() -> int:
    argparse.ArgumentParser("python -m common.bench.gpu.tiles", description=__doc__).parse_args()
    try:
        device, dtype, why = choose_device("cuda")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(why, file=sys.stderr)
    print(json.dumps(tune(device, dtype)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

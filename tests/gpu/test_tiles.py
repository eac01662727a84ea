"""The decode kernel's tile is measured, chosen and kept, and the backend takes what was kept."""

import pytest
import torch
from triton_marks import needs_triton

from common.attention import triton_backend
from common.attention.triton_backend import TILES, Tile, create
from common.bench.gpu import tiles
from common.model import ModelConfig

CUDA = torch.device("cuda")
TINY = ModelConfig(
    vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16,
    context_length=64,
)  # fmt: skip


@needs_triton
def test_every_tile_is_timed_but_those_that_do_not_fit(monkeypatch, capsys):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    time_tile = tiles.time_tile

    def refuse_the_last(tile, *arguments):
        if tile == TILES[-1]:
            raise RuntimeError("out of resource: shared memory. Reduce block sizes")
        return time_tile(tile, *arguments)

    monkeypatch.setattr(tiles, "time_tile", refuse_the_last)
    times = tiles.time_tiles(TINY, device, torch.float32, (1, 2), 20, repeats=1)
    assert set(times) == set(TILES[:-1]) and all(len(row) == 2 and min(row) > 0 for row in times.values())
    assert "out of resource: shared memory" in capsys.readouterr().err


def test_the_best_loses_least_over_all_batches():
    times = {Tile(16): [1.0, 9.0], Tile(32): [1.1, 3.0], Tile(64): [2.0, 2.9]}
    assert tiles.best_tile(times) == Tile(32)
    with pytest.raises(ValueError, match="no tile"):
        tiles.best_tile({})


@needs_triton
def test_what_is_kept_is_what_the_backend_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_backend, "TUNED", tmp_path / "tuned.json")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    assert create(CUDA, torch.bfloat16, 128).tile == Tile()
    tiles.keep("NVIDIA H100", torch.bfloat16, 128, Tile(128, 4, 3))
    tiles.keep("NVIDIA H100", torch.bfloat16, 64, Tile(64, 2, 3))
    tiles.keep("NVIDIA H100", torch.bfloat16, 64, Tile(64, 4, 5))
    tiles.keep("NVIDIA L4", torch.bfloat16, 96, Tile(64, 2, 3))
    chosen = [create(CUDA, dtype, D).tile for dtype, D in ((torch.bfloat16, 128), (torch.bfloat16, 64))]
    assert chosen == [Tile(128, 4, 3), Tile(64, 4, 5)]
    assert create(CUDA, torch.float16, 128).tile == create(CUDA, torch.bfloat16, 96).tile == Tile()
    assert create(torch.device("cpu"), torch.float32, 64).tile == Tile()

"""Tiles and dependent launch are measured, chosen and kept, and the backend takes what was kept."""

from dataclasses import replace

import pytest
import torch

from common.attention.triton_backend import TILES, Tile, create
from common.bench.gpu import tiles
from common.fused import triton_launch
from common.model import ModelConfig
from tests.helpers.triton_marks import devices, needs_triton

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
    monkeypatch.setattr(triton_launch, "TUNED", tmp_path / "tuned.json")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    assert create(CUDA, torch.bfloat16, 128).tile == Tile()
    tiles.keep("NVIDIA H100", "bfloat16 128", Tile(128, 4, 3))
    tiles.keep("NVIDIA H100", "bfloat16 64", Tile(64, 2, 3))
    tiles.keep("NVIDIA H100", "bfloat16 64", Tile(64, 4, 5))
    tiles.keep("NVIDIA L4", "bfloat16 96", Tile(64, 2, 3))
    chosen = [create(CUDA, dtype, D).tile for dtype, D in ((torch.bfloat16, 128), (torch.bfloat16, 64))]
    assert chosen == [Tile(128, 4, 3), Tile(64, 4, 5)]
    assert create(CUDA, torch.float16, 128).tile == create(CUDA, torch.bfloat16, 96).tile == Tile()
    assert create(torch.device("cpu"), torch.float32, 64).tile == Tile()


# ---- Dependent launch ----


def test_kernels_are_launched_early_where_that_was_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_launch, "TUNED", tmp_path / "tuned.json")
    monkeypatch.setattr(triton_launch, "dependent", {})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    tiles.keep("GPU 1", triton_launch.DEPENDENT, True)
    tiles.keep("GPU 2", triton_launch.DEPENDENT, False)
    options = [triton_launch.launch_options(torch.device("cuda", number)) for number in range(3)]
    assert options == [{}, {"DEPENDENT": True, "launch_pdl": True}, {}]
    assert triton_launch.launch_options(torch.device("cpu")) == {}


@pytest.mark.parametrize(
    ("seconds", "number", "expected"), [((0.9, 1.9), 1.0, True), ((0.9, 2.4), 1.0, False), ((0.9, 1.9), 1.5, False)]
)
def test_it_pays_if_the_same_numbers_come_sooner(seconds, number, expected):
    alone = [(1.0, torch.ones(2)), (2.0, torch.ones(2))]
    early = [(seconds[0], torch.ones(2)), (seconds[1], torch.full((2,), number))]
    assert tiles.pays(alone, early) is expected


@needs_triton
@devices
def test_a_step_of_layers_is_timed(device):
    first, again = (tiles.decode_step(TINY, torch.device(device), torch.float32, 2, 20, 1) for _ in range(2))
    assert first[0] > 0 and torch.equal(first[1], again[1]) and first[1].isfinite().all()


@pytest.mark.gpu
def test_a_step_launched_early_gives_the_same_numbers(monkeypatch):
    device = torch.zeros(0, device="cuda").device
    if torch.cuda.get_device_capability(device) < tiles.EARLIEST:
        pytest.skip("needs compute capability 9.0: dependent launch")
    monkeypatch.setattr(triton_launch, "dependent", found := {})
    results = []
    for found[device] in (False, True):
        results.append(tiles.decode_step(replace(TINY, head_dim=64), device, torch.bfloat16, 5, 700, 1)[1])
    assert torch.equal(*results)

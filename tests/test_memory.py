"""How much memory a worker takes for keys and values on a GPU that it shares. The GPU is a stand-in."""

from types import SimpleNamespace

import pytest
import torch

from common.memory import kv_bytes_left
from common.parallel import WHOLE

GIB = 2**30


@pytest.fixture
def left(monkeypatch):
    """`kv_bytes_left` of a process with that much allocated and a step that takes so much, on a GPU of 80 GiB."""

    def kv_gib_left(share: float = 1.0, *, free: float, weights: float, step: float) -> float:
        figures = {
            "mem_get_info": (int(free * GIB), 80 * GIB),
            "memory_allocated": int(weights * GIB),
            "max_memory_allocated": int((weights + step) * GIB),
        }
        for name, value in figures.items():
            monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
        for name in ("empty_cache", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, lambda *_: None)
        on_cpu = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *shape, device, **options: on_cpu(*shape, **options))
        loaded = SimpleNamespace(device=SimpleNamespace(type="cuda"), shard=WHOLE, model=Model())
        try:
            return kv_bytes_left(loaded, 256, 64, share) / GIB
        finally:
            monkeypatch.setattr(torch, "zeros", on_cpu)

    return kv_gib_left


class Model:
    def __call__(self, ids, positions, attend):
        return torch.ones(len(ids), 4)

    def logits(self, hidden):
        return hidden


def test_alone_on_a_gpu_a_tenth_of_it_stays_free(left):
    assert left(free=50, weights=28, step=2) == pytest.approx(50 - 8 - 2)


def test_workers_that_share_a_gpu_take_as_much_whoever_is_first(left):
    """Two with 10 GiB of weights and 1 GiB for a step. The first has filled its half when the second looks."""
    first = left(0.5, free=80 - 2 * 10, weights=10, step=1)
    assert first == pytest.approx(0.5 * 72 - 10 - 1)
    assert left(0.5, free=80 - 2 * 10 - first - 1, weights=10, step=1) == pytest.approx(first)
    assert 2 * (10 + first + 1) <= 0.9 * 80 + 1e-6


def test_never_more_than_is_free(left):
    assert left(0.5, free=15, weights=10, step=1) == pytest.approx(15 - 0.5 * 8 - 1)


def test_no_memory_left_is_said_with_the_share(left):
    with pytest.raises(
        ValueError, match=r"12.0 of 80.0 GiB are free, of which this worker may fill 25% and has filled 18"
    ):
        left(0.25, free=12, weights=18, step=1)
    with pytest.raises(ValueError, match=r"5.0 of 80.0 GiB are free, and a step of 256 tokens takes 1.0"):
        left(free=5, weights=70, step=1)

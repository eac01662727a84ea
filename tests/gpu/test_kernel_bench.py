"""Kernels are timed beside what computes the same, and engines take what the table has for their GPU."""

import pytest
import torch

from common.attention.triton_backend import Tile, create
from common.bench.gpu.smoke import attention_case, times_of
from common.bench.timing import median_seconds
from common.fused import triton_launch
from tests.helpers.small_models import SMALL
from tests.helpers.triton_marks import needs_triton

CUDA = torch.device("cuda")


@needs_triton
def test_a_variant_that_fails_is_left_out_and_says_why():
    def broken(*arguments):
        raise RuntimeError("out of resource: shared memory. Reduce block sizes")

    case = attention_case(SMALL, 1, 20, torch.device("cpu"), torch.float32)
    variants = {"torch": case.variants["torch"], "triton": lambda: broken}
    found = times_of(case._replace(variants=variants), torch.device("cpu"), samples=1)
    assert found["us"].keys() == {"torch"} and found["missing"]["triton"] == "out of resource: shared memory"


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
def test_a_gpu_is_timed_by_its_own_clock(graph):
    matrix = torch.randn(4096, 4096, device=CUDA)
    small, large = (
        median_seconds(torch.mm, CUDA, [(matrix[:rows], matrix)], graph=graph, repeats=3) for rows in (64, 4096)
    )
    assert 0 < small < large, "Python is back long before the GPU has ended"


@needs_triton
def test_engines_take_what_the_table_has_for_their_gpu(tmp_path, monkeypatch):
    table = tmp_path / "tuned.json"
    monkeypatch.setattr(triton_launch, "TUNED", table)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    first, second = (torch.device("cuda", number) for number in range(2))
    assert create(first, torch.bfloat16, 128).tile == Tile(), "there is no table"
    table.write_text('{"GPU 1": {"bfloat16 128": [128, 4, 3]}}')
    assert create(second, torch.bfloat16, 128).tile == Tile(128, 4, 3)
    assert create(second, torch.float16, 128).tile == create(first, torch.bfloat16, 128).tile == Tile()

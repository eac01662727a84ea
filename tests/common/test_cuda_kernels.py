"""decode.cu of beyond/cuda_kernels: a CPU runs the same source, nvcc compiles it, and a GPU runs it."""

import re
import shutil
import sys

import pytest
import torch

from beyond.cuda_kernels import __main__ as command
from beyond.cuda_kernels.__main__ import attend_by, case
from beyond.cuda_kernels.decode import KERNEL, attend_on_cpu, attend_on_gpu, decode, find_nvcc, report_of
from tests.helpers.triton_marks import needs_triton

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="needs Linux and g++, which compiles decode.cu here"
)
SOURCE = KERNEL.read_text(encoding="utf-8")
BARRIERS = [match.start() for match in re.finditer("__syncthreads", SOURCE)]


def definition(q, k_pages, v_pages, batch):
    return attend_by("torch", q.float(), k_pages.float(), v_pages.float(), batch)


@needs_compiler
@pytest.mark.parametrize(
    ("lengths", "H_kv", "groups", "D"),
    [([1, 31, 33, 300], 2, 2, 128), ([5, 90], 1, 7, 192)],
    ids=str,
)
def test_the_loop_and_the_kernel_compute_attention_and_no_warp_waits_for_a_bank(lengths, H_kv, groups, D):
    torch.manual_seed(0)
    q, k_pages, v_pages, batch = arguments = case(lengths, "cpu", H_kv, groups, D)
    expected = definition(*arguments)
    by_loop = decode(q[-1, :groups], k_pages[:, :, 0], v_pages[:, :, 0], batch.page_tables[-1].long(), lengths[-1])
    torch.testing.assert_close(by_loop, expected[-1, :groups])
    for backwards in (False, True):
        found, conflicts = attend_on_cpu(*arguments, backwards=backwards)
        torch.testing.assert_close(found, expected)
        assert conflicts.accesses > 0 and conflicts.lost == 0


@needs_compiler
@pytest.mark.parametrize("barrier", BARRIERS)
def test_each_barrier_is_needed_and_all_threads_must_come_to_it(barrier, tmp_path):
    """A CPU that passed a kernel without it would pass what fails on a GPU."""
    assert len(BARRIERS) == 2
    kernel, (before, after) = tmp_path / "decode.cu", (SOURCE[:barrier], SOURCE[barrier:])
    kernel.write_text(before + after.removeprefix("__syncthreads()"))
    assert "the result is wrong" in command.faults_of(kernel)
    kernel.write_text(f"{before}if (lane) {after}")
    with pytest.raises(ValueError, match="go another way"):
        command.faults_of(kernel)


@needs_compiler
@needs_triton
def test_an_exercise_begins_with_its_fault_and_ends_with_the_kernel_of_the_course(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "MINE", tmp_path / "cuda_kernels")
    command.start()
    assert command.check() == 1
    said = capsys.readouterr().out
    assert "at most 31 at once" in said and "1: bank conflicts." in said and "2: the loop waits for all" in said
    for path in command.FAULTS:
        shutil.copy(path, command.MINE)
    assert command.check() == 0


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc: `pip install nvidia-cuda-nvcc` brings it")
@pytest.mark.parametrize("arch", [80, 90])
def test_nvcc_compiles_it_without_spills(arch):
    shared = 4 * (2 * 64 + 32 * 65 + 32 * 64)  # bytes of queries, K and V
    said = report_of(find_nvcc(), arch)
    assert re.fullmatch(rf"0 bytes spill stores, \d+ registers, {shared} bytes smem", said)


@pytest.mark.gpu
@pytest.mark.parametrize(("H_kv", "groups", "D"), [(8, 2, 128), (2, 4, 64)])
def test_a_gpu_computes_the_same(H_kv, groups, D):
    arguments = case([1, 33, 1024], "cuda", H_kv, groups, D)
    torch.testing.assert_close(attend_on_gpu(*arguments), definition(*arguments), rtol=1e-4, atol=1e-5)
    assert all(command.times(1))

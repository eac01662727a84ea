"""Marks of tests that run Triton kernels: compiled on a GPU, in Triton's interpreter on a CPU."""

import importlib.util

import pytest
import torch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton (Linux): the kernels for GPUs"
)
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA kernels are compiled")
devices = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=on_cpu), pytest.param("cuda", marks=pytest.mark.gpu)]
)

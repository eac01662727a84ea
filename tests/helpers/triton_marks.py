"""Marks of tests that run Triton kernels: compiled on a GPU, in Triton's interpreter on a CPU."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from common.fused.triton_launch import interpreted

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs the package triton (Linux): the kernels for GPUs"
)
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA kernels are compiled")
devices = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=on_cpu), pytest.param("cuda", marks=pytest.mark.gpu)]
)

if find_spec("triton") and interpreted():
    # It prepares its language again for each launch and for each call within a kernel, which takes half of its time.
    # Once is enough: kernels see the language as `tl`, and its own functions see it as `core`.
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda kernel: SimpleNamespace(restore=lambda: None)

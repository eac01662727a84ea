"""What the machine can do at best, and how steady it is: a copy, a large product, and a small one, repeated."""

import torch
from torch import nn

from ..fused.packed import pack_linears
from .timing import median_seconds

LARGE = {"cpu": 2048, "cuda": 8192}  # rows and columns of a matrix product
REFERENCE = {"cpu": 768, "cuda": 4096}  # rows and columns of the reference product: it takes milliseconds
REFERENCE_TIMES = 9
COPIED = {"cpu": 2**26, "cuda": 2**30}  # bytes, several times what a cache holds


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Return what large square matrix products reach here, every model's ceiling on this device; the median.

    On a CPU with packed weights, as models have them there.
    """
    size = LARGE[device.type]
    layer = nn.Sequential(nn.Linear(size, size, bias=False, device=device, dtype=dtype)).requires_grad_(False)
    if device.type == "cpu":
        pack_linears(layer)
    x = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / median_seconds(layer, device, [(x,)], graph=False, repeats=5)


def copy_bytes_per_second(device: torch.device) -> float:
    """Return bytes read plus bytes written per second by a large copy in the device's memory; the median.

    Not as a CUDA graph: its copies use another engine, on an H200 at 2.7 TB/s in place of 4.2.
    """
    nbytes = COPIED[device.type]
    source, target = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * nbytes / median_seconds(target.copy_, device, [(source,)], graph=False, repeats=10)


def read_bytes_per_second(device: torch.device, nbytes: int) -> float:
    """Return bytes per second of reading the same `nbytes` bytes again and again, the median.

    They are read from the level of cache that holds them, as are weights that a decode step reads in each step.
    """
    return nbytes / median_seconds(torch.sum, device, [(torch.zeros(nbytes // 4, device=device),)])


def ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Return both, by the names that documents have for them."""
    return {
        "copy_bytes_per_second": copy_bytes_per_second(device),
        "matmul_flops_per_second": matmul_flops_per_second(device, dtype),
    }


def reference_ms(device: torch.device, dtype: torch.dtype) -> float:
    """Return milliseconds of a fixed matrix product, the median: a machine that changes its speed shows it here."""
    size = REFERENCE[device.type]
    factors = tuple(torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 1e3 * median_seconds(torch.mm, device, [factors], graph=False, repeats=REFERENCE_TIMES)

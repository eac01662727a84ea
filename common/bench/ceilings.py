"""What the machine can do at best, and how steady it is: a copy, a large product, and a small one, repeated."""

import statistics
import time

import torch

from .timing import median_seconds

REFERENCE = {"cpu": 768, "cuda": 4096}  # rows and columns of the reference product: milliseconds each
REFERENCE_TIMES = 15


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """What one large square matrix product reaches here: the ceiling of every model on this device. Best of five."""
    size = size or (8192 if device.type == "cuda" else 2048)
    return 2 * size**3 / min(product_seconds(device, dtype, size, 6)[1:])


def copy_bytes_per_second(device: torch.device, nbytes: int | None = None, repeats: int = 10) -> float:
    """Bytes read plus bytes written by a large copy within the device's memory, per second; the median."""
    nbytes = nbytes or (2**30 if device.type == "cuda" else 2**26)  # several times what a cache holds
    source, target = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * nbytes / median_seconds(target.copy_, device, [(source,)], repeats=repeats)


def reference_ms(device: torch.device, dtype: torch.dtype) -> float:
    """Milliseconds of a fixed matrix product: a machine that changes its speed shows it here. The median."""
    return 1e3 * statistics.median(product_seconds(device, dtype, REFERENCE[device.type], REFERENCE_TIMES + 3)[3:])


def product_seconds(device: torch.device, dtype: torch.dtype, size: int, times: int) -> list[float]:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        c = a @ b
        c[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return seconds

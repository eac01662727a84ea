"""The bytes of pages in the order of a transfer: pool by pool, layer by layer, page by page.

Pools are tensors [layers, pages, ...], contiguous, on one device; a page number means the same in all of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_pools(pools: Sequence[Tensor]) -> None:
    """Raise ValueError for pools whose pages cannot be transferred together."""
    if not pools or any(pool.dim() < 2 or not pool.numel() or not pool.is_contiguous() for pool in pools):
        raise ValueError("pools must be contiguous tensors [layers, pages, ...]: at least one, and none of them empty")
    if len({(pool.shape[1], pool.device) for pool in pools}) > 1:
        found = ", ".join(f"{pool.shape[1]} on {pool.device}" for pool in pools)
        raise ValueError(f"pools must have the same number of pages on the same device, not {found}")


def layout(pools: Sequence[Tensor]) -> list[str]:
    """Return what must agree between sender and receiver: each pool's dtype, layers, and shape of a page in a layer."""
    return [f"{pool.dtype} {[pool.shape[0], *pool.shape[2:]]}" for pool in pools]


def bytes_of(pools: Sequence[Tensor], pages: Sequence[int]) -> int:
    """Return the bytes of these pages in all pools."""
    return sum(pool[:, 0].nbytes for pool in pools) * len(pages)


def on_host(pools: Sequence[Tensor]) -> bool:
    return pools[0].device.type == "cpu"


def page_views(pools: Sequence[Tensor], pages: Sequence[int]) -> list[memoryview]:
    """Return views of the memory of pages on the CPU, to read or to write; neighbouring pages are one view."""
    runs = page_runs(pages)
    pieces = []
    for pool in pools:
        memory = memoryview(pool.view(-1).view(torch.uint8).numpy())  # the pool's own
        layer_bytes, page_bytes = pool[0].nbytes, pool[0, 0].nbytes
        for layer in range(0, pool.nbytes, layer_bytes):
            pieces += [memory[layer + first * page_bytes : layer + end * page_bytes] for first, end in runs]
    return pieces


def page_runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first page, one after the last) of each ascending run: (7, 10), (3, 4) for [7, 8, 9, 3]."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page:
            runs[-1] = runs[-1][0], page + 1
        else:
            runs.append((page, page + 1))
    return runs

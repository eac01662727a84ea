"""Attention over keys and values that lie in pages: one interface, and several backends behind it.

    attention, why = choose_attention("auto", device, dtype, head_dim)
    plan = attention.prepare(batch)                                   # once a step
    attention.write(k, v, k_pages, v_pages, batch.slot_mapping)       # once a layer
    attended = attention.attend(q, k_pages, v_pages, plan)            # once a layer

| backend | runs on | how |
|---|---|---|
| `torch` | anything | gathers the pages, then masked scaled-dot-product attention: the definition of the others |
| `numba` | CPU, float32 and bfloat16 | one compiled loop over blocks of rows, which reads pages where they lie |
| `triton` | CUDA | kernels of the course: write, decode with K and V split over programs, ragged prefill |

Pages are `[pages, page_size, H_kv, D]` in every backend, for K and for V: what one token has in them is contiguous.
With `--kv-dtype int8` they are int8 and D + 4 wide (int8.py), which all backends read.

A new backend is a module NAME_backend.py with `create`, its name in BACKENDS and options.toml, and where it runs in
`candidates` and `why_not`; tests/common/test_attention.py holds all of them to the definition.
"""

from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from common.errors import InvalidInput
from common.fused import why_not_numba
from common.fused.triton_launch import why_not_triton

from .batch import PagedBatch

BACKENDS = ("torch", "numba", "triton")


class Attention(Protocol):
    """A backend. q is `[N, H, D]`, k and v are `[N, H_kv, D]`; rows may be strided, heads and D are contiguous."""

    name: str
    capturable: bool  # whether launches depend on nothing but shapes: then a CUDA graph can hold them

    def prepare(self, batch: PagedBatch) -> Any:
        """Return what `attend` needs in every layer of one step."""

    def write(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        """Store each row's K and V in its slot. If the slot is negative, a capturable backend stores nothing."""

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Any) -> Tensor:
        """Return `[N, H, D]`: each row's attention to its own sequence, up to its own position."""


def choose_attention(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[Attention, str]:
    """Return the backend of that name, or for "auto" the fastest one here, and one line that says why.

    Raise InvalidInput for an unknown name, or if a backend that was asked for by name cannot run here.
    """
    if name != "auto" and name not in BACKENDS:
        raise InvalidInput(f"there is no attention backend {name!r}: use auto, {', '.join(BACKENDS)}")
    candidates = (name,)
    if name == "auto":
        candidates = ("triton", "torch") if device.type == "cuda" else ("numba", "torch")
    missing = []
    for candidate in candidates:
        reason = why_not(candidate, device, dtype)
        if reason is None:
            module = import_module(f".{candidate}_backend", __name__)
            because = "asked for" if name != "auto" else "; ".join([*missing, f"the fastest there is on {device.type}"])
            return module.create(device, dtype, head_dim), f"attention={candidate} ({because})"
        missing.append(f"no {candidate}: {reason}")
    raise InvalidInput(f"the attention backend {name!r} cannot run here: {reason}")


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a backend cannot be used here, None if it can."""
    if name == "triton":
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            return "before compute capability 8.0 its products do not use the tensor cores"
        return why_not_triton(device)
    if name == "numba":
        if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
            return "it is for float32 and bfloat16 on the CPU"
        return why_not_numba()
    return None

"""How heads are normed and rotated on their way out of the product that makes them: the same on every device."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..model import Attend, Attention


class HeadRotation(NamedTuple):
    """What turns the product `qkv[N, (H + 2 * H_kv) * D]` of one layer into its q, k and v.

    positions: `[N]`, int64. cos, sin: the model's tables `[context_length, D]`, float32. q_weight, k_weight: `[D]` each
    where the heads of q and k are normed before they are rotated, else None.

    The `Rotation` of each device adds the name of the attention backend that takes an `Unwritten`, and its
    `launch(qkv, q, k, v=None, slot_mapping=None)`: fill `q[N, H, D]`, and k: `[N, H_kv, D]`, or with a slot_mapping the
    pages of k and of v.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float
    num_heads: int
    num_kv_heads: int

    def empty_heads(self, qkv: Tensor, count: int) -> Tensor:
        """Return memory for `count` heads of each token, `[N, count, D]`."""
        return torch.empty(qkv.shape[0], count, self.cos.shape[1], dtype=qkv.dtype, device=qkv.device)


class Unwritten:
    """K of one layer, which is rotated when it is written to pages, in one launch with V and q.

    It takes the place of k and v where `attend` belongs to a cache of pages whose backend knows of it: so that backend
    finds out where they go, and `q[N, H, D]` is complete once they have been written.
    """

    def __init__(self, qkv: Tensor, rotation: HeadRotation):
        self.qkv, self.rotation = qkv, rotation
        self.q = rotation.empty_heads(qkv, rotation.num_heads)

    def write(self, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        """Fill q, and the slots `slot_mapping[N]` (int64) of pages `[pages, page_size, H_kv, D]`."""
        self.rotation.launch(self.qkv, self.q, k_pages, v_pages, slot_mapping)


def norm_rotate(qkv: Tensor, rotation: HeadRotation) -> tuple[Tensor, Tensor, Tensor]:
    """Return q `[N, H, D]`, k and v `[N, H_kv, D]` from the product `qkv[N, (H + 2 * H_kv) * D]`; v is a view of it."""
    q, k = rotation.empty_heads(qkv, rotation.num_heads), rotation.empty_heads(qkv, rotation.num_kv_heads)
    rotation.launch(qkv, q, k)
    return q, k, qkv.view(len(qkv), -1, q.shape[2])[:, -rotation.num_kv_heads :]


def attend_rotated(qkv: Tensor, rotation: HeadRotation, attend: Attend, layer: int) -> Tensor:
    """Return what `attend` makes of this product of a layer, `[N, H, D]`."""
    # A BoundCache of the stages from 05 on gives k and v to its backend.
    backend = getattr(getattr(attend, "cache", None), "attention", None)
    if getattr(backend, "name", None) == rotation.backend:
        unwritten = Unwritten(qkv, rotation)
        return attend(layer, unwritten.q, unwritten, unwritten)
    return attend(layer, *norm_rotate(qkv, rotation))


def heads_of(attention: Attention) -> tuple:
    """Return the fields of `HeadRotation` that belong to a layer."""
    q_norm, k_norm = attention.q_norm, attention.k_norm
    norms = (q_norm.weight, k_norm.weight, q_norm.eps) if q_norm is not None else (None, None, 0.0)
    return *norms, attention.num_heads, attention.num_kv_heads

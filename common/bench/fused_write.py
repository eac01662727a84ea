"""The fused norm and rotation, which also puts K and V into their pages: one launch a layer less.

The model cannot use it, because where K and V live is not the model's to know: that is what `attend` is for. It is here
so that common/bench/kernels.py can say what that costs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.gpu.fused_kernels import norm_and_rotate


@triton.jit
def norm_rotate_write_kernel(
    qkv, q, k_pages, v_pages, slot_mapping, positions, cos, sin, q_weight, k_weight, eps,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per token and BLOCK_H heads of Q, K and V; BLOCK_D holds half a head."""
    T: tl.constexpr = qkv.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    heads, dims = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    inside = (dims < D // 2)[None, :]
    source = qkv + (row * (H + 2 * H_KV) + heads)[:, None] * D + dims[None, :]
    exists = (heads < H + 2 * H_KV)[:, None] & inside
    first, second = tl.load(source, exists, other=0.0), tl.load(source + D // 2, exists, other=0.0)
    a, b = norm_and_rotate(
        first.to(tl.float32), second.to(tl.float32),
        heads, dims, dims < D // 2, tl.load(positions + row), cos, sin, q_weight, k_weight, eps, H, D, NORM, T,
    )  # fmt: skip
    query, key = (heads < H)[:, None] & inside, ((heads >= H) & (heads < H + H_KV))[:, None] & inside
    value = ((heads >= H + H_KV) & (heads < H + 2 * H_KV))[:, None] & inside
    q_place = q + (row * H + heads)[:, None] * D + dims[None, :]
    slot = tl.load(slot_mapping + row) * H_KV
    k_place = k_pages + (slot + heads - H)[:, None] * D + dims[None, :]
    v_place = v_pages + (slot + heads - H - H_KV)[:, None] * D + dims[None, :]
    tl.store(q_place, a, query)
    tl.store(q_place + D // 2, b, query)
    tl.store(k_place, a, key)
    tl.store(k_place + D // 2, b, key)
    tl.store(v_place, first, value)
    tl.store(v_place + D // 2, second, value)


def norm_rotate_write(
    qkv: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> Tensor:
    """q `[N, H, D]`, as `common.gpu.fused_kernels.norm_rotate` gives it; k and v go to their slots in the pages only.

    k_pages, v_pages: `[pages, page_size, H_kv, D]`; slot_mapping: `[N]` int64, see `common.attention.PagedBatch`.
    """
    N, D = len(qkv), cos.shape[1]
    q = torch.empty(N, num_heads, D, dtype=qkv.dtype, device=qkv.device)
    block_h, block_d = 8, triton.next_power_of_2(D // 2)
    norm_rotate_write_kernel[(N, triton.cdiv(num_heads + 2 * num_kv_heads, block_h))](
        qkv, q, k_pages, v_pages, slot_mapping, positions, cos, sin, q_weight, k_weight, eps,
        num_heads, num_kv_heads, D, q_weight is not None,
        BLOCK_H=block_h, BLOCK_D=block_d, num_warps=min(max(block_h * block_d // 256, 1), 4),
    )  # fmt: skip
    return q

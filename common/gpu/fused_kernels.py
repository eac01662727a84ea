"""Triton kernels for what the transformer does between its matrix products, and the functions that launch them.

None of these operations computes much: their time goes into a launch each, and into writing to memory what the next one
reads back. So a kernel here reads its inputs once, keeps what lies between in registers, and writes once. Sums are
float32. What the plain model stores in its own type on the way is rounded to it here too, `.to(T).to(tl.float32)`, so
that the results are the plain model's but for the order of a sum and the last bits of an exponential.

Tensors are contiguous, and on the current device.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def add_norm_kernel(x, residual, weight, out, eps, SIZE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row. A place of the residual is read and written by one thread only: see `add_norm`."""
    T: tl.constexpr = residual.dtype.element_ty
    start = tl.program_id(0).to(tl.int64) * SIZE
    offsets = tl.arange(0, BLOCK)
    inside = offsets < SIZE
    total = tl.load(residual + start + offsets, inside, other=0.0).to(tl.float32)
    if ADD:
        total = (total + tl.load(x + start + offsets, inside, other=0.0).to(tl.float32)).to(T)
        tl.store(residual + start + offsets, total, inside)
        total = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total) / SIZE + eps)
    normed = total * scale * tl.load(weight + offsets, inside, other=0.0).to(tl.float32)
    tl.store(out + start + offsets, normed.to(T), inside)


@triton.jit
def norm_and_rotate(
    a, b, heads, dims, inside, position, cos, sin, q_weight, k_weight, eps,
    H: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The first and second halves, a and b[heads, dims], of heads of one token: float32 in, float32 holding T out.

    Dimension i turns with i + D/2, so halves that are held apart have both ends of each pair in the same place.
    """
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / D + eps)[:, None]
        is_query = (heads < H)[:, None]
        q_first, k_first = tl.load(q_weight + dims, inside, other=0.0), tl.load(k_weight + dims, inside, other=0.0)
        q_weight, k_weight = q_weight + D // 2, k_weight + D // 2
        q_second, k_second = tl.load(q_weight + dims, inside, other=0.0), tl.load(k_weight + dims, inside, other=0.0)
        a = (a * scale * tl.where(is_query, q_first[None, :], k_first[None, :]).to(tl.float32)).to(T).to(tl.float32)
        b = (b * scale * tl.where(is_query, q_second[None, :], k_second[None, :]).to(tl.float32)).to(T).to(tl.float32)
    # The tables' second halves: of cos the same as the first, and of sin without the sign that `rotate` needs there.
    angles = position * D + D // 2 + dims
    cosine = tl.load(cos + angles, inside, other=0.0).to(T).to(tl.float32)[None, :]
    sine = tl.load(sin + angles, inside, other=0.0).to(T).to(tl.float32)[None, :]
    turned_a = (a * cosine).to(T).to(tl.float32) - b * sine
    turned_b = (b * cosine).to(T).to(tl.float32) + a * sine
    return turned_a.to(T), turned_b.to(T)


# Positions are a row of a tensor of N columns, so where they begin depends on N.
@triton.jit(do_not_specialize_on_alignment=["positions"])
def norm_rotate_kernel(
    qkv, out, positions, cos, sin, q_weight, k_weight, eps,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per token and BLOCK_H heads of Q and K; BLOCK_D holds half a head."""
    T: tl.constexpr = qkv.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    heads, dims = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    places = heads[:, None] * D + dims[None, :]
    inside = (heads < H + H_KV)[:, None] & (dims < D // 2)[None, :]
    source, target = qkv + row * (H + 2 * H_KV) * D + places, out + row * (H + H_KV) * D + places
    a, b = norm_and_rotate(
        tl.load(source, inside, other=0.0).to(tl.float32), tl.load(source + D // 2, inside, other=0.0).to(tl.float32),
        heads, dims, dims < D // 2, tl.load(positions + row), cos, sin, q_weight, k_weight, eps, H, D, NORM, T,
    )  # fmt: skip
    tl.store(target, a, inside)
    tl.store(target + D // 2, b, inside)


@triton.jit
def silu_mul_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row and BLOCK columns of the result."""
    T: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + offsets, inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + offsets, inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(T).to(tl.float32)
    tl.store(out + row * SIZE + offsets, (silu * up).to(T), inside)


# Launches. A warp has 32 threads, and one of them loads 16 bytes at best: 8 numbers of two bytes.


def add_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x to the residual, in place, and return the root mean square norm of the sum: all `[N, hidden_size]`.

    x: what the layer before has computed, None before the first.
    """
    N, size = residual.shape
    out = torch.empty_like(residual)
    # At least one number for each thread: of a smaller block several threads would hold the same number, and one could
    # read it after another had added to it.
    block = max(32, triton.next_power_of_2(size))
    warps = min(max(block // 512, 1), 16)
    add_norm_kernel[(N,)](x, residual, weight, out, eps, size, x is not None, block, num_warps=warps)
    return out


def norm_rotate(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q `[N, H, D]`, k and v `[N, H_kv, D]` from the product `qkv[N, (H + 2 * H_kv) * D]`.

    q and k are rotated by their `positions[N]` (int64), and normed before if there are weights `[D]`; v is as it was.
    cos, sin: the model's tables `[context_length, D]`, float32. q and k share memory, and v is a view of qkv.
    """
    N, D = len(qkv), cos.shape[1]
    rotated = num_heads + num_kv_heads
    out = torch.empty(N, rotated, D, dtype=qkv.dtype, device=qkv.device)
    block_h, block_d = 8, triton.next_power_of_2(D // 2)
    norm_rotate_kernel[(N, triton.cdiv(rotated, block_h))](
        qkv, out, positions, cos, sin, q_weight, k_weight, eps, num_heads, num_kv_heads, D, q_weight is not None,
        BLOCK_H=block_h, BLOCK_D=block_d, num_warps=min(max(block_h * block_d // 256, 1), 4),
    )  # fmt: skip
    q, k = out.split([num_heads, num_kv_heads], dim=1)
    return q, k, qkv.view(N, -1, D)[:, rotated:]


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, `[N, intermediate_size]`, of `gate_up[N, 2 * intermediate_size]`: gate first, then up."""
    N, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(N, size, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(size))
    silu_mul_kernel[(N, triton.cdiv(size, block))](gate_up, out, size, block, num_warps=max(block // 256, 1))
    return out

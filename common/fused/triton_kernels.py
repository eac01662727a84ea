"""Triton kernels for what the transformer does between its matrix products, and for products with few rows.

None of these operations computes much: their time goes into a launch each, and into writing to memory what the next one
reads back. So a kernel here reads its inputs once, keeps what lies between in registers, and writes once. Sums are
float32. What the plain model stores in its own type on the way is rounded to it here too, `.to(T).to(tl.float32)`, so
that the results are the plain model's but for the order of a sum and the last bits of an exponential.

Tensors are contiguous, and on the current device.
"""

from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from .rotation import HeadRotation, unrotated

FEW_ROWS = 4  # rows of a product: up to this, `few_rows_kernel` may take it
FEW_NUMBERS = 8192  # numbers of a product's result: up to this, `few_rows_kernel` is faster than cuBLAS on an H200


@triton.jit
def add_norm_kernel(
    x, residual, weight, out, eps,
    SIZE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row of x, residual and out, [N, SIZE]. Each number of the residual is read and written by one
    thread only: see `add_norm`."""
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


# Positions and slots are rows of a tensor of N columns, so their alignment depends on N.
@triton.jit(do_not_specialize_on_alignment=["positions", "slot_mapping"])
def norm_rotate_kernel(
    qkv, q_out, k_out, v_out, positions, slot_mapping, cos, sin, q_weight, k_weight, eps,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr, PAGED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per token and BLOCK_H of its heads; BLOCK_D holds half a head.

    PAGED: k_out and v_out are pages, and the token's K and V go into its slot, or nowhere if it is negative. Otherwise
    K goes into the token's row of k_out, and V is left where it is.
    """
    T: tl.constexpr = qkv.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    heads, dims = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    in_head = (dims < D // 2)[None, :]
    inside = (heads < H + H_KV + PAGED * H_KV)[:, None] & in_head
    source = qkv + (row * (H + 2 * H_KV) + heads[:, None]) * D + dims[None, :]
    a = tl.load(source, inside, other=0.0)
    b = tl.load(source + D // 2, inside, other=0.0)
    turned_a, turned_b = norm_and_rotate(
        a.to(tl.float32), b.to(tl.float32),
        heads, dims, dims < D // 2, tl.load(positions + row), cos, sin, q_weight, k_weight, eps, H, D, NORM, T,
    )  # fmt: skip
    target, is_query = q_out + (row * H + heads[:, None]) * D + dims[None, :], (heads < H)[:, None] & in_head
    tl.store(target, turned_a, is_query)
    tl.store(target + D // 2, turned_b, is_query)
    place = tl.load(slot_mapping + row) if PAGED else row  # negative: nowhere
    key = heads - H
    target = k_out + (place * H_KV + key[:, None]) * D + dims[None, :]
    is_key = ((key >= 0) & (key < H_KV))[:, None] & (place >= 0)
    tl.store(target, turned_a, is_key & in_head)
    tl.store(target + D // 2, turned_b, is_key & in_head)
    if PAGED:
        value = key - H_KV
        target, is_value = (
            v_out + (place * H_KV + value[:, None]) * D + dims[None, :],
            ((value >= 0) & (place >= 0))[:, None] & inside,
        )
        tl.store(target, a, is_value)
        tl.store(target + D // 2, b, is_value)


@triton.jit
def silu_mul_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row and BLOCK columns of out[N, SIZE]; gate_up is [N, 2 * SIZE]."""
    T: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + offsets, inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + offsets, inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(T).to(tl.float32)
    tl.store(out + row * SIZE + offsets, (silu * up).to(T), inside)


@triton.jit(do_not_specialize=["rows"])
def few_rows_kernel(
    x, weight, bias, out, rows, N, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """One program per BLOCK_N columns of out[rows, N], which is x[rows, K] times weight[N, K], plus bias[N] or None. A
    program reads its weights once."""
    row, column = tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weights = weight + column[:, None].to(tl.int64) * K
    total = tl.zeros([BLOCK_M, BLOCK_N, BLOCK_K], tl.float32)
    # Unrolled: several reads are then in flight at once.
    for start in tl.range(0, K, BLOCK_K, loop_unroll_factor=4):
        k = start + tl.arange(0, BLOCK_K)
        w = tl.load(weights + k[None, :], (column < N)[:, None] & (k < K)[None, :], other=0.0).to(tl.float32)
        each = tl.load(x + row[:, None] * K + k[None, :], (row < rows)[:, None] & (k < K)[None, :], other=0.0)
        total += each.to(tl.float32)[:, None, :] * w[None, :, :]
    result = tl.sum(total, axis=2)
    if bias is not None:
        result += tl.load(bias + column, column < N, other=0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], result.to(out.dtype.element_ty), inside)


def on_device(residual: Tensor, few: bool) -> AbstractContextManager:
    """Make the tensor's device the current one, where Triton launches; on a CPU change nothing.

    few: ignored; numba's kernels, with the same interface, need it.
    """
    return torch.cuda.device_of(residual)


# Launches. A warp has 32 threads, and one of them loads 16 bytes at best: 8 numbers of two bytes.


def apply_linear(linear: nn.Module, x: Tensor) -> Tensor:
    """Return linear(x), `[N, out_features]`.

    With few rows a product takes as long as reading the weights, and cuBLAS reads small ones slowly: it takes an H200
    12.6 us to multiply one row of 2,048 by [2,048, 1,024], and this kernel 3.3 us.
    """
    if type(linear) is not nn.Linear or len(x) > FEW_ROWS or len(x) * linear.out_features > FEW_NUMBERS:
        return linear(x)
    (rows, K), N = x.shape, linear.out_features
    out = torch.empty(rows, N, dtype=x.dtype, device=x.device)
    few_rows_kernel[(triton.cdiv(N, 2),)](
        x, linear.weight, linear.bias, out, rows, N, K, BLOCK_M=triton.next_power_of_2(rows), BLOCK_N=2,
        BLOCK_K=min(1024, triton.next_power_of_2(K)), num_warps=2,
    )  # fmt: skip
    return out


def add_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x to the residual, in place, and return the root mean square norm of the sum: all `[N, hidden_size]`.

    x: what the layer before has computed, None before the first.
    """
    N, size = residual.shape
    out = torch.empty_like(residual)
    # At least one number for each thread: in a smaller block several threads would hold the same number, and one could
    # read it after another had added to it.
    block = max(32, triton.next_power_of_2(size))
    warps = min(max(block // 512, 1), 16)
    add_norm_kernel[(N,)](x, residual, weight, out, eps, size, x is not None, block, num_warps=warps)
    return out


class Rotation(HeadRotation):
    """The rotation by `norm_rotate_kernel`, launched when q or k is first used."""

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `HeadRotation`."""
        return unrotated(qkv, self)

    def launch(
        self, qkv: Tensor, q: Tensor, k: Tensor, v: Tensor | None = None, slot_mapping: Tensor | None = None
    ) -> None:
        """See `Launch`."""
        N, H, D = q.shape
        paged = slot_mapping is not None
        block_h, block_d = 8, triton.next_power_of_2(D // 2)
        norm_rotate_kernel[(N, triton.cdiv(H + (1 + paged) * self.num_kv_heads, block_h))](
            qkv, q, k, v, self.positions, slot_mapping, self.cos, self.sin, self.q_weight, self.k_weight, self.eps,
            H, self.num_kv_heads, D, self.q_weight is not None, paged, BLOCK_H=block_h, BLOCK_D=block_d,
            num_warps=min(max(block_h * block_d // 256, 1), 4),
        )  # fmt: skip


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, `[N, intermediate_size]`, of `gate_up[N, 2 * intermediate_size]`: gate first, then up."""
    N, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(N, size, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(size))
    silu_mul_kernel[(N, triton.cdiv(size, block))](gate_up, out, size, block, num_warps=max(block // 256, 1))
    return out

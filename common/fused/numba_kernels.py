"""The kernels of fused/ for the CPU, compiled by numba: one loop over the tokens each, which threads share. Those of
few_tokens.py have loops over the threads' shares of weights, too.

A row's result depends neither on what the others hold nor on the number of threads. With weights of 8 and 4 bits and
bfloat16 it depends on the number of rows. Sums are float32, and bfloat16 is rounded where a number is stored.

Tensors are contiguous. Compiling takes a few seconds, once on a machine (kept_kernels.py).
"""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import SimpleNamespace

import numpy
import torch
from numba import njit, prange
from torch import Tensor, nn

from .blocks import behind_sums, finish, product, unpack
from .codes import RECORD, finish_codes
from .numba_basics import FAST, TorchThreads, address, array, exp, f4, kernel, narrow, use_threads, widen
from .rotation import HeadRotation

THREADS = TorchThreads()


@njit(fastmath=FAST, error_model="numpy")
def add_row(x, total):
    """total += x"""
    for i in range(len(x)):
        total[i] = narrow(widen(total[i]) + widen(x[i]), x[i])


@njit(fastmath=FAST, error_model="numpy")
def norm_scale(x, eps):
    """Return the factor of x in the root mean square norm, without the weight."""
    squares = f4(0)
    for i in range(len(x)):
        squares += widen(x[i]) * widen(x[i])
    return f4(1) / numpy.sqrt(squares / f4(len(x)) + eps)


@njit(fastmath=FAST, error_model="numpy")
def norm_row(x, weight, out, eps):
    scale = norm_scale(x, eps)
    for i in range(len(x)):
        out[i] = narrow(widen(x[i]) * scale * widen(weight[i]), x[i])


@njit(fastmath=FAST, error_model="numpy")
def rotate_row(heads, weight, cos, sin, eps, normed):
    """Norm heads[heads, D] with weight[D], and rotate them, in place."""
    half = heads.shape[1] // 2
    for head in range(len(heads)):
        first, second = heads[head, :half], heads[head, half:]
        scale = norm_scale(heads[head], eps) if normed else f4(1)
        # Dimension i turns with i + D/2. The second half of `sin` lacks the sign that `rotate` needs there.
        for i in range(half):
            a, b = widen(first[i]) * scale, widen(second[i]) * scale
            if normed:
                a, b = a * widen(weight[i]), b * widen(weight[half + i])
            first[i] = narrow(a * cos[half + i] - b * sin[half + i], first[i])
            second[i] = narrow(b * cos[half + i] + a * sin[half + i], second[i])


@njit(fastmath=FAST, error_model="numpy")
def rotate_token(qkv, position, cos_at, sin_at, q_weight_at, k_weight_at, eps, H, H_kv, number):
    """qkv[H + 2 * H_kv, D] of a token, in place. q_weight_at: 0 where heads have no norm."""
    D, many = qkv.shape[1], 1 << 40  # `check_positions` knows how many positions there are
    cos, sin = array(cos_at, (many, D), f4)[position], array(sin_at, (many, D), f4)[position]
    rotate_row(qkv[:H], array(q_weight_at, D, number), cos, sin, eps, q_weight_at)
    rotate_row(qkv[H : H + H_kv], array(k_weight_at, D, number), cos, sin, eps, q_weight_at)


@njit(fastmath=FAST, error_model="numpy")
def silu_mul_row(gate, up, out):
    for i in range(len(out)):
        x = widen(gate[i])
        out[i] = narrow(x / (f4(1) + exp(-x)) * widen(up[i]), gate[i])


@njit
def factors(rows, size):
    """Return memory for rows as `product` takes them: numbers in float32, filled up to groups of 32; then the sum of
    each group and the numbers in bfloat16, or a record of each group in 8 bits (codes.py). What is in bfloat16 begins
    where a line of the caches does, for tiles."""
    groups = (size + 31) // 32
    width = behind_sums(groups) // 4 + 16 * (groups + (RECORD // 4 * groups + 15) // 16)
    memory = numpy.empty(rows * width + 16, f4)
    start = -(memory.ctypes.data // 4) % 16
    return memory[start : start + rows * width].reshape(rows, width)


@njit
def finish_group(line, group, groups, in_codes):
    """Write for a group of a row of `factors` its sum and its numbers in bfloat16, or its numbers in 8 bits."""
    at = line.ctypes.data
    halves = at + behind_sums(groups)
    if in_codes:
        finish_codes(at + 128 * group, halves + 64 * groups + RECORD * group)
    else:
        finish(at + 128 * group, at + 4 * (32 * groups + group), halves + 64 * group)


@njit(fastmath=FAST, error_model="numpy")
def widen_row(x, out, in_codes):
    """Write x to a row of `factors`."""
    groups = (len(x) + 31) // 32
    for i in range(len(x)):
        out[i] = widen(x[i])
    out[len(x) : 32 * groups] = 0
    for group in range(groups):
        finish_group(out, group, groups, in_codes)


@njit(fastmath=FAST, error_model="numpy")
def norm_row_wide(x, weight, out, eps, in_codes):
    """Write the norm of x to a row of `factors`."""
    result = numpy.empty_like(x)
    norm_row(x, weight, result, eps)
    widen_row(result, out, in_codes)


@njit(fastmath=FAST, error_model="numpy")
def gate_row(gate, up, out):
    """out = silu(gate) * up, filled up with zeros."""
    for i in range(len(gate)):
        out[i] = up[i] * (gate[i] / (f4(1) + exp(-gate[i])))
    out[len(gate) :] = 0


@njit
def share(units, thread, threads):
    """Return the first unit of a thread and the first that is not its own."""
    return units * thread // threads, units * (thread + 1) // threads


@njit(fastmath=FAST, error_model="numpy")
def outputs(x, ins, place, bias, units, sums, out, biased):
    """out[rows, 32 * first : 32 * last] = x times units of a weight, plus the bias if there is one."""
    product(x, ins, place, units, sums)
    first, last = 32 * units[0], min(32 * units[1], out.shape[1])
    for row in range(len(x)):
        result, total, addend = out[row, first:last], sums[row, first:last], bias[first:last]
        for i in range(len(result)):
            result[i] = narrow(total[i] + (widen(addend[i]) if biased else f4(0)), result[i])


@lru_cache
def compiled(dtype: torch.dtype) -> SimpleNamespace:
    """Return the kernels for float32 or bfloat16. Tensors are passed by address (i8)."""
    number = numpy.float32 if dtype == torch.float32 else numpy.uint16

    @kernel("void(i8, i8, i8, i8, i8, i8, f4)")
    def add_norm(x_at, residual_at, weight_at, out_at, rows, size, eps):
        """x_at: 0 where there is nothing to add."""
        x, residual = array(x_at, (rows, size), number), array(residual_at, (rows, size), number)
        weight, out = array(weight_at, size, number), array(out_at, (rows, size), number)
        for row in prange(rows):
            if x_at:
                add_row(x[row], residual[row])
            norm_row(residual[row], weight, out[row], eps)

    @kernel("void(i8, i8, i8, i8, i8, i8, f4, i8, i8, i8, i8)")
    def norm_rotate(qkv_at, positions_at, cos_at, sin_at, q_weight_at, k_weight_at, eps, rows, H, H_kv, D):
        """q and k in qkv[rows, H + 2 * H_kv, D], in place."""
        qkv, positions = array(qkv_at, (rows, H + 2 * H_kv, D), number), array(positions_at, rows, numpy.int64)
        for row in prange(rows):
            rotate_token(qkv[row], positions[row], cos_at, sin_at, q_weight_at, k_weight_at, eps, H, H_kv, number)

    @kernel("void(i8, i8, i8, i8)")
    def silu_mul(gate_up_at, out_at, rows, size):
        gate_up, out = array(gate_up_at, (rows, 2 * size), number), array(out_at, (rows, size), number)
        for row in prange(rows):
            silu_mul_row(gate_up[row, :size], gate_up[row, size:], out[row])

    @kernel("void(i8, i8, i8, i8, i8, i8, i8, i8, f4, i8, i8, i8, i8, i8, f4, i8, i8, i8, i8)")
    def heads(
        x_at, residual_at, norm_at, weight_at, bias_at, out_at, rows, size, eps,
        positions_at, cos_at, sin_at, q_weight_at, k_weight_at, head_eps, H, H_kv, D, threads,
    ):  # fmt: skip
        """out[rows, H + 2 * H_kv, D] = the norm of residual += x [rows, size], times a weight, with q and k
        normed and rotated; 0: no x, no bias, no norm of heads."""
        outs = (H + 2 * H_kv) * D
        x, residual = array(x_at, (rows, size), number), array(residual_at, (rows, size), number)
        place, bias, norm = array(weight_at, 5, numpy.int64), array(bias_at, outs, number), array(norm_at, size, number)
        out, units = array(out_at, (rows, outs), number), (outs + 31) // 32
        sums, inputs = numpy.empty((rows, 32 * units), f4), factors(rows, size)
        for row in prange(rows):
            if x_at:
                add_row(x[row], residual[row])
            norm_row_wide(residual[row], norm, inputs[row], eps, place[4] >= rows)
        for thread in prange(threads):
            outputs(inputs, size, place, bias, share(units, thread, threads), sums, out, bias_at)
        qkv, positions = array(out_at, (rows, H + 2 * H_kv, D), number), array(positions_at, rows, numpy.int64)
        for row in prange(rows):
            rotate_token(qkv[row], positions[row], cos_at, sin_at, q_weight_at, k_weight_at, head_eps, H, H_kv, number)

    @kernel("void(i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, f4, i8)")
    def output_mlp(
        x_at, residual_at, output_at, bias_at, norm_at, gate_up_at, down_at, out_at, rows, wide, size, inner, eps,
        threads,
    ):  # fmt: skip
        """residual[rows, size] += x[rows, wide] times the weight `output`; out = the MLP of its norm."""
        x, residual = array(x_at, (rows, wide), number), array(residual_at, (rows, size), number)
        norm, out = array(norm_at, size, number), array(out_at, (rows, size), number)
        units, units_inner = (size + 31) // 32, (2 * inner + 31) // 32
        sums, gate_up = numpy.empty((rows, 32 * units), f4), numpy.empty((rows, 32 * units_inner), f4)
        inputs, bias = factors(rows, wide), array(bias_at, size, number)
        output, down = array(output_at, 5, numpy.int64), array(down_at, 5, numpy.int64)
        for row in prange(rows):
            widen_row(x[row], inputs[row], output[4] >= rows)
        for thread in prange(threads):
            outputs(inputs, wide, output, bias, share(units, thread, threads), sums, out, bias_at)
        normed, place = factors(rows, size), array(gate_up_at, 5, numpy.int64)
        for row in prange(rows):
            add_row(out[row], residual[row])
            norm_row_wide(residual[row], norm, normed[row], eps, place[4] >= rows)
        for thread in prange(threads):
            product(normed, size, place, share(units_inner, thread, threads), gate_up)
        gated, groups = factors(rows, inner), (inner + 31) // 32
        for group in prange(groups):
            first, last = 32 * group, min(32 * group + 32, inner)
            for row in range(rows):
                gate, up = gate_up[row, first:last], gate_up[row, inner + first : inner + last]
                gate_row(gate, up, gated[row, first : first + 32])
                finish_group(gated[row], group, groups, down[4] >= rows)
        for thread in prange(threads):
            outputs(gated, inner, down, bias, share(units, thread, threads), sums, out, 0)

    @kernel("void(i8, i8, i8, i8, i8, i8, i8)")
    def scores(x_at, weight_at, out_at, rows, size, outs, threads):
        """out[rows, 32 * units of outs], float32, = x[rows, size] times weight[outs, size]."""
        units = (outs + 31) // 32
        x, place = array(x_at, (rows, size), number), array(weight_at, 5, numpy.int64)
        inputs, out = factors(rows, size), array(out_at, (rows, 32 * units), f4)
        for row in prange(rows):
            widen_row(x[row], inputs[row], place[4] >= rows)
        for thread in prange(threads):
            product(inputs, size, place, share(units, thread, threads), out)

    @kernel("void(i8, i8, i8, i8, i8)")
    def unpacked(bits, place_at, to_at, ins, outs):
        place, to, like = array(place_at, 4, numpy.int64), array(to_at, 4, numpy.int64), array(to_at, 1, number)
        for unit in prange((outs + 31) // 32):
            unpack(bits, place, to, ins, unit, like)

    return SimpleNamespace(
        add_norm=add_norm,
        norm_rotate=norm_rotate,
        silu_mul=silu_mul,
        heads=heads,
        output_mlp=output_mlp,
        scores=scores,
        unpacked=unpacked,
    )


def on_device(residual: Tensor, few: bool) -> AbstractContextManager:
    """Choose how many threads this step uses. few: its products are in the kernels (few_tokens.py)."""
    THREADS.adapt()
    rows, size = residual.shape
    THREADS.count = use_threads(size * size if few else rows * size)
    return nullcontext()


def apply_linear(linear: nn.Module, x: Tensor) -> Tensor:
    """Return linear(x): few tokens have kernels of their own (few_tokens.py)."""
    return linear(x)


def add_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x to the residual, in place, and return the root mean square norm of the sum: all `[N, hidden_size]`.

    x: what the layer before has computed, None before the first.
    """
    out, x_at = torch.empty_like(residual), address(x)
    compiled(out.dtype).add_norm(x_at, residual.data_ptr(), weight.data_ptr(), out.data_ptr(), *residual.shape, eps)
    return out


class Rotation(HeadRotation):
    """The rotation by numba's kernel."""

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `HeadRotation`; the product is changed in place."""
        compiled(qkv.dtype).norm_rotate(
            qkv.data_ptr(), self.positions.data_ptr(), self.cos.data_ptr(), self.sin.data_ptr(),
            address(self.q_weight), address(self.k_weight), self.eps,
            len(qkv), self.num_heads, self.num_kv_heads, self.cos.shape[1],
        )  # fmt: skip
        return self.split(qkv)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, `[N, intermediate_size]`, of `gate_up[N, 2 * intermediate_size]`: gate first, then up."""
    rows, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype)
    compiled(out.dtype).silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, size)
    return out

"""The narrow products of adapters (../lora.py) on a CPU: one call adds to each row of a layer what its adapter gives.

With few rows for each adapter, a library spends more time on calls than on arithmetic. Here a tile, some rows with the
same adapter, is multiplied with A row by row of A, and each of the sums with a row of B. The caches keep these rows
meanwhile.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy
import torch
from numba import njit, prange
from torch import Tensor

from .numba_basics import FAST, array, f4, kernel, narrow, widen

TILE = 8  # rows, at most
COUNTS = (1,)  # numbers of tiles: each is compiled differently


@njit(fastmath=FAST, error_model="numpy")
def dot(x, weights):
    total = f4(0)
    for i in range(len(x)):
        total += x[i] * weights[i]
    return total


@njit(fastmath=FAST, error_model="numpy")
def add_scaled(scale, weights, total):
    for i in range(len(total)):
        total[i] += scale * weights[i]


@njit(fastmath=FAST, error_model="numpy")
def widen_row(x, out):
    for i in range(len(x)):
        out[i] = widen(x[i])


@njit(fastmath=FAST, error_model="numpy")
def add_narrowed(change, y):
    for i in range(len(y)):
        y[i] = narrow(widen(y[i]) + change[i], y[i])


@njit(fastmath=FAST, error_model="numpy")
def adapt_tile(x, y, rows, lora_a, lora_b, spans):
    """Add to the rows of y[N, out] what an adapter, lora_a[r, in] and lora_b[r, out], makes of those of x[N, in].

    Row j of lora_b has numbers from spans[j, 0] to spans[j, 1] alone: those of one module of several in a matrix.
    Rows beyond a smaller rank have none.
    """
    count, ins, outs = len(rows), x.shape[1], y.shape[1]
    wide, change = numpy.empty((count, ins), f4), numpy.zeros((count, outs), f4)
    a, b = numpy.empty(ins, f4), numpy.empty(outs, f4)
    for i in range(count):
        widen_row(x[rows[i]], wide[i])
    for j in range(len(lora_a)):
        first, last = spans[j, 0], spans[j, 1]
        if first < last:
            widen_row(lora_a[j], a)
            widen_row(lora_b[j, first:last], b)
            for i in range(count):
                add_scaled(dot(wide[i], a), b, change[i, first:last])
    for i in range(count):
        add_narrowed(change[i], y[rows[i]])


@lru_cache
def compiled(dtype: torch.dtype) -> Callable[..., None]:
    """Return the kernel for tensors of this type, float32 or bfloat16, which it takes by address."""
    number, nbytes = (numpy.float32, 4) if dtype == torch.float32 else (numpy.uint16, 2)

    @kernel("void(i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8)")
    def adapt(x_at, y_at, a_at, b_at, spans_at, order_at, tiles_at, tiles, N, ins, rank, outs):
        """Add to y[N, outs] what adapters make of x[N, ins].

        tiles[tiles, 3]: for each, where its rows begin and end in `order`, and the number of its adapter. Of every
        adapter there are lora_a[rank, ins], lora_b[rank, outs] and spans[rank, 2].
        """
        x, y = array(x_at, (N, ins), number), array(y_at, (N, outs), number)
        order, bounds = array(order_at, N, numpy.int64), array(tiles_at, (tiles, 3), numpy.int64)
        for tile in prange(tiles):
            rows, adapter = order[bounds[tile, 0] : bounds[tile, 1]], bounds[tile, 2]
            lora_a = array(a_at + adapter * rank * ins * nbytes, (rank, ins), number)
            lora_b = array(b_at + adapter * rank * outs * nbytes, (rank, outs), number)
            adapt_tile(x, y, rows, lora_a, lora_b, array(spans_at + adapter * rank * 16, (rank, 2), numpy.int64))

    return adapt


def add_lora(x: Tensor, y: Tensor, lora_a: Tensor, lora_b: Tensor, spans: Tensor, order: Tensor, tiles: Tensor) -> None:
    """Add to rows of `y[N, out]`, in place, what adapters make of those of `x[N, in]`; both are contiguous.

    order: these rows, sorted by adapter. tiles: up to TILE of them with one adapter, `[tiles, 3]`: where they begin and
    end in `order`, and its number. lora_a, lora_b and spans: what `lora.stacked` returns.
    """
    at = (tensor.data_ptr() for tensor in (x, y, lora_a, lora_b, spans, order, tiles))
    compiled(y.dtype)(*at, len(tiles), len(x), lora_a.shape[2], lora_a.shape[1], lora_b.shape[2])

"""K and V in 8 bits: D whole numbers from -127 to 127 for each token and K/V head, and one scale behind them.

The scale makes the largest of the D numbers 127, so no number changes by more than half a scale. It is a float32 in
the row itself, `[..., D + 4]` int8: a page stays one piece of memory, which is allocated, shared and sent as before.
Rows are rounded when they are written, and never again, so an answer does not depend on how its prompt was cut into
chunks.

The kernels of this package do the same in registers: only the `torch` backend ever widens a page in memory.
vLLM has this layout as `int8_per_token_head`.
"""

import torch
from torch import Tensor

from ..model import SCALE_BYTES

MAX_CODE = 127
SMALLEST = 1e-30  # A row's largest number counts as at least this: a row of zeros is divided by its scale, too.


def quantize(x: Tensor) -> Tensor:
    """Return rows `[..., D]` of any float type as int8 `[..., D + 4]`. One with an infinity or NaN becomes all NaN."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST) / MAX_CODE
    return torch.cat([(x / scale).round().to(torch.int8), scale.view(torch.int8)], dim=-1)


def dequantize(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers that int8 `[..., D + 4]` stands for, `[..., D]`."""
    numbers, scale = rows.split([rows.shape[-1] - SCALE_BYTES, SCALE_BYTES], dim=-1)
    return (numbers * scale.contiguous().view(torch.float32)).to(dtype)

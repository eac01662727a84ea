"""Few tokens on a CPU: two compiled calls for each block, one before attention and one after it, products included,
and one for the logits.

With one token a product of a small model takes ten microseconds, and the call of a library, from Python through
PyTorch, takes as long: a decode step of the bundled model took three times as long as reading its weights does. Here
each weight is read once, block by block, and multiplied with all tokens; what lies between the products happens on the
way. From a dozen tokens on, or with tiles (tiles.py) from some dozens, a library does the arithmetic better: it keeps
parts of more rows in registers.
"""

import time
from bisect import bisect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..model import Attend, Block, Transformer
from .blocks import HEADER, multiplier, multiply_rows
from .codes import HAS_CODES, multiply_codes
from .numba_basics import address
from .numba_kernels import THREADS, compiled
from .packed import Blocks, PackedLinear, padded
from .quantized import QuantizedLinear
from .rotation import heads_of
from .tiles import INPUTS, MIN_ROWS_QUANTIZED, has_tiles, multiply_tiles

ROWS = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)  # numbers of rows that may be measured
MANY = 2**30  # rows
MEASURED, TIMES = 2**26, 4  # weights; passes
_most: dict[tuple, int] = {}  # what was measured in this process


class FewTokens:
    """One block of the model with these kernels.

    What a step needs is found once, here: to ask modules and tensors for it takes as long as a kernel.
    """

    def __init__(self, block: Block):
        attention, mlp = block.attention, block.mlp
        dtype = block.mlp_norm.weight.dtype
        qkv, output, gate_up, down = (place_of(linear, dtype) for linear in products(block))
        self.most_in_codes = int(qkv[4])
        # Kept, since the kernels only have their addresses.
        self.first = block.attention_norm.weight, qkv, attention.qkv.bias
        self.second = output, attention.output.bias, block.mlp_norm.weight, gate_up, down
        self.first_at, self.second_at = tuple(map(address, self.first)), tuple(map(address, self.second))
        self.q_weight, self.k_weight, head_eps, H, H_kv = heads_of(attention)
        self.heads_at = address(self.q_weight), address(self.k_weight), head_eps, H, H_kv, attention.head_dim
        self.heads = H, H_kv, H_kv
        self.count, self.head_dim, self.heads_size = H + 2 * H_kv, attention.head_dim, attention.output.in_features
        self.inner, self.eps = mlp.down.in_features, block.mlp_norm.eps
        self.kernels, self.layer = compiled(dtype), attention.layer

    def __call__(
        self, x: Tensor | None, residual: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        """As `fused_block`."""
        q, k, v = self.before(x, residual, positions, cos, sin)
        return self.after(attend(self.layer, q, k, v), residual)

    def before(self, x: Tensor | None, residual: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple:
        """Add x to the residual, in place; return q `[N, H, D]`, k and v `[N, H_kv, D]` of its norm, rotated."""
        rows, size = residual.shape
        out = torch.empty(rows, self.count, self.head_dim, dtype=residual.dtype)
        self.kernels.heads(
            address(x), residual.data_ptr(), *self.first_at, out.data_ptr(), rows, size, self.eps,
            positions.data_ptr(), cos.data_ptr(), sin.data_ptr(), *self.heads_at, THREADS.count,
        )  # fmt: skip
        return out.split_with_sizes(self.heads, 1)

    def after(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Add the output of `attended[N, H, D]` to the residual, in place; return the MLP's, `[N, hidden_size]`."""
        (rows, size), out, attended = residual.shape, torch.empty_like(residual), attended.contiguous()
        at = attended.data_ptr(), residual.data_ptr(), *self.second_at, out.data_ptr()
        self.kernels.output_mlp(*at, rows, self.heads_size, size, self.inner, self.eps, THREADS.count)
        return out


class FewScores:
    """The output layer's kernel."""

    def __init__(self, head: nn.Module, dtype: torch.dtype):
        self.place, self.outs, self.scores = place_of(head, dtype), head.out_features, compiled(dtype).scores
        self.at = address(self.place)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits of `hidden[N, hidden_size]`, `[N, V]`; in float32 also for bfloat16."""
        rows, size = hidden.shape
        hidden, out = hidden.contiguous(), torch.empty(rows, -(-self.outs // 32) * 32)
        self.scores(hidden.data_ptr(), self.at, out.data_ptr(), rows, size, self.outs, THREADS.count)
        return out[:, : self.outs].contiguous()


def place_of(linear: nn.Module, dtype: torch.dtype) -> Tensor | None:
    """Return what kernels need of a weight, int64 `[5]`: its address, the bytes of a block and of a step, the address
    of the compiled product, and up to how many rows are rounded to 8 bits first. None if it is not in blocks, or split
    over ranks.

    dtype: of the rows.
    """
    blocks = blocks_of(linear)
    if blocks is None:
        return None
    multiply, most_in_codes = multiply_rows, 0
    if dtype == torch.bfloat16:
        fits = linear.in_features % INPUTS == 0 and has_tiles()
        if HEADER[blocks.form] and HAS_CODES:
            multiply, most_in_codes = multiply_codes, MIN_ROWS_QUANTIZED - 1 if fits else MANY
        multiply = multiply_tiles if fits else multiply
    return torch.cat([blocks.place, torch.tensor([multiplier(blocks.form, multiply), most_in_codes])])


def blocks_of(linear: nn.Module) -> Blocks | None:
    return linear.blocks if type(linear) in (nn.Linear, PackedLinear, QuantizedLinear) else None


def products(block: Block) -> tuple[nn.Module, ...]:
    return block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down


def few_tokens(model: Transformer) -> list[FewTokens | None]:
    """Return the kernels of each block of a model whose products are packed; None where there are none."""
    return [FewTokens(block) if all(map(blocks_of, products(block))) else None for block in model.blocks]


def few_scores(model: Transformer) -> FewScores | None:
    """Return the kernel of the output layer; None where there is none."""
    return FewScores(model.head, model.norm.weight.dtype) if blocks_of(model.head) else None


@torch.inference_mode()
def most_few(model: Transformer, fused_block: Callable[..., Tensor]) -> int:
    """Return for how many tokens at most these kernels are no slower than the library's, `fused_block`; 0 for none.

    Measured with as many blocks as no cache holds, or all; each side's fastest pass counts. Found by bisection: where
    the library is faster for some rows, it is for more.
    """
    pairs = list(zip(model.blocks, model.few, strict=True))
    first = products(pairs[0][0])
    weights = sum(linear.in_features * linear.out_features for linear in first)
    pairs = pairs[: max(1, MEASURED // weights)]
    forms = [linear.blocks.form for linear in first]
    key = weights, len(pairs), *forms, model.norm.weight.dtype, torch.get_num_threads()

    def seconds(rows: int, has_few: bool) -> float:
        residual = torch.zeros(rows, model.config.hidden_size, dtype=model.norm.weight.dtype)
        step = residual, torch.zeros(rows, dtype=torch.int64), model.cos, model.sin, lambda layer, q, k, v: q
        start, x = time.thread_time(), None
        with model.kernels.on_device(residual, has_few):
            for block, few in pairs:
                x = few(x, *step) if has_few else fused_block(model.kernels, block, x, *step)
        return time.thread_time() - start

    def is_slower(rows: int) -> bool:
        padded_rows = padded(rows) if model.pads else rows
        times = [(seconds(rows, True), seconds(padded_rows, False)) for _ in range(1 + TIMES)]
        ours, theirs = map(min, zip(*times[1:], strict=True))  # The first pass also loads kernels.
        return ours > theirs

    if key not in _most:
        _most[key] = (0, *ROWS)[bisect(ROWS, False, key=is_slower)]
    return _most[key]

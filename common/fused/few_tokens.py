"""Few tokens on a CPU: two compiled calls for each block, one before attention and one behind it, products included,
and one for the logits.

With one token a product of a small model takes ten microseconds, and the call of a library, from Python through
PyTorch, takes as long: a decode step of the bundled model took three times as long as reading its weights does. Here
each weight is read once, row by row, and multiplied with all tokens; what lies between the products happens on the way.
From a dozen tokens on, a library does the arithmetic better: it keeps parts of more rows in registers.
"""

import torch
from torch import Tensor, nn

from ..model import Attend, Block, Transformer
from .numba_basics import address
from .numba_kernels import compiled
from .rotation import heads_of

# Of all blocks' matrices: products of larger ones take longer than their calls, and packed ones would be there twice.
MOST_BYTES = 2**26


class FewTokens:
    """One block with these kernels, which read weights row by row.

    What a step needs is found once, here: to ask modules and tensors for it takes as long as a kernel.
    """

    def __init__(self, block: Block):
        attention, mlp = block.attention, block.mlp
        # Kept beside their addresses: packed products drop the weights.
        self.first = block.attention_norm.weight, attention.qkv.weight, attention.qkv.bias
        self.second = (
            attention.output.weight, attention.output.bias, block.mlp_norm.weight, mlp.gate_up.weight, mlp.down.weight,
        )  # fmt: skip
        self.first_at, self.second_at = tuple(map(address, self.first)), tuple(map(address, self.second))
        self.q_weight, self.k_weight, head_eps, H, H_kv = heads_of(attention)
        self.heads_at = address(self.q_weight), address(self.k_weight), head_eps, H, H_kv, attention.head_dim
        self.heads = H, H_kv, H_kv
        self.count, self.head_dim, self.heads_size = H + 2 * H_kv, attention.head_dim, attention.output.in_features
        self.inner, self.eps = mlp.down.in_features, block.mlp_norm.eps
        self.kernels, self.layer = compiled(mlp.down.weight.dtype), attention.layer

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
            positions.data_ptr(), cos.data_ptr(), sin.data_ptr(), *self.heads_at,
        )  # fmt: skip
        return out.split_with_sizes(self.heads, 1)

    def after(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Add the output of `attended[N, H, D]` to the residual, in place; return the MLP's, `[N, hidden_size]`."""
        (rows, size), out, attended = residual.shape, torch.empty_like(residual), attended.contiguous()
        at = attended.data_ptr(), residual.data_ptr(), *self.second_at, out.data_ptr()
        self.kernels.output_mlp(*at, rows, self.heads_size, size, self.inner, self.eps)
        return out


class FewScores:
    """The output layer's kernel."""

    def __init__(self, head: nn.Linear):
        self.weight, self.at = head.weight, address(head.weight)
        self.scores = compiled(head.weight.dtype).scores

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits of `hidden[N, hidden_size]`, `[N, V]`; in float32 also for bfloat16."""
        (vocabulary, size), rows = self.weight.shape, len(hidden)
        hidden, out = hidden.contiguous(), torch.empty(rows, vocabulary)
        self.scores(hidden.data_ptr(), self.at, out.data_ptr(), rows, size, vocabulary)
        return out


def few_tokens(model: Transformer) -> list[FewTokens | None]:
    """Return the kernels of each block; None where there are none, as for blocks that ranks share, or large ones."""
    linears = [linear for linear in model.blocks.modules() if isinstance(linear, nn.Linear)]
    small = sum(linear.weight.nbytes for linear in linears) <= MOST_BYTES
    whole = all(type(linear) is nn.Linear for linear in linears)
    return [FewTokens(block) if small and whole else None for block in model.blocks]


def few_scores(model: Transformer) -> FewScores | None:
    """Return the kernel of the output layer; None where ranks share it, or where it is large."""
    return FewScores(model.head) if type(model.head) is nn.Linear and model.head.weight.nbytes <= MOST_BYTES else None

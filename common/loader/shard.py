"""Cut a model into shards: every rank has a part of each matrix (Megatron-LM; Shoeybi et al., 2019).

Two matrices in a row are cut so that no communication is needed between them. The first is cut by its outputs: each
rank computes some of the heads, with their K and V, or some of the MLP's intermediate values. The second is cut by its
inputs, and the rank has exactly these; the result is a sum over all ranks. So ranks communicate twice in a layer, after
attention and after the MLP:

    qkv, gate_up             some rows of Q, of K, of V, of gate, of up
    attention.output, down   some columns                     all_reduce of [N, hidden_size]
    head                     some rows of the vocabulary      all_gather to [R, V]
    embedding, norms         everything

After an all_gather all ranks have the same bits, so that every rank samples the same token by itself.

common/model.py does not know of ranks: a shard is a `Transformer` with fewer heads, and with other modules where ranks
communicate. Production engines do the same, and add: all_reduce as one kernel over NVLink's shared memory, norms of a
part of the tokens on each rank (sequence parallelism), copies of K/V heads if there are fewer of them than ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InvalidInput
from ..model import ModelConfig, Transformer


@dataclass(frozen=True)
class Shard:
    """The part of a model that `rank`, from 0 to `ranks` - 1, has. With one rank, it is the whole model."""

    rank: int = 0
    ranks: int = 1

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Return the config of this part; the vocabulary stays whole. Raise InvalidInput if a size does not divide."""
        sizes = {name: getattr(whole, name) for name in ("num_heads", "num_kv_heads", "intermediate_size")}
        for name, size in sizes.items():
            if size % self.ranks:
                raise InvalidInput(f"{self.ranks} ranks cannot share this model: its {name} is {size}, give a divisor")
        return replace(whole, **{name: size // self.ranks for name, size in sizes.items()})

    def build(self, whole: ModelConfig) -> Transformer:
        """Build a model with this part of every matrix, uninitialised. All ranks must run it at the same time."""
        model = Transformer(self.config(whole))
        if self.ranks > 1:
            for block in model.blocks:
                block.attention.output = RowParallelLinear.like(block.attention.output)
                block.mlp.down = RowParallelLinear.like(block.mlp.down)
            model.head = VocabularyParallelHead(model, self)
        return model

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return a view of this rank's part of a whole matrix or vector that belongs into the parameter `name`."""
        dimension = split_dimension(name)
        return tensor if dimension is None else tensor.narrow(dimension, *self.span(tensor.shape[dimension]))

    def span(self, size: int) -> tuple[int, int]:
        """Return (start, count) of this rank's part of `size` rows or columns; the last ranks may have fewer."""
        each = -(-size // self.ranks)
        start = min(self.rank * each, size)
        return start, min(each, size - start)

    def part_of_pieces(self, name: str, whole: Tensor, pieces: Sequence[slice]) -> Tensor:
        """Return this rank's part of a whole parameter that stacks several matrices, such as Q, K and V.

        pieces: the rows of each matrix in this rank's parameter; in the whole, each has `ranks` times as many.
        """
        places = [slice(rows.start * self.ranks, rows.stop * self.ranks) if rows.stop else rows for rows in pieces]
        return torch.cat([self.part(name, whole[rows]) for rows in places])

    def whole_shape(self, name: str, shape: torch.Size, config: ModelConfig) -> torch.Size:
        """Return the whole's shape for a part in the parameter `name` that has this shape."""
        dimension = split_dimension(name)
        if dimension is None:
            return shape
        sizes = list(shape)
        sizes[dimension] = config.vocab_size if name == "head.weight" else sizes[dimension] * self.ranks
        return torch.Size(sizes)

    def min_over_ranks(self, number: int, device: torch.device) -> int:
        """Return the smallest of the numbers with which all ranks call this."""
        if self.ranks == 1:
            return number
        numbers = torch.tensor(number, device=device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers)


WHOLE = Shard()


def split_dimension(name: str) -> int | None:
    """Return the dimension along which a parameter of `Transformer` is cut; None if every rank has all of it."""
    if name == "head.weight" or ".qkv." in name or ".gate_up." in name:
        return 0
    return 1 if name.endswith(("attention.output.weight", "mlp.down.weight")) else None


class RowParallelLinear(nn.Linear):
    """Multiply this rank's part of the input, and add up the products of all ranks."""

    @classmethod
    def like(cls, linear: nn.Linear) -> "RowParallelLinear":
        return cls(linear.in_features, linear.out_features, bias=linear.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.weight)  # [N, hidden_size]
        dist.all_reduce(product)
        return product if self.bias is None else product + self.bias  # after the sum: the bias counts once


class VocabularyParallelHead(nn.Module):
    """Score this rank's part of the vocabulary, and gather the scores of all ranks."""

    def __init__(self, model: Transformer, shard: Shard):
        super().__init__()
        self.ranks, self.vocab_size = shard.ranks, model.config.vocab_size
        start, size = shard.span(self.vocab_size)
        self.rows = slice(start, start + size)
        self.weight = model.embedding.weight  # tied: every rank has all of it for the embedding
        if not model.config.tie_embeddings:
            self.rows = slice(None)
            self.weight = nn.Parameter(torch.empty(size, model.config.hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `[R, V]` for `hidden[R, hidden_size]`."""
        if not len(hidden):
            return hidden.new_empty(0, self.vocab_size)
        scores = F.linear(hidden, self.weight[self.rows])  # [R, rows], on the last ranks perhaps fewer
        scores = F.pad(scores, (0, -(-self.vocab_size // self.ranks) - scores.shape[-1]))
        parts = [torch.empty_like(scores) for _ in range(self.ranks)]
        dist.all_gather(parts, scores)
        return torch.cat(parts, dim=-1)[:, : self.vocab_size]

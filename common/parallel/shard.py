"""Tensor parallelism: every process has a part of each of a model's matrices (Megatron-LM; Shoeybi et al., 2019).

Two matrices that follow one another are cut so that nothing has to be said in between. The first is cut by its results:
each rank computes some of the heads, with their K and V, or some of the MLP's intermediate numbers. The second is cut
by its inputs, of which the rank has just these; its result is a sum over all ranks. So ranks meet twice in a layer,
behind attention and behind the MLP:

    qkv, gate_up             some rows of Q, of K, of V, of gate, of up
    attention.output, down   some columns                     all_reduce of [N, hidden_size]
    head                     some rows of the vocabulary      all_gather to [R, V]
    embedding, norms         everything

Behind an all_gather everybody has the same bits, so that every rank samples the same token by itself.

common/model.py does not know of this: a shard is a `Transformer` of fewer heads, with other modules where ranks meet.
Production engines do the same, and add to it: all_reduce as one kernel over NVLink's shared memory, norms of a part of
the tokens on each rank (sequence parallelism), K/V heads that are copied where there are fewer of them than ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..model import ModelConfig, Transformer


@dataclass(frozen=True)
class Shard:
    """Which part of a model: that of `rank`, from 0 to `ranks` - 1. If `ranks` is 1, it is the whole."""

    rank: int = 0
    ranks: int = 1

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The sizes of the part; the vocabulary stays that of the whole. ValueError if a size does not divide."""
        sizes = {name: getattr(whole, name) for name in ("num_heads", "num_kv_heads", "intermediate_size")}
        for name, size in sizes.items():
            if size % self.ranks:
                raise ValueError(f"{self.ranks} ranks cannot share this model, whose {name} is {size}: give a divisor")
        return replace(whole, **{name: size // self.ranks for name, size in sizes.items()})

    def build(self, whole: ModelConfig) -> Transformer:
        """A model of this part of every matrix, uninitialised. All ranks have to run it at the same time."""
        model = Transformer(self.config(whole))
        if self.ranks > 1:
            for block in model.blocks:
                block.attention.output = RowParallelLinear.like(block.attention.output)
                block.mlp.down = RowParallelLinear.like(block.mlp.down)
            model.head = VocabularyParallelHead(model, self)
        return model

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """A view: what this rank has of a whole matrix or vector that lies in the parameter `name`."""
        dimension = split_dimension(name)
        return tensor if dimension is None else tensor.narrow(dimension, *self.span(tensor.shape[dimension]))

    def span(self, size: int) -> tuple[int, int]:
        """Of `size` rows or columns, where this rank's begin, and how many there are: of a vocabulary perhaps fewer on
        the last ranks."""
        each = -(-size // self.ranks)
        start = min(self.rank * each, size)
        return start, min(each, size - start)

    def part_of_pieces(self, name: str, whole: Tensor, pieces: Sequence[slice]) -> Tensor:
        """The same of a whole parameter that may be several matrices in one, each cut for itself.

        pieces: where their parts lie in this rank's parameter, as rows; in the whole all of them are longer alike.
        """
        places = [slice(rows.start * self.ranks, rows.stop * self.ranks) if rows.stop else rows for rows in pieces]
        return torch.cat([self.part(name, whole[rows]) for rows in places])

    def whole_shape(self, name: str, shape: torch.Size, config: ModelConfig) -> torch.Size:
        """The shape of the whole, of which this rank's part in the parameter `name` has that shape."""
        dimension = split_dimension(name)
        if dimension is None:
            return shape
        sizes = list(shape)
        sizes[dimension] = config.vocab_size if name == "head.weight" else sizes[dimension] * self.ranks
        return torch.Size(sizes)

    def least(self, number: int, device: torch.device) -> int:
        """The smallest of the numbers with which all ranks call this."""
        if self.ranks == 1:
            return number
        numbers = torch.tensor(number, device=device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers)


WHOLE = Shard()


def split_dimension(name: str) -> int | None:
    """The dimension along which ranks share a parameter of `Transformer`; None if each has all of it."""
    if name == "head.weight" or ".qkv." in name or ".gate_up." in name:
        return 0
    return 1 if name.endswith(("attention.output.weight", "mlp.down.weight")) else None


class RowParallelLinear(nn.Linear):
    """Each rank multiplies the part of the input that it has; the sum over all ranks is the product."""

    @classmethod
    def like(cls, linear: nn.Linear) -> "RowParallelLinear":
        return cls(linear.in_features, linear.out_features, bias=linear.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.weight)  # [N, hidden_size]
        dist.all_reduce(product)
        return product if self.bias is None else product + self.bias  # once, and not by each rank


class VocabularyParallelHead(nn.Module):
    """Each rank scores a part of the vocabulary, and gets the scores of all of it."""

    def __init__(self, model: Transformer, shard: Shard):
        super().__init__()
        self.ranks, self.vocab_size = shard.ranks, model.config.vocab_size
        start, size = shard.span(self.vocab_size)
        self.rows = slice(start, start + size)
        self.weight = model.embedding.weight  # tied: every rank has all of it anyway
        if not model.config.tie_embeddings:
            self.rows = slice(None)
            self.weight = nn.Parameter(torch.empty(size, model.config.hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """[R, hidden_size] -> [R, V]"""
        if not len(hidden):
            return hidden.new_empty(0, self.vocab_size)
        scores = F.linear(hidden, self.weight[self.rows])  # [R, rows], on the last ranks perhaps fewer
        scores = F.pad(scores, (0, -(-self.vocab_size // self.ranks) - scores.shape[-1]))
        parts = [torch.empty_like(scores) for _ in range(self.ranks)]
        dist.all_gather(parts, scores)
        return torch.cat(parts, dim=-1)[:, : self.vocab_size]

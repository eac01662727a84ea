"""Products on a CPU, with the weights in the blocks that oneDNN's kernels read.

torch gives float32 products to MKL, which does not use all of an AMD processor: with packed weights oneDNN takes half
of the time, from 16 rows to 1,024, and no longer than MKL with one row of a large matrix. bfloat16 goes to oneDNN
anyway, but it rearranges the weights in every call: packed once, a product with one row takes 0.6 of the time, one with
32 rows 0.7, with 256 rows 0.95. Measured on an AMD EPYC of the fourth generation, with one thread and with two.

oneDNN prepares itself for each number of rows that it meets, for as long as a pass of the bundled model takes (3 to
10 ms). So steps are filled up to one of a few numbers, `padded`, and a server meets all of them before its first
request, `prepare_products`.
"""

import ctypes
import time
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..process import return_freed_memory

PIECE = 16  # blocks
MAX_TWICE = 2**26  # bytes of weights that may be in memory twice
MAX_PREPARED = 2048  # rows
_prepared: set[tuple] = set()  # what oneDNN has met in this process: it need not prepare the same widths again


class Blocks(NamedTuple):
    """A weight in the order block, step, output, input: a step is one input in float32 and two in bfloat16.

    So oneDNN packs weights on processors with AVX512: blocks of 64 outputs, with AMX in bfloat16 of 32.
    """

    view: Tensor  # [blocks, steps, outputs, inputs of a step], zeros behind the weight's rows and columns
    place: Tensor  # int64, on the CPU: address, bytes of a block, bytes of a step
    form: str  # float32, bfloat16, 8 bits or 4 bits (quantized.py)

    @classmethod
    def at(cls, view: Tensor) -> "Blocks":
        place = torch.tensor([view.data_ptr(), view[0].nbytes, view[0, 0].nbytes])
        return cls(view, place, str(view.dtype).removeprefix("torch."))


class PackedLinear(nn.Module):
    """A linear layer for inference, whose weight oneDNN can read, and the kernels of blocks.py where it has blocks."""

    def __init__(self, linear: nn.Linear, twice: bool = False):
        super().__init__()
        weight, self.bias = linear.weight.data, linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.blocks = blocks_in(self.packed, weight) or (blocks_of(weight) if twice else None)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def empty_like(self) -> tuple[Tensor, Tensor]:
        """Return `packed` and its blocks' `place` for another weight of this size, which is still to be written."""
        shape = self.out_features, self.in_features
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(shape, dtype=self.blocks.view.dtype), None)
        return packed, torch.tensor([torch.ops.mkldnn.data_ptr(packed), *self.blocks.place[1:]])


class PackedEmbedding(nn.Module):
    """The embedding of a model whose output layer is tied to it, from the one packed weight of both."""

    def __init__(self, head: PackedLinear):
        super().__init__()
        self.view, self.packed, self.size = head.blocks.view, head.packed, head.in_features

    def forward(self, token_ids: Tensor) -> Tensor:
        outputs = self.view.shape[2]
        return self.view[token_ids // outputs, :, token_ids % outputs].flatten(1)[:, : self.size].contiguous()


def in_blocks(weight: Tensor, outputs: int, inputs: int) -> Tensor:
    """Return `weight[O, I]` as `Blocks.view`, of `outputs` outputs each; inputs: I and the zeros behind them."""
    step = 4 // weight.itemsize
    weight = F.pad(weight, (0, inputs - weight.shape[1], 0, -len(weight) % outputs))
    return weight.view(-1, outputs, inputs // step, step).transpose(1, 2)


def blocks_of(weight: Tensor) -> Blocks:
    """Return a copy of `weight[O, I]` in blocks."""
    return Blocks.at(in_blocks(weight, 32, -(-weight.shape[1] // 2) * 2).contiguous())


def blocks_in(packed: Tensor, weight: Tensor) -> Blocks | None:
    """Return the blocks that oneDNN has made of a weight, which are `packed` itself; None where it packs otherwise."""
    nbytes, at = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    raw = torch.frombuffer((ctypes.c_char * nbytes).from_address(at), dtype=weight.dtype)
    step = 4 // weight.itemsize
    for outputs in (64, 32):
        count = -(-len(weight) // outputs)
        inputs, rest = divmod(len(raw), count * outputs)
        if rest or inputs < weight.shape[1]:
            continue
        view = raw.view(count, inputs // step, outputs, step)
        pieces = zip(view.split(PIECE), weight.split(PIECE * outputs), strict=True)  # whole copies would take memory
        if all(torch.equal(blocks, in_blocks(rows, outputs, inputs)) for blocks, rows in pieces):
            return Blocks.at(view)
    return None


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether torch has oneDNN's products in this type, and the processor multiplies in it."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: nn.Module) -> bool:
    """Replace the linear layers of the model by packed ones, if torch has oneDNN's products; say if any.

    Those that stay get `blocks`, too, if they are small.
    """
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children()
              if type(child) is nn.Linear]  # fmt: skip
    twice = sum(getattr(*place).weight.nbytes for place in places) <= MAX_TWICE
    embedding = getattr(model, "embedding", None)
    for parent, name in places:  # one after the other, so that never more than one matrix is in memory twice
        linear = getattr(parent, name)
        small = linear.weight is not getattr(embedding, "weight", model) or linear.weight.nbytes <= MAX_TWICE
        packed = PackedLinear(linear, twice) if can_pack(linear.weight.dtype) else None
        if packed is not None and (small or packed.blocks is not None):
            setattr(parent, name, packed)
            del linear
            return_freed_memory()
            if not small:
                model.embedding = PackedEmbedding(packed)
        else:
            linear.blocks = blocks_of(linear.weight.data) if twice else None
    return any(isinstance(module, PackedLinear) for module in model.modules())


def padded(tokens: int) -> int:
    """Return for how many rows a step of `tokens` tokens computes its products: at most an eighth more from 32 on."""
    multiple = max(4, 2 ** ((tokens - 1).bit_length() - 4))  # eight numbers from each power of two to the next
    return -(-tokens // multiple) * multiple


def prepare_products(block: nn.Module, most_tokens: int) -> None:
    """Compute each packed product of a block for each number of rows, once in a process; other blocks are as large.

    Passes of more than MAX_PREPARED tokens take a multiple of what it takes to prepare one.
    """
    for linear in block.modules():
        if isinstance(linear, PackedLinear):
            widths = linear.in_features, linear.out_features, linear.packed.dtype, torch.get_num_threads()
            for rows in sorted({padded(tokens) for tokens in range(1, min(most_tokens, MAX_PREPARED) + 1)}):
                if (rows, *widths) not in _prepared:
                    linear(torch.zeros(rows, linear.in_features, dtype=linear.packed.dtype))
                    _prepared.add((rows, *widths))


@torch.inference_mode()
def slowness_of_bfloat16(block: nn.Module, rows: int) -> float:
    """Return how many times as long as in float32 the packed products of a block take for `rows` rows in bfloat16; 1
    for a block without any, whose weights are quantised.

    Measured in turn with one thread: its processor time is the same on a busy machine, but several wait for each other.
    """
    threads, seconds = torch.get_num_threads(), {torch.bfloat16: 0.0, torch.float32: 0.0}
    torch.set_num_threads(1)
    for linear in block.modules():
        if isinstance(linear, PackedLinear):
            sides = {}
            for dtype in seconds:
                copy = PackedLinear(nn.Linear(linear.in_features, linear.out_features, bias=False, dtype=dtype))
                sides[dtype] = partial(copy, torch.ones(rows, linear.in_features, dtype=dtype)), []
            for _ in range(6):
                for product, times in sides.values():
                    start = time.thread_time()
                    product()
                    times.append(time.thread_time() - start)
            for dtype, (_, times) in sides.items():
                seconds[dtype] += min(times[1:])  # the first prepares the product
    torch.set_num_threads(threads)
    return seconds[torch.bfloat16] / seconds[torch.float32] if seconds[torch.float32] else 1.0

"""Products on a CPU, with the weights in the blocks that oneDNN's kernels read.

torch gives float32 products to MKL, which does not use all of an AMD processor: with packed weights oneDNN takes half
of the time, from 16 rows to 1,024, and no longer than MKL with one row of a large matrix. bfloat16 goes to oneDNN
anyway, but it rearranges the weights in every call: packed once, a product with one row takes 0.6 of the time, one with
32 rows 0.7, with 256 rows 0.95. Measured on an AMD EPYC of the fourth generation, with one thread and with two.

oneDNN prepares itself for each number of rows that it meets, for as long as a pass of the bundled model takes (3 to
10 ms). So steps are filled up to one of a few numbers, `padded`, and a server meets all of them before its first
request, `prepare_products`.
"""

import time
from functools import partial

import torch
from torch import Tensor, nn

MOST_TWICE = 2**26  # bytes: a head that is tied to the embedding stays as it is if it is larger
MOST_PREPARED = 2048  # rows
_prepared: set[tuple] = set()  # what oneDNN has met in this process: another model of the same widths needs none of it


class PackedLinear(nn.Module):
    """A linear layer for inference, whose weight only oneDNN can read."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed, self.bias = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, None), linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def pack_linears(model: nn.Module) -> bool:
    """Replace the linear layers of the model by packed ones, if torch has oneDNN's products; say if any."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    types = {torch.float32} | ({torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set())
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children()
              if type(child) is nn.Linear]  # fmt: skip
    embedding = getattr(getattr(model, "embedding", None), "weight", None)
    for parent, name in places:  # one after the other, so that no more than one matrix is there twice meanwhile
        weight = getattr(parent, name).weight
        if weight.dtype in types and (weight is not embedding or weight.nbytes <= MOST_TWICE):
            setattr(parent, name, PackedLinear(getattr(parent, name)))
    return any(isinstance(module, PackedLinear) for module in model.modules())


def padded(tokens: int) -> int:
    """Return for how many rows a step of `tokens` tokens computes its products: at most an eighth more from 32 on."""
    multiple = max(4, 2 ** ((tokens - 1).bit_length() - 4))  # eight numbers from each power of two to the next
    return -(-tokens // multiple) * multiple


def prepare_products(block: nn.Module, most_tokens: int) -> None:
    """Compute each packed product of a block for each number of rows, once in a process; other blocks are as large.

    Passes of more than MOST_PREPARED tokens take a multiple of what it takes to prepare one.
    """
    for linear in block.modules():
        if isinstance(linear, PackedLinear):
            widths = linear.in_features, linear.out_features, linear.packed.dtype, torch.get_num_threads()
            for rows in sorted({padded(tokens) for tokens in range(1, min(most_tokens, MOST_PREPARED) + 1)}):
                if (rows, *widths) not in _prepared:
                    linear(torch.zeros(rows, linear.in_features, dtype=linear.packed.dtype))
                    _prepared.add((rows, *widths))


@torch.inference_mode()
def slowness_of_bfloat16(block: nn.Module, rows: int) -> float:
    """Return how many times as long as in float32 the packed products of a block take for `rows` rows in bfloat16.

    Measured in turn with one thread, whose processor time says the same on a busy machine: several wait for each other.
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
    return seconds[torch.bfloat16] / seconds[torch.float32]

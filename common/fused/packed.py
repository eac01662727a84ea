"""Products on a CPU, with the weights in the blocks that oneDNN's kernels read.

F.linear gives oneDNN bfloat16 weights as they are, and it rearranges them in every call: packed once, a product with
one row takes 0.6 of the time, one with 32 rows 0.7, with 256 rows 0.95. float32 goes to MKL by F.linear. From a few
rows on oneDNN's packed product is faster, where a matrix has more rows than columns: 0.7 to 0.9 of the time. With fewer
rows MKL's own is, on weights stored column by column (loader/weights.py). So such a matrix is kept in both forms.

oneDNN prepares itself for each number of rows that it meets, for as long as a pass of the bundled model takes (3 to
10 ms). So steps are filled up to one of a few numbers, `padded`, and a server meets all of them before its first
request, `prepare_products`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_ROWS = 4  # measured on an AMD EPYC of the fourth generation, as all times above, with one thread
MOST_BESIDE = 2**28  # bytes: float32 matrices of a model that together take more stay as they are


class PackedLinear(nn.Module):
    """A linear layer for inference, whose weight only oneDNN can read."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed, self.bias = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, None), linear.bias
        self.in_features = linear.in_features

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class PackedBeside(PackedLinear):
    """The same with the plain weight beside it, for few rows."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.weight = linear.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) if len(x) < FEW_ROWS else super().forward(x)


def pack_linears(model: nn.Module) -> bool:
    """Replace linear layers of the model by packed ones where that pays, if torch has oneDNN's products; say if any.

    A bfloat16 head that is tied to the embedding stays as it is: packed it would be in memory twice, for a product that
    takes 0.66 to 0.88 of the time.
    """
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children()
              if type(child) is nn.Linear]  # fmt: skip
    beside = sum(getattr(*place).weight.nbytes for place in places if is_tall(getattr(*place))) <= MOST_BESIDE
    embedding = getattr(getattr(model, "embedding", None), "weight", None)
    for parent, name in places:  # one after the other, so that no more than one matrix is there twice meanwhile
        linear = getattr(parent, name)
        if linear.weight.dtype == torch.bfloat16:
            if linear.weight is not embedding and torch.ops.mkldnn._is_mkldnn_bf16_supported():
                setattr(parent, name, PackedLinear(linear))
        elif linear.weight.dtype == torch.float32 and is_tall(linear) and beside:
            setattr(parent, name, PackedBeside(linear))
    return any(isinstance(module, PackedLinear) for module in model.modules())


def padded(tokens: int) -> int:
    """Return for how many rows a step of `tokens` tokens computes its products: at most an eighth more from 32 on."""
    multiple = max(4, 2 ** ((tokens - 1).bit_length() - 4))  # eight numbers from each power of two to the next
    return -(-tokens // multiple) * multiple


def prepare_products(block: nn.Module, most_tokens: int) -> None:
    """Compute each packed product of a block for each number of rows once; those of other blocks are as large."""
    for linear in block.modules():
        if isinstance(linear, PackedLinear):
            for rows in sorted({padded(tokens) for tokens in range(1, most_tokens + 1)}):
                linear(torch.zeros(rows, linear.in_features, dtype=linear.packed.dtype))


def is_tall(linear: nn.Linear) -> bool:
    return linear.out_features > linear.in_features

"""The transformer of model.py with the small operations between its matrix products fused.

A layer of the plain model has nine operations that are no product, or twelve where the heads are normed: norms,
additions, rotation, activation. Each of them is a launch on a GPU and a call of some microseconds on a CPU, and takes
the activations from memory and back. Here they are four launches of three kernels:

    add_norm        residual += x, and the norm of the sum; before attention, and before the MLP
    norm_rotate     norms of the heads, where a model has them, and rotary embedding of q and k; on a GPU, where K and V
                    lie in pages, it also writes them there
    silu_mul        silu(gate) * up

`triton_kernels.py` has them for CUDA, `numba_kernels.py` for the CPU; there a step with few tokens has its products in
such calls, too, two for each block and one for the logits (`few_tokens.py`). Modules and parameters are those of the
plain model; only `forward` differs. The products stay with a library, which is hard to beat, except on a GPU those of
up to four rows; on a CPU `packed.py` gives it the weights in the layout that it reads fastest.

torch.compile is the other way to fewer launches, and finds such kernels by itself. It compiles the whole model when a
server starts, and once more for each new class of shapes, while requests wait, and on a CPU it needs a C++ compiler;
what is compiled here are a few kernels, for any N, and they can be read. On an H200 neither way was more than 4 percent
faster: common/bench/gpu/results has both.
"""

from collections.abc import Iterable
from importlib import import_module
from itertools import repeat
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InvalidInput
from ..model import Attend, Block, Transformer
from .packed import pack_linears, padded
from .quantized import QuantizedLinear, prepare_unpacking
from .rotation import check_positions, heads_of
from .triton_launch import why_not_triton

if TYPE_CHECKING:
    from .few_tokens import FewScores, FewTokens

KERNELS = ("triton", "numba")
NO_BLOCKS = repeat(None)


class FusedTransformer(Transformer):
    """Compute what `Transformer` computes, up to rounding, for inference: the kernels have no gradients.

    Nothing in `forward` waits for a GPU or depends on values, so a CUDA graph can capture it for a fixed N, once it
    has run for the first time and the kernels are compiled. Modules may be replaced by others of the same meaning whose
    results are contiguous, such as `attention.output` by a product over several GPUs; how many heads there are is read
    from each block's attention.
    """

    kernels: ModuleType  # triton_kernels or numba_kernels
    few: Iterable["FewTokens | None"] = NO_BLOCKS  # each block's kernels for few tokens (few_tokens.py)
    few_scores: "FewScores | None" = None  # the output layer's
    most_few = 0  # tokens that they take; 0 where there are none
    pads = False  # whether products get rows that are no tokens (packed.py)

    @property
    def products(self) -> str:
        """One line about the products of quantised weights, "" where there are none."""
        layers = [layer for layer in self.modules() if isinstance(layer, QuantizedLinear)]
        if not layers:
            return ""
        forms, dtype = sorted({layer.blocks.form for layer in layers}), str(self.norm.weight.dtype)
        rest = f"{'kept' * layers[0].keeps or 'unpacked'} in {dtype.removeprefix('torch.')} for more"
        rounded = min(self.most_few, self.few[0].most_in_codes) if self.most_few else 0
        few = f"{self.most_few} tokens at once" + f" (up to {rounded} are rounded to 8 bits, too)" * (rounded > 0)
        return f"weights of {' and '.join(forms)}, read by up to {few} and {rest}"

    @torch.no_grad()
    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `Transformer.forward`."""
        check_positions(positions, attend, self.cos)
        count = len(token_ids)
        rows = padded(count) if self.pads and count > self.most_few else count
        x, residual = None, self.embedding(filled_up(token_ids, rows))  # [rows, hidden_size]
        step = positions, self.cos, self.sin, attend
        has_few = rows <= self.most_few
        with self.kernels.on_device(residual, has_few):
            for block, few in zip(self.blocks, self.few if has_few else NO_BLOCKS, strict=False):
                x = few(x, residual, *step) if few else fused_block(self.kernels, block, x, residual, *step)
            return self.kernels.add_norm(x, residual, self.norm.weight, self.norm.eps)[:count]

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Transformer.logits`; on CUDA in the model's own type: the same numbers in half of the bytes."""
        unpacks = isinstance(self.head, QuantizedLinear) and not self.head.keeps
        if self.few_scores and (len(hidden) <= self.most_few or unpacks):
            return self.few_scores(hidden)
        scores = self.head(hidden)
        return scores if scores.is_cuda else scores.float()


def fused_block(
    kernels: ModuleType,
    block: Block,
    x: Tensor | None,
    residual: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    attend: Attend,
) -> Tensor:
    """Run one block; return `[rows, hidden_size]`, which the next block or norm adds to the residual, as its x.

    x: what the block before returned, None for the first; it is added to `residual[rows, hidden_size]`, in place. Only
    the first N rows are tokens, at `positions[N]`: those that attend.
    """
    attention, mlp, tokens = block.attention, block.mlp, len(positions)
    x = kernels.add_norm(x, residual, block.attention_norm.weight, block.attention_norm.eps)
    qkv = kernels.apply_linear(attention.qkv, x)
    q, k, v = kernels.Rotation(positions, cos, sin, *heads_of(attention)).heads(qkv[:tokens])
    attended = attend(attention.layer, q, k, v)  # [N, H, D]
    x = kernels.apply_linear(attention.output, filled_up(attended.reshape(tokens, -1), len(residual)))
    x = kernels.add_norm(x, residual, block.mlp_norm.weight, block.mlp_norm.eps)
    return kernels.apply_linear(mlp.down, kernels.silu_mul(kernels.apply_linear(mlp.gate_up, x)))


def filled_up(x: Tensor, rows: int) -> Tensor:
    """Return x with zeros behind it, in its first dimension."""
    return x if len(x) == rows else F.pad(x, (*[0, 0] * (x.ndim - 1), 0, rows - len(x)))


def choose_model(model: Transformer, fused: bool | str) -> Transformer:
    """Return the model with fused kernels or without.

    fused: "triton" or "numba"; "auto" is triton on CUDA and numba on the CPU, where these are installed; False is none.
    Raise InvalidInput for another value, or if they are asked for and cannot run.
    """
    if fused == "auto":
        name = "triton" if model.cos.device.type == "cuda" else "numba"
        return fuse(model, name) if why_not(name, model) is None else model
    if fused is False:
        return model
    if fused not in KERNELS:
        raise InvalidInput(f"fused={fused!r} is unknown: use 'auto', 'triton', 'numba' or False")
    return fuse(model, fused)


def fuse(model: Transformer, name: str = "triton") -> FusedTransformer:
    """Return the model with the fused kernels of that name. It has the same modules and parameters, except on a CPU,
    where products may get packed weights (`pack_linears`).

    Raise InvalidInput if the kernels cannot run on the model's device, or in its type.
    """
    reason = why_not(name, model)
    if reason is not None:
        raise InvalidInput(f"fused kernels cannot run here: {reason}")
    fused = FusedTransformer.__new__(FusedTransformer)
    vars(fused).update(vars(model))
    fused.kernels = import_module(f".{name}_kernels", __name__)
    if name == "numba":
        from .few_tokens import few_scores, few_tokens, most_few  # needs numba

        dtype = model.norm.weight.dtype
        prepare_unpacking(fused, dtype, fused.kernels.compiled(dtype).unpacked)
        fused.pads = pack_linears(fused)
        fused.few = few_tokens(fused)
        if all(fused.few):
            fused.most_few, fused.few_scores = most_few(fused, fused_block), few_scores(fused)
    return fused


def why_not(name: str, model: Transformer) -> str | None:
    """Return why these kernels cannot run the model, None if they can."""
    device, dtype = model.cos.device, model.norm.weight.dtype
    if name == "triton":
        return why_not_triton(device)
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return "numba's are for float32 and bfloat16 on the CPU"
    return why_not_numba()


def why_not_numba() -> str | None:
    """Return why numba cannot be imported, None if it can: it refuses a numpy that is newer than it knows."""
    try:
        import_module("numba")
    except ModuleNotFoundError:
        return "the package numba is not installed"
    except ImportError as error:
        return f"the package numba cannot be imported: {error}"
    return None

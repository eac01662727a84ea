"""The transformer of model.py for CUDA, with the small operations between its matrix products fused.

A layer of the plain model has nine operations that are no product, or twelve where the heads are normed: norms,
additions, rotation, activation. On a GPU each of them is a launch, and takes the activations from memory and back. Here
they are four launches of three kernels (fused_kernels.py):

    add_norm        residual += x, and the norm of the sum; before attention, and before the MLP
    norm_rotate     norms of the heads, where a model has them, and rotary embedding of q and k; where K and V lie in
                    pages, it also writes them there
    silu_mul        silu(gate) * up

Modules and parameters are those of the plain model; only `forward` differs. The products stay with PyTorch's library,
which is hard to beat.

torch.compile is the other way to fewer launches, and finds such kernels by itself. It compiles the whole model when a
server starts, and once more for each new class of shapes, while requests wait; what is compiled here are three kernels,
for any N, and they can be read. Which way is faster is for a GPU to say:
`python -m common.bench.gpu --only kernels` times both, and their first calls.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from ..attention.triton_backend import TritonAttention, why_not_triton
from ..model import Attend, Block, Transformer


class FusedTransformer(Transformer):
    """Compute what `Transformer` computes, up to rounding, for inference: the kernels have no gradients.

    Nothing in `forward` waits for the GPU or depends on values, so a CUDA graph can capture it for a fixed N, once it
    has run for the first time and the kernels are compiled. Modules may be replaced by others of the same meaning whose
    results are contiguous, such as `attention.output` by a product over several GPUs; how many heads there are is read
    from each block's attention.
    """

    @torch.no_grad()
    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `Transformer.forward`."""
        from .fused_kernels import add_norm

        with torch.cuda.device_of(token_ids):  # where Triton launches; no matter on a CPU
            x, residual = None, self.embedding(token_ids)  # [N, hidden_size]
            for block in self.blocks:
                x = fused_block(block, x, residual, positions, self.cos, self.sin, attend)
            return add_norm(x, residual, self.norm.weight, self.norm.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Transformer.logits`, in the model's own type: the same numbers in half of the bytes."""
        return self.head(hidden)


def fused_block(
    block: Block, x: Tensor | None, residual: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, attend: Attend
) -> Tensor:
    """Run one block; return `[N, hidden_size]`, which the next block or norm adds to the residual, as its x.

    x: what the block before returned, None for the first; it is added to `residual[N, hidden_size]`, in place.
    """
    from .fused_kernels import Rotation, Unwritten, add_norm, norm_rotate, silu_mul

    attention, mlp, q_norm, k_norm = block.attention, block.mlp, block.attention.q_norm, block.attention.k_norm
    x = add_norm(x, residual, block.attention_norm.weight, block.attention_norm.eps)
    norms = (q_norm.weight, k_norm.weight, q_norm.eps) if q_norm is not None else (None, None, 0.0)
    rotation = Rotation(positions, cos, sin, *norms, attention.num_heads, attention.num_kv_heads)
    if writes_unwritten(attend):
        k = v = Unwritten(attention.qkv(x), rotation)
        q = k.q
    else:
        q, k, v = norm_rotate(attention.qkv(x), rotation)
    attended = attend(attention.layer, q, k, v)  # [N, H, D]
    x = attention.output(attended.reshape(len(x), -1))
    x = add_norm(x, residual, block.mlp_norm.weight, block.mlp_norm.eps)
    return mlp.down(silu_mul(mlp.gate_up(x)))


def writes_unwritten(attend: Attend) -> bool:
    """Say whether `attend` gives k and v to the Triton backend, as a BoundCache of the stages from 05 on does."""
    return isinstance(getattr(getattr(attend, "cache", None), "attention", None), TritonAttention)


def choose_model(model: Transformer, fused: bool | str) -> Transformer:
    """Return the model with fused kernels or without; "auto" is with them on CUDA, where triton is installed.

    Raise ValueError for another value, or if they are asked for and cannot run.
    """
    if fused not in (True, False, "auto"):
        raise ValueError(f"fused={fused!r} is unknown: use True, False or 'auto'")
    if fused == "auto":
        fused = model.cos.device.type == "cuda" and find_spec("triton") is not None
    return fuse(model) if fused else model


def fuse(model: Transformer) -> FusedTransformer:
    """Return the model with fused kernels. It has the same modules and parameters: a change to one is one to both.

    Raise ValueError if Triton cannot run on the model's device.
    """
    reason = why_not_triton(model.cos.device)
    if reason is not None:
        raise ValueError(f"fused kernels cannot run here: {reason}")
    fused = FusedTransformer.__new__(FusedTransformer)
    vars(fused).update(vars(model))
    return fused

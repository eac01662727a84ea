"""What kernels.py and tiles.py time: each operation in its variants, with inputs, and the bytes it has to move.

Eager and compiled are the modules of common/model.py themselves; where an operation is a part of one, the products
around it are replaced by nothing. Bytes are what every variant has to move: weights, and what goes in and comes out,
once. A compiler leaves out results that are not used, so all that a model needs is returned.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from common.attention import Attention as AttentionBackend
from common.attention import PagedBatch, choose_attention
from common.attention.torch_backend import TorchAttention
from common.attention.triton_backend import TritonAttention
from common.fused import fused_block, triton_kernels
from common.fused.triton_kernels import Rotation, add_norm, silu_mul
from common.loader.weights import empty_model, randomize_weights
from common.model import MLP, Attention, Block, ModelConfig, Transformer

from ..timing import inputs_beyond_cache

PAGE_SIZES = (16, 256)  # the second for backends that do not take the first
BACKENDS = ("torch", "triton", "flash")


@dataclass(frozen=True)
class Case:
    """One row: functions that do the same, and take the same arguments. "compiled" is still to pass torch.compile.

    arguments(i): the i-th of the inputs that are to take turns. missing: variants that cannot run, and why.
    launched: these are also to be timed without a CUDA graph.
    """

    operation: str
    tokens: int
    nbytes: int
    arguments: Callable[[int], tuple]
    variants: dict[str, Callable]
    missing: dict[str, str] = field(default_factory=dict)
    launched: bool = False

    def inputs(self, device: torch.device) -> list[tuple]:
        """Return as many inputs as outgrow the cache together."""
        return [tuple(self.arguments(i)) for i in range(inputs_beyond_cache(self.nbytes, device))]


def layers_of(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Return a model of as many layers as outgrow the cache, with random weights and hardly any vocabulary."""
    with torch.device("meta"):
        layer_bytes = dtype.itemsize * sum(parameter.numel() for parameter in Block(config, 0).parameters())
    layers = inputs_beyond_cache(layer_bytes, device)
    model = empty_model(replace(config, num_layers=layers, vocab_size=16), device, dtype)
    randomize_weights(model)
    for block in model.blocks:
        block.attention.layer = 0  # torch.compile would compile each number for itself
    return model


def model_cases(model: Transformer, N: int) -> Iterator[Case]:
    """Yield all that happens to N tokens in a layer but attention: piece by piece, and then a whole block."""
    config, norm, cos, sin = model.config, model.norm, model.cos, model.sin
    device, dtype = norm.weight.device, norm.weight.dtype
    H, H_kv, D, I = config.num_heads, config.num_kv_heads, config.head_dim, config.intermediate_size  # noqa: E741
    positions = torch.randint(config.context_length, (N,), device=device)
    angles = [table[positions].unsqueeze(1).to(dtype) for table in (cos, sin)]  # the plain model: once a step
    number = N * dtype.itemsize  # bytes of one number for each token

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    def hidden_and_residual(i: int) -> tuple:
        return normal(N, config.hidden_size), normal(N, config.hidden_size)

    def plain_add_norm(x, residual):
        residual = residual + x
        return residual, norm(residual)

    def triton_add_norm(x, residual):
        return add_norm(x, residual, norm.weight, norm.eps)

    variants = {"eager": plain_add_norm, "compiled": plain_add_norm, "triton": triton_add_norm}
    yield Case("add_norm", N, 4 * config.hidden_size * number, hidden_and_residual, variants)

    attention = Attention(replace(config, hidden_size=1), 0).to(device, dtype)
    attention.qkv = attention.output = nn.Identity()
    norms = (None, None, 0.0)
    if attention.q_norm is not None:
        norms = attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.eps
    rotation = Rotation(positions, cos, sin, *norms, H, H_kv)

    def plain_norm_rotate(qkv):
        kept = []
        attention(qkv, *angles, lambda layer, *qkv: kept.append(qkv) or qkv[0])
        return kept[0]

    variants = {"eager": plain_norm_rotate, "compiled": plain_norm_rotate}

    def triton_norm_rotate(qkv):
        q, k, v = rotation.heads(qkv)
        return q.view_as(q), k, v  # the first use of q rotates both

    variants["triton"] = triton_norm_rotate
    nbytes = 2 * (H + H_kv) * D * number
    yield Case("norm_rotate", N, nbytes, lambda i: (normal(N, (H + 2 * H_kv) * D),), variants)

    slots = torch.randperm(-(-2 * N // 16) * 16, device=device)[:N]
    plain_write, triton_write = TorchAttention(device, dtype).write, TritonAttention(dtype).write

    def qkv_and_pages(i: int) -> tuple:
        return normal(N, (H + 2 * H_kv) * D), *(normal(-(-2 * N // 16), 16, H_kv, D) for _ in range(2))

    def plain_norm_rotate_write(qkv, k_pages, v_pages):
        def attend(layer, q, k, v):
            plain_write(k, v, k_pages, v_pages, slots)
            return q

        return attention(qkv, *angles, attend)

    def triton_norm_rotate_write(qkv, k_pages, v_pages):
        q, k, v = rotation.heads(qkv)
        triton_write(k, v, k_pages, v_pages, slots)
        return q

    variants = {"eager": plain_norm_rotate_write, "compiled": plain_norm_rotate_write}
    variants["triton"] = triton_norm_rotate_write
    yield Case("norm_rotate, write", N, 2 * (H + 2 * H_kv) * D * number, qkv_and_pages, variants)

    mlp = MLP(replace(config, hidden_size=1, intermediate_size=1))
    mlp.gate_up = mlp.down = nn.Identity()
    variants = {"eager": mlp.forward, "compiled": mlp.forward, "triton": silu_mul}
    yield Case("silu_mul", N, 3 * I * number, lambda i: (normal(N, 2 * I),), variants)

    def products(block, x, residual):
        block.attention.output(block.attention.qkv(x)[:, : H * D])
        return block.mlp.down(block.mlp.gate_up(x)[:, :I])

    def plain_block(block, x, residual):
        kept = []
        return block(x, *angles, lambda layer, *qkv: kept.append(qkv) or qkv[0]), kept

    def triton_block(block, x, residual):
        return fused_block(triton_kernels, block, x, residual, positions, cos, sin, lambda layer, q, k, v: q)

    variants = {"products alone": products, "eager": plain_block, "compiled": plain_block, "triton": triton_block}
    nbytes = sum(parameter.nbytes for parameter in model.blocks[0].parameters()) + 2 * config.hidden_size * number
    yield Case(
        "block", N, nbytes, lambda i: (model.blocks[i % len(model.blocks)], *hidden_and_residual(i)), variants,
        launched=True,
    )  # fmt: skip


def attention_case(
    config: ModelConfig,
    B: int,
    context: int,
    device: torch.device,
    dtype: torch.dtype,
    backends: Mapping[str, tuple[AttentionBackend, int]] | None = None,
) -> Case:
    """Return a case: one token of each of B requests looks at `context` tokens. backends: by name, with page sizes.

    Without any, those of common/attention that run here.
    """
    H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
    room = -(-context // max(PAGE_SIZES)) * max(PAGE_SIZES)  # tokens in the pages of each request

    def q_and_slots(i: int) -> tuple:
        return [torch.randn(shape, device=device, dtype=dtype) for shape in ((B, H, D), *2 * [(B * room, H_kv, D)])]

    missing = {}
    if backends is None:
        backends, missing = backends_of(config, device, dtype)
    nbytes = (2 * context * H_kv + 2 * H) * D * B * dtype.itemsize
    variants = {name: decode(*backend, B, context, room, device) for name, backend in backends.items()}
    return Case("decode attention", B, nbytes, q_and_slots, variants, missing)


def backends_of(
    config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, tuple[AttentionBackend, int]], dict[str, str]]:
    """Return the backends of common/attention that run here, and why the others do not."""
    found, missing = {}, {}
    for name in BACKENDS:
        for page_size in PAGE_SIZES:
            try:
                backend, _ = choose_attention(name, device, dtype, config.head_dim, page_size)
            except ValueError as error:
                missing[name] = str(error)
                continue
            missing.pop(name, None)
            found[f"{name}, pages of {page_size}"] = backend, page_size
            break
    return found, missing


def decode(
    backend: AttentionBackend, page_size: int, B: int, context: int, room: int, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention as a function of q `[B, H, D]` and of all slots for K and V, `[B * room, H_kv, D]`."""
    order = torch.randperm(B * room // page_size, generator=torch.Generator().manual_seed(0))  # pages lie anywhere
    tables = order.view(B, -1)[:, : -(-context // page_size)].tolist()
    slots = torch.zeros(B, dtype=torch.int64, device=device)  # nothing is written
    plan = backend.prepare(PagedBatch.pack([1] * B, [context] * B, tables, slots, page_size))
    return lambda q, k, v: backend.attend(q, k.unflatten(0, (-1, page_size)), v.unflatten(0, (-1, page_size)), plan)

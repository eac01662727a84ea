"""Every kernel compiles for real GPUs, fits and hardly spills.

What one layer of a step launches is compiled, with the shapes of the bundled configs. A kernel's stack is what its
registers did not hold. Only attention, whose tiles fill the registers, may have one: a few numbers in each thread, and
more in float32, which is not what a GPU serves in.
"""

from collections.abc import Iterator
from itertools import product

import torch
from pretended_gpu import Compiled, pretended_gpu, registers_and_stack
from torch import nn

from common.attention import PagedBatch
from common.attention.triton_backend import TILES, Tile, TritonAttention
from common.fused.triton_kernels import FEW_ROWS, Rotation, add_norm, apply_linear, silu_mul
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.loader.device import DTYPES
from common.model import SCALE_BYTES, ModelConfig
from common.sampling import SamplingParams
from common.sampling_kernels import draw_tokens

# Shared memory that one block may have, in bytes (CUDA programming guide, table of compute capabilities): on a T4, an
# A100, an L4 or RTX 4090, an H100 or H200, a B200, an RTX 5090.
SHARED = {75: 64 << 10, 80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
MODELS = ("Qwen3-0.6B", "target", "Qwen3-8B", "Qwen2.5-14B", "TinyLlama-1.1B", "draft")
# Cases: type, model and GPU.
SHORT = (("bfloat16", "Qwen3-0.6B", 90), ("bfloat16", "Qwen3-0.6B", 89), ("float16", "Qwen3-0.6B", 75))
ALL = tuple(product(("bfloat16", "float16", "float32"), MODELS, SHARED))
OF_8_BITS = ", pages of 8 bits"
MOST_STACK = {"decode_kernel": 128, "prefill_kernel": 128}  # bytes of a thread; of other kernels none
MOST_STACK |= {name + OF_8_BITS: 192 for name in MOST_STACK}  # scales take registers, too
IN_FLOAT32 = 3  # times as many
QUERIES, LENGTHS = [1, 1, 33], [600, 40, 300]  # two requests decode and one runs a prompt: each kernel is launched


def compiled(arch: int, dtype: torch.dtype, config: ModelConfig) -> list[Compiled]:
    """Return what a step of this model launches on that GPU; decode also with the other tiles that a GPU may prefer.

    A card with 99 KB of shared memory gets them only from its line in a table: there they need not fit, nor in float32.
    """
    with pretended_gpu(arch) as rows:
        launch_elementwise(config, dtype)
        if arch >= 80:  # below, attention is torch's: see common.attention
            launch_attention(config, dtype, Tile(), rows)
    small = SHARED[arch] == SHARED[89]
    for tile in TILES[1:] if arch >= 80 and (dtype.itemsize == 2 or small) else ():
        with pretended_gpu(arch) as more:
            launch_attention(config, dtype, tile, more)
        fit = (one for one in more if not small or (dtype.itemsize == 2 and one.shared <= SHARED[arch]))
        rows += [one for one in fit if one.kernel.startswith("decode_kernel")]
    return rows


def launch_elementwise(config: ModelConfig, dtype: torch.dtype) -> None:
    """Launch what one layer of a step has beside products and attention, and the sampler."""
    H, H_kv, D, hidden = config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size
    N = sum(QUERIES)
    _, positions, slots = torch.zeros(3, N, dtype=torch.int64)  # as a stage's Batch makes them: rows of one tensor
    x, residual = torch.zeros(2, N, hidden, dtype=dtype)
    add_norm(None, residual, torch.ones(hidden, dtype=dtype), 1e-6)
    add_norm(x, residual, torch.ones(hidden, dtype=dtype), 1e-6)
    norm = torch.ones(D, dtype=dtype) if config.qk_norm else None
    qkv, cos = torch.zeros(N, (H + 2 * H_kv) * D, dtype=dtype), torch.zeros(64, D)
    rotation = Rotation(positions, cos, cos, norm, norm, 1e-6, H, H_kv)
    torch.cat(rotation.heads(qkv), dim=1)
    pages = torch.zeros(4, 16, H_kv, D, dtype=dtype)
    TritonAttention(dtype).write(*rotation.heads(qkv)[1:], pages, pages, slots)
    silu_mul(torch.zeros(N, 2 * config.intermediate_size, dtype=dtype))
    linear = nn.Linear(hidden, 64, dtype=dtype)
    for rows in (1, 2, FEW_ROWS):
        apply_linear(linear, x[:rows])
    logits = torch.zeros(len(QUERIES), config.vocab_size, dtype=dtype)
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2)):
        draw_tokens(logits, [params] * 3, [0.5] * 3)


def launch_attention(config: ModelConfig, dtype: torch.dtype, tile: Tile, rows: list[Compiled]) -> None:
    """Launch the write to pages, decode and prefill of one layer, with pages of this type and of 8 bits.

    rows: what has been compiled; what is for 8 bits says so in its name.
    """
    H, H_kv, D, page_size = config.num_heads, config.num_kv_heads, config.head_dim, 16
    heads = torch.zeros(sum(QUERIES), H + 2 * H_kv, D, dtype=dtype)
    q, k, v = heads.split([H, H_kv, H_kv], dim=1)
    tables = [[0] * -(-length // page_size) for length in LENGTHS]
    batch = PagedBatch.pack(QUERIES, LENGTHS, tables, torch.zeros(len(heads), dtype=torch.int64), page_size)
    attention = TritonAttention(dtype, tile)
    for width, stored in ((D, dtype), (D + SCALE_BYTES, torch.int8)):
        pages, before = torch.zeros(4, page_size, H_kv, width, dtype=stored), len(rows)
        attention.write(k, v, pages, pages, batch.slot_mapping)
        attention.attend(q, pages, pages, attention.prepare(batch))
        if stored is torch.int8:
            rows[before:] = [one._replace(kernel=one.kernel + OF_8_BITS) for one in rows[before:]]


def prove(short: bool) -> Iterator[str]:
    """Yield what is wrong, one sentence each. Unless `short`, print what each kernel needs, as lines of CSV."""
    count, cases = 0, SHORT if short else ALL
    for dtype, name, arch in cases:
        config = read_config(find_checkpoint(name, with_weights=False))
        for one in compiled(arch, DTYPES[dtype], config):
            where, count = f"sm_{arch},{dtype},{name},{one.kernel}", count + 1
            registers, stack = registers_and_stack(one.cubin)
            if not short:
                print(f"{where},{registers} registers,{stack} bytes of stack,{one.shared} of shared memory")
            yield from (f"{where}: {reason}" for reason in faults(one, stack, arch, dtype))
    print(f"{count} kernels compiled, on {', '.join(sorted({f'sm_{arch}' for *_, arch in cases}))}")


def faults(one: Compiled, stack: int, arch: int, dtype: str) -> Iterator[str]:
    """Yield what must not be."""
    if one.shared > SHARED[arch]:
        yield f"{one.shared} bytes of shared memory, and a block may have {SHARED[arch]}"
    most = MOST_STACK.get(one.kernel, 0) * (IN_FLOAT32 if dtype == "float32" else 1)
    if stack > most:
        yield f"it spills: the stack takes {stack} bytes, and may take {most}"

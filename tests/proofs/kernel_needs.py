"""Every kernel compiles for real GPUs, fits and hardly spills, and waits if it is launched early.

What one layer of a step launches is compiled, with the shapes of the bundled configs. A kernel's stack is what its
registers did not hold. Only attention, whose tiles fill the registers, may have one: a few numbers in each thread, and
more in float32, which is not what a GPU serves in.

With programmatic dependent launch the order of memory accesses is the kernels' own duty: before the instruction that
waits for the kernel ahead (griddepcontrol.wait, ACQBULK in the GPU's own language) nothing may be read that this one
writes, nor written that it reads. CUDA promises that behind it all of that kernel has ended and can be seen. So what is
to be proven is in the machine code: the wait stands before every access to global memory, and no branch leads past it.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product
from unittest.mock import patch

import torch
from pretended_gpu import Compiled, instructions, pretended_gpu, registers_and_stack

from common.attention import PagedBatch
from common.attention.triton_backend import TILES, Tile, TritonAttention
from common.fused import triton_launch
from common.fused.triton_kernels import Rotation, add_norm, silu_mul
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.loader.device import DTYPES
from common.model import ModelConfig
from common.sampling import SamplingParams
from common.sampling_kernels import draw_tokens

# Shared memory that one block may have, in bytes (CUDA programming guide, table of compute capabilities): on a T4, an
# A100, an L4 or RTX 4090, an H100 or H200, a B200, an RTX 5090.
SHARED = {75: 64 << 10, 80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
MODELS = ("Qwen3-0.6B", "target", "Qwen3-8B", "Qwen2.5-14B", "TinyLlama-1.1B", "draft")
# Cases: type, model, GPU, and whether kernels are launched early.
EARLY = tuple(("bfloat16", "Qwen3-0.6B", arch, True) for arch in (90, 100, 120))
SHORT = (("bfloat16", "Qwen3-0.6B", 89, False), ("float16", "Qwen3-0.6B", 75, False), EARLY[0])
ALL = (*product(("bfloat16", "float16", "float32"), MODELS, SHARED, (False,)), *EARLY)
MOST_STACK = {"decode_kernel": 128, "prefill_kernel": 128}  # bytes of a thread; of other kernels none
IN_FLOAT32 = 3  # times as many
QUERIES, LENGTHS = [1, 1, 33], [600, 40, 300]  # two requests decode and one runs a prompt: each kernel is launched
WAIT = "ACQBULK"
GLOBAL = re.compile(r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|UTMA\w*|UBLK\w*|UBLKCP)(\.|\s)")
BRANCH = re.compile(r"(BRA|BRX|JMP|JMX|CALL|RET|EXIT|BSYNC|WARPSYNC)(\.|\s|$)")
DEPENDENT = {"add_norm_kernel", "norm_rotate_kernel", "silu_mul_kernel", "decode_kernel", "combine_kernel"}


def compiled(arch: int, dtype: torch.dtype, config: ModelConfig) -> list[Compiled]:
    """Return what a step of this model launches on that GPU; decode also with the other tiles that a GPU may prefer.

    A card with 99 KB of shared memory gets them only from its line in a table: there they need not fit, nor in float32.
    """
    with pretended_gpu(arch) as rows:
        launch_elementwise(config, dtype)
        if arch >= 80:  # below, attention is torch's: see common.attention
            launch_attention(config, dtype, Tile())
    small = SHARED[arch] == SHARED[89]
    for tile in TILES[1:] if arch >= 80 and (dtype.itemsize == 2 or small) else ():
        with pretended_gpu(arch) as more:
            launch_attention(config, dtype, tile)
        fit = (one for one in more if not small or (dtype.itemsize == 2 and one.shared <= SHARED[arch]))
        rows += [one for one in fit if one.kernel == "decode_kernel"]
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
    logits = torch.zeros(len(QUERIES), config.vocab_size, dtype=dtype)
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2)):
        draw_tokens(logits, [params] * 3, [0.5] * 3)


def launch_attention(config: ModelConfig, dtype: torch.dtype, tile: Tile) -> None:
    """Launch the write to pages, decode and prefill of one layer."""
    H, H_kv, D, page_size = config.num_heads, config.num_kv_heads, config.head_dim, 16
    heads = torch.zeros(sum(QUERIES), H + 2 * H_kv, D, dtype=dtype)
    q, k, v = heads.split([H, H_kv, H_kv], dim=1)
    tables = [[0] * -(-length // page_size) for length in LENGTHS]
    batch = PagedBatch.pack(QUERIES, LENGTHS, tables, torch.zeros(len(heads), dtype=torch.int64), page_size)
    attention, pages = TritonAttention(dtype, tile), torch.zeros(4, page_size, H_kv, D, dtype=dtype)
    attention.write(k, v, pages, pages, batch.slot_mapping)
    attention.attend(q, pages, pages, attention.prepare(batch))


def prove(short: bool) -> Iterator[str]:
    """Yield what is wrong, one sentence each. Unless `short`, print what each kernel needs, as lines of CSV."""
    count, waiting, cases = 0, 0, SHORT if short else ALL
    for dtype, name, arch, early in cases:
        config = read_config(find_checkpoint(name, with_weights=False))
        with patch.dict(triton_launch.dependent, {torch.device("cpu"): early}):
            kernels = compiled(arch, DTYPES[dtype], config)
        if early and (missing := DEPENDENT - {one.kernel for one in kernels}):
            yield f"sm_{arch}: not launched early: {', '.join(sorted(missing))}"
        for one in kernels:
            where, waits = f"sm_{arch},{dtype},{name},{one.kernel}", early and one.kernel in DEPENDENT
            count, waiting = count + 1, waiting + waits
            registers, stack = registers_and_stack(one.cubin)
            if not short:
                print(f"{where},{registers} registers,{stack} bytes of stack,{one.shared} of shared memory")
            reasons = [*faults(one, stack, arch, dtype), *(too_early(instructions(one.cubin)) if waits else [])]
            yield from (f"{where}: {reason}" for reason in reasons)
    archs = ", ".join(sorted({f"sm_{arch}" for _, _, arch, _ in cases}))
    print(f"{count} kernels compiled, on {archs}; {waiting} of them are launched early, and wait")


def faults(one: Compiled, stack: int, arch: int, dtype: str) -> Iterator[str]:
    """Yield what must not be."""
    if one.shared > SHARED[arch]:
        yield f"{one.shared} bytes of shared memory, and a block may have {SHARED[arch]}"
    most = MOST_STACK.get(one.kernel, 0) * (IN_FLOAT32 if dtype == "float32" else 1)
    if stack > most:
        yield f"it spills: the stack takes {stack} bytes, and may take {most}"


def too_early(code: Sequence[str]) -> Iterator[str]:
    """Yield why these instructions may touch memory too early."""
    if WAIT not in code:
        yield "it does not wait for the kernel before it"
    for line in code[: code.index(WAIT) if WAIT in code else 0]:
        if GLOBAL.match(line):
            yield f"{line!r} comes before it waits"
        if BRANCH.match(line):
            yield f"{line!r} may lead past the place where it waits"

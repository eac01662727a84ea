"""Every kernel compiles for real GPUs, fits into their shared memory, and spills no more than the table says.

What one layer of a step launches is compiled, with the shapes of the bundled configs. What each
kernel needs is compared with `triton-<version>.csv`, which `--write` makes: one row for each GPU, type, head dimension
and kernel, the most over all models. A stack that has grown means that a kernel spills where it did not, or spills
more. Another version of Triton allocates registers otherwise, so for a version without a table only the limits count.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from pretended_gpu import Compiled, pretended_gpu

from common.attention import PagedBatch
from common.attention.triton_backend import TILES, Tile, TritonAttention
from common.fused.triton_kernels import Rotation, add_norm, silu_mul
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.loader.device import DTYPES
from common.model import ModelConfig
from common.sampling_kernels import draw_plain

# Shared memory that one block may have, in bytes (CUDA programming guide, table of compute capabilities).
SHARED = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
ARCHS = (75, 80, 89, 90, 100, 120)  # T4, A100, L4 and RTX 4090, H100 and H200, B200, RTX 5090
MODELS = ("Qwen3-0.6B", "target", "Qwen3-8B", "Qwen2.5-14B", "TinyLlama-1.1B", "draft")
DTYPES_FIRST = ("bfloat16", "float16", "float32")  # what is used most comes first
SHORT = (("bfloat16", "Qwen3-0.6B", 90), ("bfloat16", "Qwen3-0.6B", 89), ("float16", "Qwen3-0.6B", 75))
TABLE = Path(__file__).with_name(f"triton-{triton.__version__}.csv")
QUERIES, LENGTHS = [1, 1, 33], [600, 40, 300]  # two requests decode and one runs a prompt: each kernel is launched


class Place(NamedTuple):
    """What a row of the table is about."""

    gpu: str  # sm_90 is compute capability 9.0
    dtype: str
    head_dim: int
    kernel: str


class Needs(NamedTuple):
    """registers of a thread, bytes of its stack, bytes of a block's shared memory."""

    registers: int
    stack: int
    shared: int


def compile_all(short: bool) -> Iterator[dict[Place, Needs]]:
    """Config by config what each place has needed until then, the most over all models; `short` takes a few."""
    found: dict[Place, Needs] = {}
    for dtype, name, arch in SHORT if short else product(DTYPES_FIRST, MODELS, ARCHS):
        config = read_config(find_checkpoint(name, with_weights=False))
        for one in compiled(arch, DTYPES[dtype], config):
            place = Place(f"sm_{arch}", dtype, config.head_dim, one.kernel)
            needs = Needs(one.registers, one.stack, one.shared)
            found[place] = Needs(*map(max, needs, found.get(place, needs)))
        yield found


def compiled(arch: int, dtype: torch.dtype, config: ModelConfig) -> list[Compiled]:
    """What a step of this model launches on that GPU; decode also with the other tiles that a GPU may prefer."""
    with pretended_gpu(arch) as rows:
        launch_elementwise(config, dtype)
        if arch >= 80:  # below, attention is torch's: see common.attention
            launch_attention(config, dtype, Tile())
    if arch >= 80 and dtype.itemsize == 2:
        for tile in TILES[1:]:
            with pretended_gpu(arch) as more:
                launch_attention(config, dtype, tile)
            rows += [one._replace(kernel=f"decode_kernel {tile.block_n} {tile.warps} {tile.stages}")
                     for one in more if one.kernel == "decode_kernel"]  # fmt: skip
    return rows


def launch_elementwise(config: ModelConfig, dtype: torch.dtype) -> None:
    """What one layer of a step launches beside products and attention, and the sampler."""
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
    draw_plain(torch.zeros(len(QUERIES), config.vocab_size, dtype=dtype), [1.0] * 3, [0.5] * 3)


def launch_attention(config: ModelConfig, dtype: torch.dtype, tile: Tile) -> None:
    """The write to pages, decode and prefill of one layer."""
    H, H_kv, D, page_size = config.num_heads, config.num_kv_heads, config.head_dim, 16
    heads = torch.zeros(sum(QUERIES), H + 2 * H_kv, D, dtype=dtype)
    q, k, v = heads.split([H, H_kv, H_kv], dim=1)
    tables = [[0] * -(-length // page_size) for length in LENGTHS]
    batch = PagedBatch.pack(QUERIES, LENGTHS, tables, torch.zeros(len(heads), dtype=torch.int64), page_size)
    attention, pages = TritonAttention(dtype, tile), torch.zeros(4, page_size, H_kv, D, dtype=dtype)
    attention.write(k, v, pages, pages, batch.slot_mapping)
    attention.attend(q, pages, pages, attention.prepare(batch))


def faults(found: dict[Place, Needs], known: dict[Place, Needs]) -> Iterator[str]:
    """Yield what must not be, one sentence each. known: the committed table, {} where there is none."""
    for place, needs in found.items():
        where, most = " ".join(map(str, place)), SHARED[int(place.gpu.removeprefix("sm_"))]
        if needs.shared > most:
            yield f"{where}: {needs.shared} bytes of shared memory, and a block may have {most}"
        if known and place not in known:
            yield f"{where}: it is not in {TABLE.name}; make that again with --all --write"
        elif known and needs.stack > known[place].stack:
            yield f"{where}: the stack takes {needs.stack} bytes, and took {known[place].stack}: it spills"


def read_table() -> dict[Place, Needs]:
    """Return the committed table of this version of Triton; {} if there is none."""
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.reader(file)][1:]
    return {Place(gpu, dtype, int(D), kernel): Needs(*map(int, needs)) for gpu, dtype, D, kernel, *needs in rows}


def write_table(found: dict[Place, Needs]) -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*Place._fields, *Needs._fields))
        writer.writerows((*place, *needs) for place, needs in sorted(found.items(), key=lambda item: item[0]))


def prove(short: bool, write: bool = False) -> Iterable[str]:
    """The proof; what is wrong, one sentence each."""
    known, found = read_table(), {}
    for found in compile_all(short):
        if write:  # an interrupted run leaves a table of what it has compiled
            known |= found
            write_table(known)
    said = f"compared with {TABLE.name}" if known else f"no table for triton {triton.__version__}, so spills unchecked"
    print(f"{len(found)} kernels compiled ({said}), on {', '.join(sorted({place.gpu for place in found}))}")
    return faults(found, known)

"""How long do the Triton kernels between the products take on this device, beside the operations that they replace?

Method. Medians of replayed CUDA graphs, where the gaps between kernels are the GPU's own (`median_seconds`). Two layers
without attention, in plain PyTorch, by torch.compile, and with the course's kernels. (smoke.py has attention.) The
floor is the bytes to move over the bandwidth of a copy. The seconds of a variant's first call are told as well:
torch.compile compiles again in every row, Triton has its kernels from the first row on.

Expectation. A kernel that does in one pass what happens between matrix products takes what a copy of its bytes takes.
What layers compute for many tokens takes longer than their bytes, and "products alone" says how long.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.attention import Attention, PagedBatch, choose_attention
from common.attention.triton_backend import TILES, Tile, TritonAttention
from common.bench.ceilings import copy_bytes_per_second
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.timing import inputs_beyond_cache, median_seconds
from common.fused import fuse
from common.fused.triton_launch import why_not_triton
from common.loader import find_checkpoint
from common.loader.config import first_sentence, read_config
from common.loader.weights import empty_model, randomize_weights
from common.model import ModelConfig
from common.transfers import synchronize

SIZES = {
    "models": ["Qwen3-8B"],
    "tokens": [1, 256],  # in a pass; few, since every row compiles something
    "compiler": "inductor",  # the backend of torch.compile
    "samples": 30,
}
TINY = {"models": ["draft"], "tokens": [2], "compiler": "eager", "samples": 1}
LAYERS, VOCABULARY = 2, 16
LIBRARY = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
PAGE_SIZES = {"torch": 16, "flash": 256}  # torch's flash attention takes no smaller one


class Case(NamedTuple):
    """One row: functions that do the same, and take the same arguments. "compiled" is still to pass torch.compile."""

    operation: str
    tokens: int  # in the step
    nbytes: int  # what every variant has to move: weights, and what goes in and comes out, once
    arguments: Callable[[], tuple]  # the next of the inputs that take turns
    variants: dict[str, Callable]
    missing: dict[str, str]  # variants that cannot run, and why


def measure(settings: Settings, sizes: dict) -> Figures:
    """Return the bandwidth, and a row for each operation and number of tokens. ValueError where Triton cannot run."""
    device, dtype = settings.place()
    if (reason := why_not_triton(device)) is not None:
        raise ValueError(f"the kernels cannot be measured here: {reason}")
    bandwidth, rows = copy_bytes_per_second(device), []
    for name in [settings.model] if settings.model else sizes["models"]:
        config = read_config(find_checkpoint(name, with_weights=False))
        rows += rows_of(
            name, (layers_case(config, N, device, dtype) for N in sizes["tokens"]), bandwidth, device, sizes
        )
    return {"copy_bytes_per_second": bandwidth, "rows": rows}


def rows_of(model: str, cases: Iterable[Case], bandwidth: float, device: torch.device, sizes: dict) -> list[dict]:
    """Return a row for each case, with the times of its variants. bandwidth: of a copy, in bytes per second."""
    rows = []
    for case in cases:
        row = {"model": Path(model).name, "operation": case.operation, "tokens": case.tokens, "bytes": case.nbytes}
        rows.append(row | {"floor_us": 1e6 * case.nbytes / bandwidth} | times_of(case, device, sizes))
    return rows


@torch.inference_mode()
def times_of(case: Case, device: torch.device, sizes: dict) -> dict[str, dict]:
    """Return by variant microseconds of a call, seconds of the first one, and for those that fail the reason."""
    inputs = [case.arguments() for _ in range(inputs_beyond_cache(case.nbytes, device))]
    times, first_calls, missing = {}, {}, dict(case.missing)
    for name, function in case.variants.items():
        if name == "compiled":
            torch.compiler.reset()  # it gives up compiling a function for more than a few shapes
            function = torch.compile(function, fullgraph=True, dynamic=False, backend=sizes["compiler"])
        try:
            start = time.perf_counter()
            function(*inputs[0])
            synchronize(device)
            first_calls[name] = time.perf_counter() - start
            # A variant that compiled again for the next input, or gave up, would not be what its name says.
            with torch.compiler.set_stance("fail_on_recompile"):
                times[name] = 1e6 * median_seconds(function, device, inputs, repeats=sizes["samples"])
        except Exception as error:  # neither Triton nor torch.compile has a common class for what it refuses
            missing[name] = first_sentence(error)
    return {"us": times, "first_call_s": first_calls, "missing": missing}


def layers_case(config: ModelConfig, N: int, device: torch.device, dtype: torch.dtype) -> Case:
    """Return a case: a pass over N tokens through two layers, in which attention returns its queries."""
    model = empty_model(replace(config, num_layers=LAYERS, vocab_size=VOCABULARY), device, dtype)
    randomize_weights(model)
    fused = fuse(model)

    def arguments() -> tuple:
        return tuple(torch.randint(most, (N,), device=device) for most in (VOCABULARY, config.context_length))

    def products(token_ids, positions):
        x = model.embedding(token_ids)
        for block in model.blocks:
            x = block.attention.output(block.attention.qkv(x)[:, : config.num_heads * config.head_dim])
            x = block.mlp.down(block.mlp.gate_up(x)[:, : config.intermediate_size])
        return x

    def outputs(model, token_ids, positions):
        kept = []  # a compiler would leave out k and v if nothing used them
        return model(token_ids, positions, lambda layer, *qkv: kept.append(qkv) or qkv[0]), kept

    def plain(*arguments):
        return outputs(model, *arguments)

    nbytes = sum(parameter.nbytes for parameter in model.blocks.parameters())
    nbytes += LAYERS * 2 * N * config.hidden_size * dtype.itemsize
    variants = {"products alone": products, "eager": plain, "compiled": plain, "triton": partial(outputs, fused)}
    return Case("two layers", N, nbytes, arguments, variants, {})


def attention_case(
    config: ModelConfig, B: int, context: int, device: torch.device, dtype: torch.dtype, tiles: Sequence[Tile] = TILES
) -> Case:
    """Return a case: one token of each of B requests looks at `context` tokens. PyTorch's kernels find K and V of a
    request in one piece, not in pages."""
    H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
    room = -(-context // 256) * 256  # tokens in the pages of each request, whatever the size of a page

    def arguments() -> tuple:
        return tuple(
            torch.randn(shape, device=device, dtype=dtype) for shape in ((B, H, D), *2 * [(B * room, H_kv, D)])
        )

    def decode(backend: Attention, page_size: int = 16) -> Callable:
        order = torch.randperm(B * room // page_size, generator=torch.Generator().manual_seed(0))  # pages lie anywhere
        tables = order.view(B, -1)[:, : -(-context // page_size)].tolist()
        slots = torch.zeros(B, dtype=torch.int64, device=device)  # nothing is written
        plan = backend.prepare(PagedBatch.pack([1] * B, [context] * B, tables, slots, page_size))
        return lambda q, k, v: backend.attend(q, k.unflatten(0, (-1, page_size)), v.unflatten(0, (-1, page_size)), plan)

    variants, missing = {}, {}
    for name, page_size in PAGE_SIZES.items():
        try:
            variants[name] = decode(choose_attention(name, device, dtype, D, page_size)[0], page_size)
        except ValueError as error:
            missing[name] = str(error)
    variants |= {f"triton {list(tile)}": decode(TritonAttention(dtype, tile)) for tile in tiles}
    if device.type == "cuda":
        variants |= {kind.name.lower(): partial(in_one_piece, kind, B, context, room) for kind in LIBRARY}
    nbytes = (2 * context * H_kv + 2 * H) * D * B * dtype.itemsize
    return Case(f"attention, D={D}", B, nbytes, arguments, variants, missing)


def in_one_piece(kind: SDPBackend, B: int, context: int, room: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with a kernel of PyTorch; k and v have `room` places for each of B requests, the first `context` full."""
    k, v = (x.unflatten(0, (B, room))[:, :context].transpose(1, 2) for x in (k, v))
    with sdpa_kernel(kind):
        return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


def report(document: dict) -> dict[str, list]:
    return {"kernels": table_of(document["sides"]["times"]["rows"]["values"][0])}


def table_of(rows: Sequence[dict]) -> list[tuple]:
    """Return a line for each row and variant."""
    lines = [("operation", "tokens", "variant", "microseconds", "times the floor", "first call, s")]
    for row in rows:
        for name, us in row["us"].items():
            figures = f"{us:.1f}", f"{us / row['floor_us']:.1f}", f"{row['first_call_s'][name]:.2f}"
            lines.append((f"{row['model']}: {row['operation']}", row["tokens"], name, *figures))
        lines += [
            (f"{row['model']}: {row['operation']}", row["tokens"], *why, "", "") for why in row["missing"].items()
        ]
    return lines


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"times": measure},
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 35},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

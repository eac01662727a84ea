"""Is every kernel right at the shapes of real models, and how fast does decode attention read K and V?

Method. Two layers of a model with the course's kernels, K and V in pages, beside the same layers in plain PyTorch: what
they return and what they have written. The same attention with pages that lie behind 2^31 elements: the same bits. The
sampler beside its definition. Then decode attention by tile and number of requests, beside PyTorch's own kernels on K
and V that lie in one piece; the floor is the bytes over the bandwidth of a copy.

Expectation. Differences are those of rounding. A large batch reads K and V at the rate of a copy, but for a fifth.
"""

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from common import sampling
from common.attention import Attention, PagedBatch, choose_attention
from common.attention.triton_backend import TILES, Tile
from common.bench.ceilings import ceilings, read_bytes_per_second
from common.bench.gpu.kernels import attention_case, rows_of, table_of
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.timing import median_seconds
from common.fused import fuse
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.loader.device import DTYPES
from common.loader.weights import empty_model, randomize_weights
from common.model import ModelConfig
from common.request import Request
from common.sampling import Drawn, SamplingParams, draw, probabilities, uniform

PAGE_SIZE, LAYERS, VOCABULARY = 16, 2, 64
# Tokens in the step and of the sequence of each request: those that decode first, then prompts and pieces of prompts.
MIXED = [[1, 700], [1, 33], [300, 300], [40, 900], [700, 1500]]
MORE_TILES = (Tile(32, 4, 4), Tile(64, 4, 6), Tile(64, 8, 3), Tile(128, 8, 3), Tile(128, 8, 5))
ALLOWED = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}  # relative errors, of norms; NaN is too large
SAMPLED = {"plain": {}, "top-k and top-p": {"top_k": 20, "top_p": 0.95}}  # the second is what Qwen3 asks for
RATES = ("copy_bytes", "read_bytes", "matmul_flops")
SAME_DRAWS = 0.96  # of all draws: some numbers lie at the border between two tokens
SIZES = {
    "model": "Qwen3-0.6B",
    "models": ["Qwen3-0.6B", "Qwen3-8B", "TinyLlama-1.1B"],
    "types": [*ALLOWED],
    "decode": [64, 2000],  # requests, and the most tokens of one
    "mixed": MIXED,
    "elements": 2**31,  # of a layer's K before the far pages
    "rows": 64,  # of logits
    "attention": {"Qwen3-0.6B": [1, 8, 64, 256], "TinyLlama-1.1B": [64]},  # requests
    "context": 1024,
    "samples": 30,
}
TINY = {
    "model": "draft",
    "models": ["draft"],
    "types": ["float32"],
    "decode": [4, 40],
    "mixed": [[1, 33], [9, 40]],
    "elements": 2**14,
    "rows": 3,
    "attention": {"draft": [2]},
    "context": 20,
    "samples": 1,
}


def config_of(model: str) -> ModelConfig:
    return read_config(find_checkpoint(model, with_weights=False))


def judged(errors: dict[str, float], allowed: Callable[[str], float]) -> Figures:
    """Return the errors, and a sentence for each that is larger than what is allowed for its name."""
    large = {name: error for name, error in errors.items() if not error <= allowed(name)}  # NaN, too
    return {"errors": errors, "wrong": [f"{name}: {x:.1e}, allowed {allowed(name):.0e}" for name, x in large.items()]}


def random_batch(sizes: list[list[int]], device: torch.device) -> PagedBatch:
    """Return a batch of requests with these (tokens in the step, tokens of the sequence), their pages in any order."""
    counts, lengths = (list(column) for column in zip(*sizes, strict=True))
    needed = [-(-length // PAGE_SIZE) for length in lengths]
    order = iter(torch.randperm(sum(needed), generator=torch.Generator().manual_seed(0)).tolist())
    tables = [[next(order) for _ in range(count)] for count in needed]
    places = [
        table[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE
        for table, (count, length) in zip(tables, sizes, strict=True)
        for p in range(length - count, length)
    ]
    return PagedBatch.pack(counts, lengths, tables, torch.tensor(places, device=device), PAGE_SIZE)


def random_pages(config: ModelConfig, lengths: list[int], like: Tensor) -> Tensor:
    """Return K and V, [2, pages, PAGE_SIZE, H_kv, D], of what a batch with sequences of these lengths needs."""
    pages = sum(-(-length // PAGE_SIZE) for length in lengths)
    shape = (2, pages, PAGE_SIZE, config.num_kv_heads, config.head_dim)
    return torch.randn(shape, device=like.device).to(like.dtype)


@torch.inference_mode()
def measure_layers(settings: Settings, sizes: dict) -> Figures:
    """Return the relative error of each model, type and batch: of two layers, and of the K and V that they write."""
    device, errors = settings.place()[0], {}
    count, longest = sizes["decode"]
    decode = [[1, 1 + i * 613 % longest] for i in range(count)]
    for name in sizes["models"]:
        config = replace(config_of(name), num_layers=LAYERS, vocab_size=VOCABULARY)
        for dtype in sizes["types"]:
            plain = empty_model(config, device, DTYPES[dtype])
            randomize_weights(plain)
            for kind, requests in (("decode", decode), ("mixed", sizes["mixed"])):
                batch = random_batch(requests, device)
                ends = zip(batch.host_query_lengths, batch.host_lengths, strict=True)
                positions = torch.tensor([p for n, end in ends for p in range(end - n, end)], device=device)
                token_ids = torch.randint(VOCABULARY, positions.shape, device=device)
                before = [random_pages(config, batch.host_lengths, plain.norm.weight) for _ in range(LAYERS)]
                found = []
                for model, backend in ((plain, "torch"), (fuse(plain), "triton")):
                    attention, _ = choose_attention(backend, device, DTYPES[dtype], config.head_dim, PAGE_SIZE)
                    pages = [each.clone() for each in before]
                    found.append((model(token_ids, positions, attend_to(pages, attention, batch)), torch.stack(pages)))
                pairs = {"layers": (0, 0.0), "pages": (1, torch.stack(before))}
                for what, (i, start) in pairs.items():  # what is written, as pages have more that is not
                    actual, expected = (each[i].double() - start for each in reversed(found))
                    errors[f"{name}, {dtype}, {kind}, {what}"] = ((actual - expected).norm() / expected.norm()).item()
    return judged(errors, lambda name: ALLOWED[name.split(", ")[1]])


def attend_to(pages: list[Tensor], attention: Attention, batch: PagedBatch) -> Callable:
    """Return what a model asks for: K and V of each layer are written to its pages, then read from there."""
    plan = attention.prepare(batch)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention.write(k, v, *pages[layer], batch.slot_mapping)
        return attention.attend(q, *pages[layer], plan)

    return attend


@torch.inference_mode()
def measure_far_pages(settings: Settings, sizes: dict) -> Figures:
    """Return whether pages behind so many elements of their layer's K are written and read as those at the front."""
    device, dtype = settings.place()
    config, near = config_of(sizes["models"][0]), random_batch(sizes["mixed"], device)
    attention, _ = choose_attention("triton", device, dtype, config.head_dim, PAGE_SIZE)
    pages = random_pages(config, near.host_lengths, torch.empty(0, device=device, dtype=dtype))
    shift = sizes["elements"] // pages[0, 0].numel()
    far_pages = [torch.empty(shift + len(each), *each.shape[1:], device=device, dtype=dtype) for each in pages]
    for far, each in zip(far_pages, pages, strict=True):
        far[shift:] = each
    far_slots = near.slot_mapping + shift * PAGE_SIZE
    far = replace(near, page_tables=near.page_tables + shift, slot_mapping=far_slots)
    q, k, v = (
        torch.randn(len(far_slots), heads, config.head_dim, device=device).to(dtype)
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )
    outs = [attend_to([pool], attention, batch)(0, q, k, v) for pool, batch in ((pages, near), (far_pages, far))]
    same = torch.equal(*outs) and all(torch.equal(a, b[shift:]) for a, b in zip(pages, far_pages, strict=True))
    return {"elements": far_pages[0].numel(), "wrong": [] if same else ["pages far behind are not read as others are"]}


@torch.inference_mode()
def measure_sampler(settings: Settings, sizes: dict) -> Figures:
    """Return the share of draws that are the definition's, and microseconds of all, by what the requests ask for."""
    device, dtype = settings.place()
    logits = 3 * torch.randn(sizes["rows"], settings.config().vocab_size, device=device)
    logits, errors, us = logits.to(dtype), {}, {}
    for name, options in SAMPLED.items():
        params = [SamplingParams(temperature=0.6 if i % 8 else 0.0, seed=i, **options) for i in range(len(logits))]
        rows = [Request("smoke", [0], each, None, frozenset(), 1) for each in params]
        expected = draw(probabilities(logits, rows), [uniform(row.seed, 0) for row in rows])
        with patch.object(sampling, "has_kernels", return_value=True):  # on a CPU, too, in Triton's interpreter
            errors[name] = (Drawn(logits, rows).token_ids != expected).float().mean().item()
            seconds = median_seconds(Drawn, device, [(logits, rows)], graph=False, repeats=min(5, sizes["samples"]))
        us[name] = 1e6 * seconds
    return {"us": us} | judged(errors, lambda name: 1 - SAME_DRAWS)


def measure_attention(settings: Settings, sizes: dict) -> Figures:
    """Return what the device can do at best, and a row for each model and number of requests."""
    device, dtype = settings.place()
    rates = ceilings(device, dtype)
    reads, rows = read_bytes_per_second(device, 2**32 if device.type == "cuda" else 2**20), []
    for name, batches in sizes["attention"].items():
        config, tiles = config_of(name), (*TILES, *MORE_TILES)
        cases = (attention_case(config, B, sizes["context"], device, dtype, tiles) for B in batches)
        rows += rows_of(name, cases, rates["copy_bytes_per_second"], device, sizes)
    return rates | {"read_bytes_per_second": reads, "rows": rows}


def report(document: dict) -> dict[str, list]:
    """Return a line for each thing that was compared, and the table of decode attention."""
    sides, lines = document["sides"], [("compared", "error")]
    for side in sides.values():
        for errors in side.get("errors", {}).get("values", []):
            lines += [(name, f"{error:.1e}") for name, error in errors.items()]
    tables = {"smoke: errors": lines}
    if "sampler" in sides:
        us = sides["sampler"]["us"]["values"][0]
        tables["smoke: the sampler"] = [("rows", "microseconds"), *((name, f"{x:.0f}") for name, x in us.items())]
    if "attention" in sides:
        copy, read, products = (f"{sides['attention'][f'{name}_per_second']['median']:.3e}" for name in RATES)
        name = f"smoke: copies {copy} and reads {read} bytes, and computes {products} FLOPs per second"
        tables[name] = table_of(sides["attention"]["rows"]["values"][0])
    return tables


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={
        "layers": measure_layers,
        "far pages": measure_far_pages,
        "sampler": measure_sampler,
        "attention": measure_attention,
    },
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 45},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)

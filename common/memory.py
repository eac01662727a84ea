"""Memory for keys and values: how much there is, and how it is taken."""

import math
import re

import numpy
import torch
from torch import Tensor

from .attention.triton_backend import MOST_PIECES
from .loader import Loaded
from .model import ModelConfig

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
CPU_KV_BYTES = 2**30
WORKSPACE = 64 * 2**20  # of matrix products, and what the first launch of each kernel takes
GRAPH = 4 * 2**20  # one recording of a few hundred launches; there is one for every 16 requests
GPU_SHARE = 0.9  # of the GPU's memory that this process may fill: others may be there, too, and fragments are lost


def parse_bytes(text: str | int) -> int:
    """ "512M", "1.5GiB", "2g" or a number of bytes; ValueError for anything else. Units are powers of 1,024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"a size of memory is a number with K, M or G, such as 512M or 1.5G, not {text!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def kv_bytes_left(loaded: Loaded, tokens: int, rows: int, share: float = 1.0) -> int:
    """Bytes that keys and values may take beside everything else.

    On a CPU, where memory is shared with all that runs there, a fixed modest amount. On a GPU what a step of the
    largest size leaves: `tokens` tokens go through the model, `rows` of them are scored, and the peak is measured. If
    several ranks share the model, it is what the one with the least has left.

    share: the part of the GPU that this process may fill, weights and a step's peak included. Processes that share a
    GPU load their models at the same time, so what is free at this moment says little about what the others will take.
    """
    if loaded.device.type != "cuda":
        return CPU_KV_BYTES
    before = torch.cuda.memory_allocated(loaded.device)
    try:
        step = peak_of_step(loaded, tokens, rows)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"the GPU has no memory for a step of {tokens} tokens that scores {min(rows, tokens)} of them: give a "
            "smaller --token-budget or --max-running"
        ) from error
    free, total = torch.cuda.mem_get_info(loaded.device)
    allowed = share * GPU_SHARE * total - before
    there = free - share * (1 - GPU_SHARE) * total
    # Ranks that share a model take the same decisions only if they have as many pages.
    left = loaded.shard.least(int(min(allowed, there) - step - loaded.reserved_bytes), loaded.device)
    if left <= 0:
        part = "" if share == 1 else f", of which this worker may fill {share:.0%} and has filled {before / 2**30:.1f}"
        raise ValueError(
            f"the GPU has no memory left for keys and values: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
            f"{part}, a step of {tokens} tokens takes {step / 2**30:.1f} and graphs "
            f"{loaded.reserved_bytes / 2**30:.1f}; give a smaller --token-budget, --max-running or --dtype bfloat16"
        )
    return left


@torch.inference_mode()
def peak_of_step(loaded: Loaded, tokens: int, rows: int) -> int:
    """The most bytes that a step uses beside weights and K/V: of `tokens` tokens, the first `rows` of them scored."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(loaded.device)
    before = torch.cuda.memory_allocated(loaded.device)
    ids = torch.zeros(tokens, dtype=torch.int64, device=loaded.device)
    hidden = loaded.model(ids, ids, lambda layer, q, k, v: q)
    loaded.model.logits(hidden[:rows]).double().softmax(-1)  # as the sampler does it where there are filters
    step = torch.cuda.max_memory_allocated(loaded.device) - before
    del hidden
    torch.cuda.empty_cache()
    return step


def graph_bytes(config: ModelConfig, dtype: torch.dtype, requests: int) -> int:
    """Bytes that graphs for batches of up to so many requests take, estimated from above.

    They share the memory of the largest: the partial results of attention, the logits twice (as they are computed, and
    where they are read), and a few activations. Beside it lie the workspace of matrix products, and the launches.
    """
    partial = MOST_PIECES * config.num_heads * (config.head_dim + 1) * 4
    widths = 4 * config.hidden_size + 3 * config.intermediate_size
    widths += 2 * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return requests * (partial + (2 * config.vocab_size + widths) * dtype.itemsize) + WORKSPACE + GRAPH * requests // 16


def slots_that_fit(loaded: Loaded, budget: int) -> int:
    """How many slots fit into `budget` bytes; ValueError if not even one does."""
    context = loaded.config.context_length
    slot_bytes = context * loaded.config.kv_bytes_per_token(loaded.dtype)
    if slot_bytes > budget:
        raise ValueError(
            f"one slot for a context of {context} tokens takes {slot_bytes / 2**30:.1f} GiB, and K and V may take "
            f"{budget / 2**30:.1f} GiB: give a larger --kv-memory, or use stage 05, which has pages in place of slots"
        )
    return budget // slot_bytes


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """`torch.zeros`; on a CPU without writing them: the system gives a page of zeros when it is first touched."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)).view(dtype).view(shape)

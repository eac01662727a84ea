"""Memory for keys and values: how much is free, and how it is allocated."""

import math
import mmap
import re

import torch
from torch import Tensor

from .attention.triton_backend import MAX_PIECES
from .errors import InvalidInput, counted, shortened
from .loader import Loaded
from .model import ModelConfig
from .request import Request
from .sampling import SamplerOutput, SamplingParams
from .transfers import current

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
CPU_KV_BYTES = 2**30
WORKSPACE = 64 * 2**20  # bytes, for matrix products and the first launch of each kernel
GRAPH = 4 * 2**20  # bytes of one recording of a few hundred launches; there is one for every 16 requests
GPU_SHARE = 0.9  # of the GPU's memory; the rest is for fragmentation and for other processes
# The sampler takes the most memory for these: all filters, and penalties with greedy tokens.
COSTLIEST = (
    SamplingParams(temperature=1.0, top_p=0.9, min_p=0.01, presence_penalty=1.0, logprobs=20),
    SamplingParams(temperature=0.0, presence_penalty=1.0, logprobs=20),
)


def parse_bytes(text: str | int) -> int:
    """Return the bytes of "512M", "1.5GiB", "2g" or a number; units are powers of 1,024. Else raise InvalidInput."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if not found:
        raise InvalidInput(
            f"{shortened(text)} is not a size of memory: give a number with K, M or G, such as 512M or 1.5G"
        )
    return int(float(found[1]) * UNITS[found[2].upper()])


def kv_bytes_left(loaded: Loaded, tokens: int, rows: int, share: float = 1.0, drawn: int = 0) -> int:
    """Return how many bytes keys and values may take. Raise InvalidInput if a GPU has none left.

    On a CPU return CPU_KV_BYTES: other programs use the same memory. On a GPU run the largest step, `tokens` tokens
    with `rows` of them sampled, and return what its peak leaves. If several ranks share the model, return the minimum
    over all ranks.

    share: the part of the GPU that this process may fill, weights and a step's peak included. The first of several
    workers on a GPU finds all of it free, so free memory alone does not say what the others will take.
    drawn: how many rows have a draft token with the distribution that it was drawn from, in float64.
    """
    if loaded.device.type != "cuda":
        return CPU_KV_BYTES
    before = torch.cuda.memory_allocated(loaded.device)
    try:
        with current(loaded.device):  # the sampler's kernels launch there, as in a step
            step = peak_of_step(loaded, tokens, rows) + 8 * loaded.config.vocab_size * min(drawn, tokens)
    except torch.OutOfMemoryError as error:
        raise InvalidInput(
            f"the GPU has no memory for a step of {tokens} tokens that scores {min(rows, tokens)} of them: give a "
            "smaller --token-budget or --max-running"
        ) from error
    free, total = torch.cuda.mem_get_info(loaded.device)
    allowed = share * GPU_SHARE * total - before
    available = free - share * (1 - GPU_SHARE) * total
    # Ranks schedule alike only if they have the same number of pages.
    left = loaded.shard.min_over_ranks(int(min(allowed, available) - step - loaded.reserved_bytes), loaded.device)
    if left <= 0:
        part = "" if share == 1 else f", of which this worker may fill {share:.0%} and has filled {before / 2**30:.1f}"
        raise InvalidInput(
            f"the GPU has no memory left for keys and values: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
            f"{part}, a step of {tokens} tokens takes {step / 2**30:.1f} and graphs "
            f"{loaded.reserved_bytes / 2**30:.1f}; give a smaller --token-budget, --max-running or --dtype bfloat16"
        )
    return left


@torch.inference_mode()
def peak_of_step(loaded: Loaded, tokens: int, rows: int) -> int:
    """Return the most bytes that a step uses beside weights and K/V: of `tokens` tokens, the first `rows` sampled."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(loaded.device)
    before = torch.cuda.memory_allocated(loaded.device)
    ids = torch.zeros(tokens, dtype=torch.int64, device=loaded.device)
    hidden = loaded.model(ids, ids, lambda layer, q, k, v: q)
    logits = loaded.model.logits(hidden[:rows])
    for params in COSTLIEST:
        SamplerOutput(logits, [Request("profile", [0], params, None, frozenset(), 1)] * len(logits))
    step = torch.cuda.max_memory_allocated(loaded.device) - before
    del hidden, logits
    torch.cuda.empty_cache()
    return step


def graph_bytes(config: ModelConfig, dtype: torch.dtype, requests: int, models: int = 1) -> int:
    """Estimate from above how many bytes the graphs for batches of up to `requests` requests take.

    They share the memory of the largest: the partial results of attention, the logits as they are computed, and a few
    activations. Each model (also a draft model, and one with adapters) has its recordings, and a buffer for its logits.
    The workspace of matrix products is added.
    """
    partial = MAX_PIECES * config.num_heads * (config.head_dim + 1) * 4
    widths = 4 * config.hidden_size + 3 * config.intermediate_size
    widths += 2 * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    logits = config.vocab_size * dtype.itemsize
    shared = requests * (partial + logits + widths * dtype.itemsize) + WORKSPACE
    return shared + models * (requests * logits + GRAPH * requests // 16)


def slots_that_fit(loaded: Loaded, budget: int) -> int:
    """Return how many slots fit into `budget` bytes. Raise InvalidInput if none does."""
    if loaded.config.kv_int8:
        raise InvalidInput("slots hold K and V in the model's type: for 8 bits use stage 05 or a later one")
    context = loaded.config.context_length
    slot_bytes = context * loaded.config.kv_bytes_per_token(loaded.dtype)
    if slot_bytes > budget:
        raise InvalidInput(
            f"one slot for a context of {context} tokens takes {slot_bytes / 2**20:,.1f} MiB, and K and V may take "
            f"{budget / 2**20:,.1f}: give a larger --kv-memory, or use stage 05, which has pages in place of slots"
        )
    return budget // slot_bytes


def pages_that_fit(budget: int, page_size: int, token_bytes: int) -> int:
    """Return how many pages of `page_size` tokens fit into `budget` bytes. Raise InvalidInput if none does."""
    if page_size < 1:
        raise InvalidInput(f"page_size must be at least 1 token, not {page_size}")
    if budget < page_size * token_bytes:
        raise InvalidInput(
            f"one page of {counted(page_size, 'token')} takes {page_size * token_bytes:,} bytes, and K and V may take "
            f"{budget:,}: give a larger --kv-memory or a smaller --page-size"
        )
    return budget // (page_size * token_bytes)


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return zeros as `torch.zeros` does; on a CPU the system provides each page of zeros at its first use.

    The pages are small: the system takes up to a millisecond to fill a huge one, of 2 MiB, and K and V of all layers
    would reach the end of theirs in the same step, which would take 20 to 60 ms longer. Raise MemoryError if there is
    not enough.
    """
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # not on Windows
    try:
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, **private)
    except (OSError, OverflowError) as error:
        raise MemoryError from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)

"""How many tokens a step takes at most if `--token-budget` does not say so, and how many of them a chunk costs.

A request that decodes waits for its next token while a step runs, pieces of prompts included: so a step should not take
longer than an objective. But a small budget costs throughput, since each pass reads all weights, and leaves little room
for prompts beside the requests that decode. On a CPU the budget is as large as the objective allows, so it depends on
the machine, the model and its type.

A token's products take equally long wherever it stands; attention takes longer, the more tokens stand before it: on two
cores a token of the bundled model behind 2,000 others takes some five times as long as the first. So a chunk has a
price in tokens, and the measured budget is what a step may spend. A scheduler knows nothing of this, it counts tokens:
`pace` shortens or puts off what would cost more.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .attention import PagedBatch, choose_attention
from .errors import InvalidInput
from .loader import Loaded
from .transfers import synchronize

MAX_BUDGET = 2048  # on a CPU
# On a GPU a pass of MEASURED_ON_GPU tokens is measured. Python launches the kernels of a prompt one by one: that takes
# the host of an H200 12 ms for 28 layers, however many tokens there are; with 2,048 the GPU idles most of the time.
MAX_BUDGET_ON_GPU, MEASURED_ON_GPU = 16384, 8192
MIN_BUDGET = 64
# The objective: shorter pauses are not felt as such (Miller 1968, Response Time in Man-Computer Conversational
# Transactions). Many prompts at once also interrupt fewer answers when few steps take them all.
STEP_SECONDS = 0.1
TIMES = 3  # the fastest counts, since whatever disturbs a pass makes it longer
PROMPTS = 1 / 8  # of the budget, at least, is for prompts: decoding requests with long texts must not starve them
SEEN, KV_BYTES = 1024, 2**26  # attention is measured after this many tokens, over this many bytes: no cache holds them


@dataclass(frozen=True)
class ChunkPrice:
    """What a chunk takes of the token budget: one for each of its tokens, and what attention costs in such tokens.

    pair: for one token to attend to one other. read: to read the K and V of one token, once for the chunk. With both 0
    a budget counts tokens and nothing else.
    """

    pair: float = 0.0
    read: float = 0.0

    def __call__(self, start: int, tokens: int) -> float:
        """Return the price of a sequence's `tokens` tokens from number `start` on."""
        return tokens + self.read * (start + tokens) + self.pair * tokens * (start + tokens / 2)

    def most(self, start: int, budget: float) -> int:
        """Return how many tokens from number `start` on have at most this price; at least 1, so that each advances."""
        # Solve pair / 2 * n**2 + (1 + read + pair * start) * n = budget - read * start for n.
        left, linear = max(budget - self.read * start, 0.0), 1 + self.read + self.pair * start
        return max(int(2 * left / (linear + math.sqrt(linear**2 + 2 * self.pair * left))), 1)

    def left(self, budget: int, starts: list[int]) -> float:
        """Return what a budget leaves for prompts beside decoding requests, with one token each at these numbers."""
        decodes = len(starts) * self(0, 1) + (self.read + self.pair) * sum(starts)
        return min(budget - len(starts), max(budget - decodes, budget * PROMPTS, 1))


def pace(scheduler: Any, price: ChunkPrice) -> None:
    """Have the steps of a scheduler cost no more than its budget: `schedule` counts tokens, then chunks are cut."""
    schedule = scheduler.schedule

    def paced(*arguments: Any, **options: Any) -> list[Any]:
        chunks = schedule(*arguments, **options)
        turns = {name: turn for turn, name in enumerate(scheduler.running)}

        def turn(chunk: Any) -> int:
            return turns[chunk.sequence.request.request_id]

        # Stage 04 returns chunks in the order of slots, the others in that in which they are to run.
        in_turn = sorted(chunks, key=turn) if hasattr(scheduler, "free_slots") else chunks
        late = cut(in_turn, price, scheduler.token_budget, turn)
        return [chunk for chunk in chunks if chunk not in late]

    scheduler.schedule = paced


def cut(chunks: list[Any], price: ChunkPrice, budget: int, age: Callable[[Any], int]) -> list[Any]:
    """Shorten chunks to what the budget buys, in their order, and return those that have to wait for the next step.

    Whoever decodes has its token, draft tokens have at most half of the rest beside prompts, and the oldest prompt
    advances, whatever passes it. age: the lowest is that of the oldest.
    """
    decodes, prompts = [], []
    for chunk in chunks:
        (decodes if chunk.completes and len(chunk.token_ids) == 1 else prompts).append(chunk)
    left = price.left(budget, [chunk.start for chunk in decodes])
    for_drafts = left / 2 if prompts else left
    for chunk in decodes:
        if getattr(chunk, "room", 0):  # stages 07 and 08
            own = price(chunk.start, 1)
            chunk.room = min(chunk.room, price.most(chunk.start, own + for_drafts) - 1)
            drafts = price(chunk.start, 1 + chunk.room) - own
            for_drafts, left = for_drafts - drafts, left - drafts
    oldest, late = min(prompts, key=age, default=None), []
    kept = price(oldest.start, 1) if oldest else 0  # for the oldest, until it has its turn
    spent = False
    for chunk in prompts:
        if chunk is oldest:
            kept = 0
        elif spent or left - kept < price(chunk.start, 1):
            late.append(chunk)
            continue
        bought = price.most(chunk.start, left - kept)
        if bought < len(chunk.token_ids):
            chunk.token_ids, chunk.completes, spent = chunk.token_ids[:bought], False, True
        left -= price(chunk.start, len(chunk.token_ids))
    return late


def check_token_budget(max_running: int, token_budget: int) -> None:
    """Raise InvalidInput unless a step has a token for each request that may run, and at least one may."""
    if max_running < 1:
        raise InvalidInput(f"max_running must be at least 1, not {max_running}")
    if token_budget < max_running:
        raise InvalidInput(f"token_budget is {token_budget}: it must be at least max_running, {max_running}")


def choose_token_budget(
    loaded: Loaded, default: int, max_running: int, attention: str | None = None
) -> tuple[int, ChunkPrice | None, str]:
    """Return the budget, the price of a chunk if attention was measured, and one line that says why.

    On a CPU halve MAX_BUDGET as often as necessary for a pass of STEP_SECONDS, but not below MIN_BUDGET, or
    max_running, since each running request needs its token. On a GPU measure a long pass, and halve MAX_BUDGET_ON_GPU
    down to MAX_BUDGET. Ranks that share a model must choose alike: they take the engine's default, on a GPU MAX_BUDGET.
    attention: the backend that reads pages, as for `choose_attention`; None: K and V lie in slots (stage 04).
    """
    on_gpu = loaded.device.type == "cuda"
    if loaded.shard.ranks > 1:
        return max(MAX_BUDGET if on_gpu else default, max_running), None, ""
    if on_gpu:
        pass_seconds(loaded, MEASURED_ON_GPU, times=1)
        seconds, budget = pass_seconds(loaded, MEASURED_ON_GPU), MAX_BUDGET_ON_GPU
        while budget > MAX_BUDGET and seconds * budget / MEASURED_ON_GPU > STEP_SECONDS:
            budget //= 2
        note = f"token_budget={budget} (a pass of {MEASURED_ON_GPU} tokens takes {1e3 * seconds:.0f} ms)"
        return max(budget, max_running), None, note
    sizes = [max(MAX_BUDGET, max_running)]
    while sizes[-1] // 2 >= max(MIN_BUDGET, max_running):
        sizes.append(sizes[-1] // 2)
    budget = size = sizes.pop()
    pass_seconds(loaded, 1, times=1)  # not measured: the first pass may load or compile kernels, which takes longer
    seconds = 0.0
    while sizes and (seconds := pass_seconds(loaded, size := sizes.pop())) <= STEP_SECONDS:
        budget = size
    # A token of the budget stands for its share of the objective, or for its measured time if that is longer.
    price = chunk_price(loaded, attention, max(STEP_SECONDS / budget, seconds / size))
    why = []
    if seconds:
        why = [f"a pass of {size} tokens takes {1e3 * seconds:.0f} ms, a step should take {1e3 * STEP_SECONDS:.0f}"]
    if price.pair:
        why.append(f"a token behind {1 / price.pair:,.0f} others counts as two")
    return budget, price, f"token_budget={budget}" + f" ({'; '.join(why)})" * bool(why)


@torch.inference_mode()
def pass_seconds(loaded: Loaded, tokens: int, times: int = TIMES) -> float:
    """Return the seconds of a pass over this many tokens without attention; stop measuring once the answer is clear.

    times: how many passes, at most. On a CPU the seconds are this thread's processor time, in which the pauses that
    other programs cause do not count.
    """
    ids, fastest = torch.zeros(tokens, dtype=torch.int64, device=loaded.device), math.inf
    clock = time.perf_counter if loaded.device.type == "cuda" else time.thread_time
    for _ in range(times):
        start = clock()
        loaded.model(ids, ids, lambda layer, q, k, v: q)
        synchronize(loaded.device)
        fastest = min(fastest, clock() - start)
        if not STEP_SECONDS < fastest < 4 * STEP_SECONDS:
            break
    return fastest


@torch.inference_mode()
def chunk_price(loaded: Loaded, attention: str | None, token_seconds: float) -> ChunkPrice:
    """Measure attention in all layers: of requests that decode, which read K and V for a token each, and of a chunk.

    token_seconds: the time that one token of the budget stands for. attention: see `choose_token_budget`.
    """
    config = loaded.config
    seen = min(SEEN, config.context_length)
    requests = max(1, KV_BYTES * config.num_layers // (seen * config.kv_bytes_per_token(loaded.dtype)))
    make, tokens = attend_slots if attention is None else attend_pages, min(64, seen)

    def seconds(requests: int, tokens: int) -> float:
        attend, times = make(loaded, attention, requests, tokens, seen), []
        for _ in range(TIMES + 1):  # the first also loads the kernel
            start = time.thread_time()
            attend()
            times.append(time.thread_time() - start)
        return min(times) * config.num_layers / token_seconds

    pair = seconds(1, tokens) / (tokens * (seen - tokens / 2))
    return ChunkPrice(pair, max(seconds(requests, 1) / (requests * seen) - pair, 0.0))


def attend_pages(loaded: Loaded, attention: str, requests: int, tokens: int, seen: int) -> Callable[[], object]:
    """Return the attention of one layer: of the last `tokens` of `seen` tokens of each request, which lie in pages."""
    config, size = loaded.config, 16
    backend, _ = choose_attention(attention, loaded.device, loaded.dtype, config.head_dim)
    tables = torch.arange(requests * -(-seen // size)).view(requests, -1)
    k = torch.zeros(tables.numel(), size, config.num_kv_heads, config.kv_width, dtype=loaded.kv_dtype)
    v, q = k.clone(), torch.ones(requests * tokens, config.num_heads, config.head_dim, dtype=loaded.dtype)
    slots = torch.zeros(len(q), dtype=torch.int64)
    plan = backend.prepare(PagedBatch.pack([tokens] * requests, [seen] * requests, tables.tolist(), slots, size))
    return lambda: backend.attend(q, k, v, plan)


def attend_slots(loaded: Loaded, _: None, requests: int, tokens: int, seen: int) -> Callable[[], object]:
    """As `attend_pages`, of requests in neighbouring slots: one call, in which heads of a group stand side by side."""
    config = loaded.config
    k = torch.ones(requests, config.num_kv_heads, seen, config.head_dim, dtype=loaded.dtype)
    v, rows = k.clone(), tokens * config.num_heads // config.num_kv_heads
    q = torch.ones(requests, config.num_kv_heads, rows, config.head_dim, dtype=loaded.dtype)
    mask = torch.zeros(requests, 1, rows, seen, dtype=loaded.dtype)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

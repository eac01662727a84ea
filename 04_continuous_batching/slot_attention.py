"""NEW in 04: attention of many requests at once, each to its own slot, which is read in place.

Padding makes requests alike: those in neighbouring slots share one call of the attention kernel, padded to the longest
of them, and a mask hides what is beyond each one's length. Where that would read much more than it needs, the batch is
cut into several calls.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from common.transfers import to_device

from .scheduler import Chunk

# A call costs as much time as reading K and V of this many tokens: a few hundred on a CPU, thousands on a GPU. Padding
# beyond that costs more than one more call.
CALL_COSTS_TOKENS = {"cpu": 300, "cuda": 4096}


@dataclass(frozen=True)
class AttentionCall:
    """The rows of the batch that one call takes: `tokens` of each of the requests in neighbouring slots."""

    rows: slice
    slots: slice
    requests: int
    tokens: int
    longest: int  # tokens of the longest sequence among them, those of this step included
    # [B, 1, tokens * H / H_kv, longest]: 0 where a query may look, -inf where it may not. Rows go token by token, and
    # the query heads of a group stand side by side.
    mask: Tensor


def plan_calls(chunks: list[Chunk], group_size: int, device: torch.device, dtype: torch.dtype) -> list[AttentionCall]:
    """Plan the calls that attend for a whole batch. group_size: how many query heads share a K/V head.

    A call costs CALL_COSTS_TOKENS of this device; masks are made on it.
    """
    calls, start = [], 0
    for together in share_calls(chunks, CALL_COSTS_TOKENS[device.type]):
        tokens, first = len(together[0].token_ids), together[0].sequence.slot
        past = [chunk.start for chunk in together]
        longest = max(past) + tokens
        # A token sees its own place and those before it. That also hides the padding behind shorter sequences.
        places = to_device(past, torch.int64, device)[:, None] + torch.arange(tokens, device=device)
        unseen = torch.arange(longest, device=device) > places[:, None, :, None]  # [B, 1, tokens, longest]
        mask = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, float("-inf"))
        rows, slots = slice(start, start + len(together) * tokens), slice(first, first + len(together))
        mask = mask.repeat_interleave(group_size, dim=2)
        calls.append(AttentionCall(rows, slots, len(together), tokens, longest, mask))
        start = rows.stop
    return calls


def attend_to_slots(q: Tensor, keys: Tensor, values: Tensor, calls: list[AttentionCall]) -> Tensor:
    """Attend, call by call. q is [N, H, D], keys and values [slots, H_kv, context length, D]; return [N, H, D]."""
    kv_heads, group_size = keys.shape[1], q.shape[1] // keys.shape[1]
    attended = torch.empty_like(q)
    for call in calls:
        # The query heads that share a K/V head stand beside the tokens: K and V are read once for the group.
        queries = q[call.rows].view(call.requests, call.tokens, kv_heads, group_size, -1)  # [B, n, H_kv, H / H_kv, D]
        queries = queries.permute(0, 2, 1, 3, 4).flatten(2, 3)  # [B, H_kv, n * H / H_kv, D]
        k, v = (past[call.slots, :, : call.longest] for past in (keys, values))  # [B, H_kv, S, D], views: no copy
        result = F.scaled_dot_product_attention(queries, k, v, attn_mask=call.mask)
        result = result.unflatten(2, (call.tokens, group_size)).transpose(1, 2)  # [B, n, H_kv, H / H_kv, D]
        attended[call.rows] = result.reshape(-1, *q.shape[1:])
    return attended


def share_calls(chunks: list[Chunk], call_costs: int) -> list[list[Chunk]]:
    """Group the chunks that share a call: neighbouring slots, equally many tokens, and little padding.

    One more request may bring no more padding than a call of its own would cost, in tokens.
    """
    groups: list[list[Chunk]] = []
    longest = 0  # the longest past in the newest group
    for chunk in chunks:
        if groups:
            group, last = groups[-1], groups[-1][-1]
            padding = longest - chunk.start if chunk.start < longest else (chunk.start - longest) * len(group)
            neighbours = chunk.sequence.slot == last.sequence.slot + 1
            alike = len(chunk.token_ids) == len(last.token_ids)
            if neighbours and alike and padding <= call_costs:
                group.append(chunk)
                longest = max(longest, chunk.start)
                continue
        groups.append([chunk])
        longest = chunk.start
    return groups

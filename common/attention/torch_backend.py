"""The reference: gather the pages of each sequence into one tensor, then masked attention. Any device, any type."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from common.transfers import to_device

from .batch import PagedBatch
from .int8 import dequantize, quantize

# One more call costs as much as reading this many tokens, so more padding than that does not pay; as in stage 04.
CALL_COSTS_TOKENS = {"cpu": 300, "cuda": 4096}


@dataclass
class GatheredRows:
    """The rows that one call takes: `tokens` of each of B requests, whose pages are gathered and padded.

    mask: `[B, 1, tokens * H / H_kv, P * page_size]`, 0 where seen, -inf elsewhere. The first layer makes it.
    """

    rows: Tensor  # [B * tokens] int64
    requests: int
    tokens: int
    pages: Tensor  # [B * P] int64
    seen: Tensor  # [B, 1, tokens, P * page_size] bool: which places a query may look at
    mask: Tensor | None = None


class TorchAttention:
    name, capturable = "torch", False

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self.dtype, self.call_costs = dtype, CALL_COSTS_TOKENS[device.type]

    def prepare(self, batch: PagedBatch) -> list[GatheredRows]:
        lengths, decodes = batch.host_lengths, batch.decodes
        # Sorted, so that a request's neighbours are about as long as it is.
        order = sorted(range(decodes), key=lengths.__getitem__)
        groups = [[order[i] for i in run] for run in runs([lengths[i] for i in order], self.call_costs)]
        groups += [[i] for i in range(decodes, len(lengths))]
        return [self._part(batch, group) for group in groups]

    def _part(self, batch: PagedBatch, group: list[int]) -> GatheredRows:
        device, tokens = batch.lengths.device, batch.host_query_lengths[group[0]]
        index = to_device(group, torch.int64, device)
        places = torch.arange(tokens, device=device)
        rows = batch.query_starts[index, None] + places  # [B, tokens]
        positions = batch.lengths[index, None] - tokens + places  # [B, tokens]
        longest = max(batch.host_lengths[i] for i in group)
        pages = batch.page_tables[index, : -(-longest // batch.page_size)]  # [B, P]
        seen = torch.arange(pages.shape[1] * batch.page_size, device=device) <= positions[:, None, :, None]
        return GatheredRows(rows.flatten().long(), len(group), tokens, pages.flatten().long(), seen)

    def write(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        write_rows(k, v, k_pages, v_pages, slot_mapping)

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: list[GatheredRows]) -> Tensor:
        out, heads, groups = torch.empty_like(q), k_pages.shape[2], q.shape[1] // k_pages.shape[2]
        for part in plan:
            # The query heads that share a K/V head stand beside the tokens: K and V are read once for the group.
            queries = q[part.rows].view(part.requests, part.tokens, heads, groups, -1)  # [B, n, H_kv, H / H_kv, D]
            queries = queries.permute(0, 2, 1, 3, 4).flatten(2, 3)  # [B, H_kv, n * H / H_kv, D]
            k, v = (
                gathered(pages, part.pages, self.dtype).view(part.requests, -1, heads, q.shape[2]).transpose(1, 2)
                for pages in (k_pages, v_pages)
            )  # [B, H_kv, S, D], a copy
            if part.mask is None:
                mask = torch.zeros(part.seen.shape, dtype=self.dtype, device=q.device)
                part.mask = mask.masked_fill_(~part.seen, float("-inf")).repeat_interleave(groups, dim=2)
            result = F.scaled_dot_product_attention(queries, k, v, attn_mask=part.mask)
            result = result.unflatten(2, (part.tokens, groups)).transpose(1, 2)  # [B, n, H_kv, H / H_kv, D]
            out[part.rows] = result.reshape(-1, *q.shape[1:])
        return out


def gathered(pages: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return those of the pages, `[len(numbers), page_size, H_kv, D]`, widened if they are of 8 bits."""
    found = pages.index_select(0, numbers)
    return dequantize(found, dtype) if found.dtype == torch.int8 else found


def write_rows(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
    """As `Attention.write`."""
    if k_pages.dtype == torch.int8:
        k, v = quantize(k), quantize(v)
    k_pages.flatten(0, 1).index_copy_(0, slot_mapping, k)
    v_pages.flatten(0, 1).index_copy_(0, slot_mapping, v)


def runs(lengths: list[int], call_costs: int) -> list[list[int]]:
    """Cut ascending lengths into runs of neighbours, and return their indices.

    One more request in a run never costs more padding, in tokens, than a call of its own would cost.
    """
    cut: list[list[int]] = []
    for i, length in enumerate(lengths):
        if cut and (length - lengths[i - 1]) * len(cut[-1]) <= call_costs:
            cut[-1].append(i)
        else:
            cut.append([i])
    return cut


def create(device: torch.device, dtype: torch.dtype, head_dim: int) -> TorchAttention:
    return TorchAttention(device, dtype)

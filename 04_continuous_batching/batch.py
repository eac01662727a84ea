"""NEW in 04: what one step runs, as the model and attention want it: all tokens of all requests, laid end to end.

The model treats every token by itself, so for it a batch is a list of tokens and their positions. Attention is where
requests differ: each has its own past, in its own slot, of its own length. Padding makes them alike. Requests in
neighbouring slots share one call of the attention kernel, padded to the longest of them, and where that would read much
more than it needs, the batch is cut into several calls.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass

import torch
from torch import Tensor

from .scheduler import Chunk

# What reading so many tokens' K and V takes, one more call takes too: padding beyond that does not pay. Both
# figures are small; what they must not be is the other's: on a GPU a call takes as long as reading thousands of tokens.
CALL_COSTS_TOKENS = {"cpu": 48, "cuda": 4096}


@dataclass(frozen=True)
class Part:
    """Rows of the batch that one attention call takes: `requests` neighbouring slots, `tokens` rows of each."""

    rows: slice
    slots: slice
    requests: int
    tokens: int
    longest: int  # tokens of the longest sequence among them, those of this step included
    mask: Tensor  # [B, 1, n * H / H_kv, S]: 0 where a query may look, -inf where it may not


class Batch:
    """The ragged batch of one step.

    token_ids, positions, slots: `[N]`, int64. last_rows: for each chunk, in the order given, the row of its last
    token, from which the next token is sampled if nothing else of the sequence is left to run.
    """

    def __init__(self, chunks: List[Chunk], groups: int, device: torch.device, dtype: torch.dtype):
        """groups: how many query heads share a K/V head. Chunks of one token stand in the order of their slots."""
        token_ids, positions, slots = [], [], []
        self.last_rows: list[int] = []
        for chunk in chunks:
            start, count = chunk.sequence.computed, len(chunk.token_ids)
            token_ids += chunk.token_ids
            positions += range(start, start + count)
            slots += [chunk.sequence.slot] * count
            self.last_rows.append(len(token_ids) - 1)
        self.token_ids, self.positions, self.slots = torch.tensor([token_ids, positions, slots], device=device)
        self.parts: list[Part] = []
        row = 0
        for run in runs(chunks, CALL_COSTS_TOKENS[device.type]):
            tokens, first = len(run[0].token_ids), run[0].sequence.slot
            rows = slice(row, row + len(run) * tokens)
            longest = max(chunk.sequence.computed for chunk in run) + tokens
            # A token sees its own place and those before it. That also hides the padding behind shorter sequences.
            seen = torch.arange(longest, device=device) <= self.positions[rows].view(len(run), 1, tokens, 1)
            mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, float("-inf"))
            mask = mask.repeat_interleave(groups, dim=2)
            self.parts.append(Part(rows, slice(first, first + len(run)), len(run), tokens, longest, mask))
            row = rows.stop


def runs(chunks: List[Chunk], call_costs: int) -> list[list[Chunk]]:
    """Cuts the chunks into runs that share an attention call: as many tokens in each, slots that are neighbours, and
    no more padding for the sake of one more request than a call of its own would cost, in tokens."""
    cut: list[list[Chunk]] = []
    for chunk in chunks:
        length = chunk.sequence.computed
        if cut:
            run, last = cut[-1], cut[-1][-1]
            longest = max(other.sequence.computed for other in run)
            padding = longest - length if length < longest else (length - longest) * len(run)
            neighbours = chunk.sequence.slot == last.sequence.slot + 1
            alike = len(chunk.token_ids) == len(last.token_ids)
            if neighbours and alike and padding <= call_costs:
                run.append(chunk)
                continue
        cut.append([chunk])
    return cut

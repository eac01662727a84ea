"""NEW in 04: what one step runs, as the model and attention want it: all tokens of all requests, laid end to end.

The model treats every token by itself, so for it a batch is a list of tokens and their positions. Attention is where
requests differ: each has its own past, in its own slot, of its own length.
"""

from collections.abc import Sequence as List

import torch

from common.transfers import to_device

from .scheduler import Chunk
from .slot_attention import Part, plan_parts


class Batch:
    """The ragged batch of one step.

    token_ids, positions, slots: `[N]`, int64. last_rows: for each chunk, in the order given, the row of its last
    token, from which the next token is sampled if nothing else of the sequence is left to run. plan: what attention
    does in each layer.
    """

    def __init__(self, chunks: List[Chunk], groups: int, device: torch.device, dtype: torch.dtype):
        """Chunks of neighbouring slots stand side by side. groups: how many query heads share a K/V head."""
        token_ids, positions, slots = [], [], []
        self.last_rows: list[int] = []
        for chunk in chunks:
            start, count = chunk.sequence.computed, len(chunk.token_ids)
            token_ids += chunk.token_ids
            positions += range(start, start + count)
            slots += [chunk.sequence.slot] * count
            self.last_rows.append(len(token_ids) - 1)
        self.token_ids, self.positions, self.slots = to_device([token_ids, positions, slots], torch.int64, device)
        self.plan: list[Part] = plan_parts(chunks, groups, device, dtype)

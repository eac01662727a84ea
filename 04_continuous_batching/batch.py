"""NEW in 04: what one step runs, as the model and attention want it: all tokens of all requests, laid end to end.

The model treats every token by itself, so for it a batch is a list of tokens and their positions. Attention is where
requests differ: each has its own past, in its own slot, of its own length.
"""

import torch

from common.transfers import to_device

from .scheduler import Chunk
from .slot_attention import plan_calls


class Batch:
    """The ragged batch of one step.

    token_ids, positions, slots: `[N]`, int64. logits_rows: `[R]`, int64, the rows whose next token is wanted: the last
    one of each chunk that completes its sequence. calls: what attention does in each layer.
    """

    def __init__(self, chunks: list[Chunk], group_size: int, device: torch.device, dtype: torch.dtype):
        """Lay chunks end to end, in the order given. group_size: how many query heads share a K/V head."""
        token_ids, positions, slots, logits_rows = [], [], [], []
        for chunk in chunks:
            count = len(chunk.token_ids)
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + count)
            slots += [chunk.sequence.slot] * count
            # Inside a prompt the next token is known: only a chunk that completes its sequence is scored.
            if chunk.completes:
                logits_rows.append(len(token_ids) - 1)
        self.token_ids, self.positions, self.slots = to_device([token_ids, positions, slots], torch.int64, device)
        self.logits_rows = to_device(logits_rows, torch.int64, device)
        self.calls = plan_calls(chunks, group_size, device, dtype)

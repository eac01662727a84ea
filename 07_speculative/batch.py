"""What one step runs, as the model and attention want it: all tokens of all requests, laid end to end.

The model treats every token by itself, so for it a batch is a list of tokens and their positions. Attention is where
requests differ: each has its own past, in its own pages, of its own length.
"""

from collections.abc import Sequence as List

import torch

from common.attention import Attention, PagedBatch
from common.transfers import to_device

from .scheduler import Chunk


class Batch:
    """The ragged batch of one step.

    token_ids, positions, slots: `[N]`, int64. last_rows: for each chunk, in the order given, the row of its last
    token, from which the next token is sampled if nothing else of the sequence is left to run. plan: what attention
    does in each layer.
    """

    def __init__(self, chunks: List[Chunk], attention: Attention, device: torch.device):
        """Chunks of decoding requests come first."""
        token_ids, positions, slots = [], [], []
        query_lengths, lengths, tables = [], [], []
        self.last_rows: list[int] = []
        for chunk in chunks:
            tokens = chunk.token_ids + chunk.proposal.token_ids  # NEW in 07: proposals are tokens like any others
            start, count = chunk.start, len(tokens)
            token_ids += tokens
            positions += range(start, start + count)
            # NEW in 05: a token lies where the page table says, and attention must know that table.
            slots += chunk.sequence.page_table.slots(start, start + count)
            query_lengths.append(count)
            lengths.append(start + count)
            tables.append(chunk.sequence.page_table.pages)
            self.last_rows.append(len(token_ids) - 1)
        self.token_ids, self.positions, self.slots = to_device([token_ids, positions, slots], torch.int64, device)
        paged = PagedBatch.pack(query_lengths, lengths, tables, self.slots, chunks[0].sequence.page_table.page_size)
        self.plan = attention.prepare(paged)

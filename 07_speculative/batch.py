"""What one step runs, as the model and attention want it: all tokens of all requests, laid end to end.

The model treats every token by itself, so for it a batch is a list of tokens and their positions. Attention is where
requests differ: each has its own past, in its own pages, of its own length.
"""

import torch

from common.attention import PagedBatch
from common.transfers import to_device

from .scheduler import Chunk


class Batch:
    """The ragged batch of one step.

    token_ids, positions: `[N]`, int64. logits_rows: `[R]`, int64, the rows whose next token is wanted: the last one of
    each chunk that completes its sequence, NEW in 07: and those of all its draft tokens.
    paged: where K and V of the tokens go, and where their pasts lie.
    """

    def __init__(self, chunks: list[Chunk], device: torch.device):
        """Lay chunks end to end in their order; `schedule` puts those of one token first, for kernels of one query."""
        token_ids, positions, slot_mapping, logits_rows = [], [], [], []
        query_lengths, lengths, tables = [], [], []
        for chunk in chunks:
            count = chunk.num_tokens
            token_ids += chunk.token_ids + chunk.draft.token_ids  # NEW in 07: draft tokens are tokens like any others
            positions += range(chunk.start, chunk.start + count)
            # A token lies where the page table says, and attention must know that table.
            slot_mapping += chunk.sequence.page_table.slot_mapping(chunk.start, chunk.start + count)
            query_lengths.append(count)
            lengths.append(chunk.start + count)
            tables.append(chunk.sequence.page_table.pages)
            # Inside a prompt the next token is known: only a chunk that completes its sequence is scored.
            if chunk.completes:  # NEW in 07: the token after each draft token is wanted, too
                logits_rows += range(len(token_ids) - 1 - len(chunk.draft.token_ids), len(token_ids))
        lists = [token_ids, positions, slot_mapping]
        self.token_ids, self.positions, slot_mapping = to_device(lists, torch.int64, device)
        self.logits_rows = to_device(logits_rows, torch.int64, device)
        page_size = chunks[0].sequence.page_table.page_size
        self.paged = PagedBatch.pack(query_lengths, lengths, tables, slot_mapping, page_size)

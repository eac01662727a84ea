"""NEW in 07: two ways to draft the next tokens. A wrong draft token costs time and nothing else.

*Prompt lookup* (Saxena, 2023) looks for the last few tokens earlier in the request's own text and takes what followed
them there. It needs no model, and is right whenever an answer quotes its prompt. A *draft model* (Leviathan et al.,
2023) is small, and decodes ahead of the large one, token by token.

The draft model has its own K/V, in a pool with as many pages as the target's. A sequence's page table serves both: page
5 is page 5 in either pool. So a request that shares a prefix, is preempted or ends does so for both at once; what is
kept beside it is how far the draft model has come (`Sequence.draft_computed`), and for a cached page whether it has
computed it (`Node.draft_computed`). It computes when it is asked for draft tokens and not before: while speculation
would not pay, it costs nothing.

Production engines draft with a head on the target's own hidden states (Medusa; EAGLE, Li et al., 2024), which is right
more often than a separate model of its cost, and verify trees of draft tokens in place of one line.
"""

import weakref

import torch
from torch import Tensor

from common.attention import choose_attention
from common.loader import Loaded
from common.sampling import draw, probabilities, sample, uniform

from .batch import Batch
from .kv_cache import KVCache
from .scheduler import Chunk, Sequence
from .speculation import MAX_DRAFT_TOKENS
from .verification import Row, by_rejection


class PromptLookup:
    """Drafts what followed the last four tokens where they occurred before, else the last three or two."""

    reads_prompts = False

    def __init__(self):
        # An entry for each running sequence: it disappears when its sequence does.
        self._indexes: weakref.WeakKeyDictionary[Sequence, NgramIndex] = weakref.WeakKeyDictionary()

    def prepare(self, chunks: list[Chunk]) -> None:
        """Fill the draft of each chunk with what followed the last tokens of its text before, at most `room` tokens.

        Leave no more room than that.
        """
        for chunk in chunks:
            if chunk.room:
                request = chunk.sequence.request
                index = self._indexes.setdefault(chunk.sequence, NgramIndex())
                start = index.find(request.token_ids_between(len(index.tokens), request.num_tokens))
                chunk.draft.token_ids = index.tokens[start : start + chunk.room] if start else []
                chunk.room = len(chunk.draft.token_ids)

    def draft(self, chunks: list[Chunk]) -> None:
        """Keep of each draft what there is room for."""
        for chunk in chunks:
            del chunk.draft.token_ids[chunk.room :]


class NgramIndex:
    """For a growing text: where each run of n tokens has ended last, for n from `shortest` to `longest`."""

    def __init__(self, shortest: int = 2, longest: int = 4):
        self.sizes = range(shortest, longest + 1)
        self.tokens: list[int] = []  # the text
        self.ends: dict[tuple[int, ...], int] = {}

    def find(self, new: list[int]) -> int:
        """Append tokens. Return the place behind the last earlier occurrence of the longest run at the end, or 0."""
        tokens, before = self.tokens, len(self.tokens)
        tokens += new
        for end in range(max(before, 1), len(tokens)):  # The text's own end is no earlier occurrence.
            for n in self.sizes:
                if n <= end:
                    self.ends[tuple(tokens[end - n : end])] = end
        return next((end for n in reversed(self.sizes) if (end := self.ends.get(tuple(tokens[-n:])))), 0)


class DraftModel:
    """A small model with the target's vocabulary. read_budget: tokens of texts that it reads in a step, at most."""

    def __init__(self, loaded: Loaded, num_pages: int, page_size: int, attention: str, read_budget: int):
        self.model, self.device = loaded.model, loaded.device
        self.context_length = loaded.config.context_length
        backend, _ = choose_attention(attention, loaded.device, loaded.dtype, loaded.config.head_dim)
        self.cache = KVCache(loaded, num_pages, page_size, backend)
        self.read_budget = read_budget
        self.reads_prompts = False  # whether it reads prompts, or pieces of them, in this step

    def prepare(self, everyone: list[Chunk]) -> None:
        """Read what the model lacks. Leave room only where it has read a whole text and its context holds the draft."""
        chunks = [chunk for chunk in everyone if chunk.room and self._reaches(chunk)]
        for chunk in chunks:
            self._share_pages(chunk.sequence)
        left, pieces, whole = self.read_budget, [], []
        # The shortest first: most of them lack a token or two. A long one is read in pieces, one piece in each step.
        for chunk in sorted(chunks, key=lambda chunk: chunk.start - chunk.sequence.draft_computed):
            request, start = chunk.sequence.request, chunk.sequence.draft_computed
            stop = min(request.num_tokens, start + left)
            if start == stop:
                break
            completes = stop == request.num_tokens
            pieces.append(Chunk(chunk.sequence, start, request.token_ids_between(start, stop), completes))
            chunk.draft.computed = stop
            left -= stop - start
            if completes:
                whole.append(chunk)
        self.reads_prompts = any(len(piece.token_ids) > MAX_DRAFT_TOKENS + 1 for piece in pieces)
        for chunk, hidden in zip(whole, self._run(pieces) if pieces else [], strict=True):
            chunk.draft.hidden = hidden
        for chunk in everyone:
            chunk.room = 0 if chunk.draft.hidden is None else chunk.room

    def draft(self, chunks: list[Chunk]) -> None:
        """Fill all drafts token by token."""
        going = [chunk for chunk in chunks if chunk.room]
        hidden = torch.stack([chunk.draft.hidden for chunk in going]) if going else None
        while going:
            self._draft_one(going, hidden)
            going = [chunk for chunk in going if len(chunk.draft.token_ids) < chunk.room]
            if going:
                hidden = self._run([self._newest(chunk) for chunk in going])

    def _share_pages(self, sequence: Sequence) -> None:
        """Skip cached pages that were computed for other requests, and note those computed for this one."""
        path, size = sequence.page_table.path, sequence.page_table.page_size
        place = min(sequence.draft_computed // size, len(path))
        while place < len(path) and path[place].draft_computed:
            place += 1
        sequence.draft_computed = max(sequence.draft_computed, place * size)
        while place and not path[place - 1].draft_computed:
            place -= 1
            path[place].draft_computed = True

    def _reaches(self, chunk: Chunk) -> bool:
        """Return whether the text and its draft fit the draft model's context."""
        return chunk.sequence.request.num_tokens + chunk.room <= self.context_length

    def _newest(self, chunk: Chunk) -> Chunk:
        """Count the last draft token as run by the draft model, and return it as a chunk."""
        chunk.draft.computed += 1
        return Chunk(chunk.sequence, chunk.draft.computed - 1, chunk.draft.token_ids[-1:], completes=True)

    def _run(self, chunks: list[Chunk]) -> Tensor:
        """Run the draft model once: `[B, hidden_size]`, of the last token of each chunk that completes its text."""
        batch = Batch(chunks, self.device)
        hidden = self.model(batch.token_ids, batch.positions, self.cache.bind(batch.paged))  # [N, hidden_size]
        return hidden[batch.logits_rows]

    def _draft_one(self, chunks: list[Chunk], hidden: Tensor) -> None:
        """Draw one more draft token for each, with the random number that the sampler takes for this position.

        With the same number, a draft model as good as the target draws the same token, even where chance decides.
        """
        logits = self.model.logits(hidden)  # [B, V]
        rows = [Row.after(chunk.sequence.request, chunk.draft.token_ids) for chunk in chunks]
        if any(by_rejection(chunk.sequence.request) for chunk in chunks):
            q = probabilities(logits, rows)
            token_ids = draw(q, [uniform(row.seed, len(row.token_ids)) for row in rows]).tolist()
        else:
            q, token_ids = [], [sampled.token_id for sampled in sample(logits, rows)]
        for i, (chunk, token_id) in enumerate(zip(chunks, token_ids, strict=True)):
            chunk.draft.token_ids.append(token_id)
            if by_rejection(chunk.sequence.request):
                chunk.draft.probabilities.append(q[i])

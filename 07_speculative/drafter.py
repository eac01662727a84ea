"""NEW in 07: who guesses what comes next. A guess may be wrong at no other cost than time.

Two drafters behind one interface. *Prompt lookup* (Saxena, 2023) looks for the last few tokens earlier in the
request's own text and proposes what followed them there: no model, and right whenever an answer quotes its prompt. A
*draft model* (Leviathan et al., 2023) is a small model that decodes ahead of the large one, token by token.

The draft model has its own K/V, in a pool with as many pages as the target's. A sequence's page table serves both: page
5 is page 5 in either pool. So whoever shares a prefix, is preempted or ends does so for both at once; what is kept
beside it is how far the draft has read (`Sequence.drafted`), and for a cached page whether it has read it. It reads
when it is asked for proposals and not before: while speculation would not pay, it costs nothing.

Production engines draft with a head on the target's own hidden states (Medusa; EAGLE, Li et al., 2024), which guesses
better than a separate model of its cost, and verify trees of proposals in place of one line.
"""

import weakref
from collections.abc import Sequence as List
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor

from common.attention import choose_attention
from common.loader import Loaded, load_model
from common.sampling import draw, probabilities, sample, uniform
from common.transfers import to_device

from .batch import Batch
from .kv_cache import KVCache
from .scheduler import Chunk, Sequence
from .verification import Row, by_rejection


class Drafter(Protocol):
    def propose(self, chunks: List[Chunk]) -> None:
        """Gives each chunk a proposal of at most `chunk.room` tokens; fewer, or none, where there is no good guess."""


class PromptLookup:
    """Proposes what followed the last `longest` tokens where they occurred before, or fewer, down to `shortest`."""

    def __init__(self, longest: int = 4, shortest: int = 2):
        self.longest, self.shortest = longest, shortest
        # Of each running sequence, and gone with it.
        self._indexes: weakref.WeakKeyDictionary[Sequence, NgramIndex] = weakref.WeakKeyDictionary()

    def propose(self, chunks: List[Chunk]) -> None:
        for chunk in chunks:
            if chunk.room:
                request = chunk.sequence.request
                index = self._indexes.setdefault(chunk.sequence, NgramIndex(self.shortest, self.longest))
                if start := index.find(request.all_token_ids):
                    chunk.proposal.token_ids = request.token_ids_between(start, start + chunk.room)


class NgramIndex:
    """Where in a text that grows each run of n tokens has ended last, for n from `shortest` to `longest`."""

    def __init__(self, shortest: int, longest: int):
        self.sizes = range(shortest, longest + 1)
        self.ends: dict[tuple[int, ...], int] = {}
        self.indexed = 0  # the runs that end with one of so many tokens are in `ends`

    def find(self, tokens: list[int]) -> int:
        """The place behind the last earlier occurrence of the longest run that the text ends with; 0: there is none."""
        for end in range(self.indexed + 1, len(tokens)):  # not to the text's own end, which is no earlier occurrence
            for n in self.sizes:
                if n <= end:
                    self.ends[tuple(tokens[end - n : end])] = end
        self.indexed = max(self.indexed, len(tokens) - 1)
        return next((end for n in reversed(self.sizes) if (end := self.ends.get(tuple(tokens[-n:])))), 0)


class DraftModel:
    """A small model with the target's vocabulary. read_budget: tokens of texts that it reads in a step, at most."""

    def __init__(self, loaded: Loaded, num_pages: int, page_size: int, attention: str, read_budget: int):
        self.model, self.device = loaded.model, loaded.device
        self.context_length = loaded.config.context_length
        backend, _ = choose_attention(attention, loaded.device, loaded.dtype, loaded.config.head_dim, page_size)
        self.cache = KVCache(loaded, num_pages, page_size, backend)
        self.read_budget = read_budget

    def propose(self, chunks: List[Chunk]) -> None:
        going, hidden = self._read([chunk for chunk in chunks if chunk.room and self._reaches(chunk)])
        while going:
            self._guess(going, hidden)
            going = [chunk for chunk in going if len(chunk.proposal.token_ids) < chunk.room]
            if going:
                hidden = self._run([self._newest(chunk) for chunk in going])

    def _read(self, chunks: List[Chunk]) -> tuple[list[Chunk], Tensor | None]:
        """What it has not read of the texts. Those read to their end, and `[B, hidden_size]` of their last tokens."""
        left, pieces, whole = self.read_budget, [], []
        # The shortest first: most of them lack a token or two. A long one is read in pieces, in as many steps.
        for chunk in sorted(chunks, key=lambda chunk: chunk.sequence.request.num_tokens - chunk.sequence.drafted):
            request, start = chunk.sequence.request, chunk.sequence.drafted
            stop = min(request.num_tokens, start + left)
            if start == stop:
                break
            pieces.append(Chunk(chunk.sequence, start, request.token_ids_between(start, stop)))
            chunk.sequence.drafted = stop
            left -= stop - start
            if stop == request.num_tokens:
                whole.append(chunk)
        return whole, self._run(pieces)[: len(whole)] if pieces else None

    def _reaches(self, chunk: Chunk) -> bool:
        return chunk.sequence.request.num_tokens + chunk.room <= self.context_length

    def _newest(self, chunk: Chunk) -> Chunk:
        """The last guess, as the next token that the model runs."""
        sequence = chunk.sequence
        sequence.drafted += 1
        return Chunk(sequence, sequence.drafted - 1, chunk.proposal.token_ids[-1:])

    def _run(self, chunks: List[Chunk]) -> Tensor:
        """One pass of the model: `[B, hidden_size]`, for each chunk that of its last token."""
        batch = Batch(chunks, self.cache.attention, self.device)
        hidden = self.model(batch.token_ids, batch.positions, partial(self.cache.attend, batch))  # [N, hidden_size]
        return hidden[to_device(batch.last_rows, torch.int64, self.device)]

    def _guess(self, chunks: List[Chunk], hidden: Tensor) -> None:
        """One more token for each. It takes the number that the sampler would take for this position: then a draft
        model that is as good as the target says the same as the target also where chance decides."""
        logits = self.model.logits(hidden)  # [B, V]
        rows = [Row.after(chunk.sequence.request, chunk.proposal.token_ids) for chunk in chunks]
        if any(by_rejection(chunk.sequence.request) for chunk in chunks):
            q = probabilities(logits, rows)
            token_ids = draw(q, [uniform(row.seed, len(row.token_ids)) for row in rows]).tolist()
        else:
            q, token_ids = [], [sampled.token_id for sampled in sample(logits, rows)]
        for i, (chunk, token_id) in enumerate(zip(chunks, token_ids, strict=True)):
            chunk.proposal.token_ids.append(token_id)
            if by_rejection(chunk.sequence.request):
                chunk.proposal.probabilities.append(q[i])


def load_draft_model(name: str, target: Loaded) -> Loaded | None:
    """The draft model of that name; None for "lookup". "auto" is the bundled one for the bundled target, else "lookup".

    ValueError if it cannot guess the target's tokens, because its vocabulary is another one.
    """
    if name == "auto":
        name = "draft" if target.name in ("bundled", "target") else "lookup"
    if name == "lookup":
        return None
    draft = load_once(name, target.device, target.dtype)
    known = [vocabulary(model) for model in (draft, target)]
    if draft.config.vocab_size != target.config.vocab_size or None not in known and known[0] != known[1]:
        raise ValueError(
            f"the draft model {name} has another vocabulary than {target.name}, and cannot guess its tokens: "
            "give a smaller model of the same family, or --draft lookup"
        )
    return draft


@lru_cache(maxsize=1)
def load_once(name: str, device: torch.device, dtype: torch.dtype) -> Loaded:
    return load_model(name, device=device, dtype=dtype)


def vocabulary(model: Loaded) -> dict[str, int] | None:
    return model.tokenizer.get_vocab() if model.tokenizer else None

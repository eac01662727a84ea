"""Structured output: which tokens a grammar allows next, as one packed bitmask for the batch.

A grammar comes from a JSON schema, a regular expression, a list of choices or a grammar in Lark's notation. llguidance
compiles it, once for all requests that share it, and keeps a request's state. That state is a function of the
request's tokens, so nothing is lost when a request is preempted or begins again on another worker: its tokens are read
again. Each row of the sampler carries its tokens, draft tokens included, so its mask is that of its own state.

    commit: tokens of step n ──> prefetch ── masks of step n + 1, on a thread of its own ──┐
                                 schedule, run the model ───────────────────────────────> sample

vLLM and SGLang have the same parts: a grammar manager, a bitmask, a kernel that applies it.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn.functional import embedding

from .errors import InvalidInput, shortened
from .grammars import compile_grammar, library, try_out
from .transfers import to_device

COMPILED = 64  # grammars that are kept
ANYTHING = -1  # 32 bits that allow 32 tokens

log = logging.getLogger("structured_output")
_pool = ThreadPoolExecutor(1, "masks")
_vocabularies: dict[str, Any] = {}  # by the name of the model: Loaded


@dataclass(frozen=True)
class Structure:
    """The form that an answer must have. grammar: as llguidance writes it. model: whose tokens it is matched with.

    tried: whether a separate process has tried the grammar out (`grammar_trial`), so that this one need not.

    Equal structures share what is compiled. `dataclasses.replace` gives one with a state of its own; pickled, it has
    none.
    """

    grammar: str
    model: str = ""
    tried: bool = False

    def __reduce__(self):
        return Structure, (self.grammar, self.model, self.tried)

    @property
    def state(self) -> "State":
        """Return the state of the one request that this object belongs to."""
        if "_state" not in self.__dict__:
            object.__setattr__(self, "_state", State(compiled(self.grammar, self.model, self.tried)))
        return self._state

    def check(self) -> None:
        """Compile the grammar, if it is new. Raise InvalidInput if it cannot be matched."""
        compiled(self.grammar, self.model, self.tried)


class State:
    """How far a grammar has been matched by the output of one request, and the masks known of it."""

    def __init__(self, first):
        self.first, self.matcher = first, first.deep_copy()  # first: a matcher that has read nothing
        self.token_ids: list[int] = []  # what the matcher has read
        self.masks: dict[int, numpy.ndarray] = {}  # by how many of these tokens come before
        self.pending: Future | None = None  # computes masks on the thread of `_pool`

    def advance(self, token_ids: Sequence[int]) -> bool:
        """Have the matcher read this output and nothing else. Return whether the grammar allows it.

        If reading it exceeds a bound of the library, the matcher has an error afterwards.
        """
        if self.matcher.is_error():  # An error stays; a draft token that is rejected later may have caused it.
            self.matcher, self.token_ids, self.masks = self.first.deep_copy(), [], {}
        same = len(self.token_ids)
        if self.token_ids != token_ids[:same]:
            pairs = enumerate(zip(self.token_ids, token_ids, strict=False))
            same = next((i for i, (mine, other) in pairs if mine != other), min(same, len(token_ids)))
            self.matcher.rollback(len(self.token_ids) - same)
            del self.token_ids[same:]
            self.masks = {count: mask for count, mask in self.masks.items() if count <= same}
        read = self.matcher.try_consume_tokens(list(token_ids[same:]))
        self.token_ids += token_ids[same : same + read]
        return len(self.token_ids) == len(token_ids)

    def is_complete(self, token_ids: Sequence[int]) -> bool:
        """Return whether an answer may end after these tokens."""
        return self.advance(token_ids) and self.matcher.is_accepting()


def register(loaded) -> None:
    """Make a model's tokens known under its name. Every process whose engine runs requests does so."""
    _vocabularies[loaded.name] = loaded
    _tokens.cache_clear()
    compiled.cache_clear()


@lru_cache(maxsize=8)
def _tokens(model: str):
    """Return the bytes of all tokens in the library's form, and the tokens that end a text.

    A tokenizer may have more tokens than the model (Gemma 3's has), or fewer: the larger number counts here, and
    `apply_masks` cuts what has no logits. Raise InvalidInput for a model without what the library needs.
    """
    loaded = _vocabularies[model]
    if loaded.tokenizer is None:
        raise InvalidInput(f"structured output needs a tokenizer, and the model {model!r} has none")
    size, known = loaded.config.vocab_size, 1 + max(loaded.tokenizer.get_vocab().values())
    eos = sorted(token_id for token_id in loaded.eos_token_ids if token_id < min(size, known))
    if not eos:
        raise InvalidInput(f"structured output needs a token that ends a text, and the model {model!r} has none")
    library()  # It raises InvalidInput if llguidance is missing.
    import llguidance.hf

    try:
        return llguidance.hf.from_tokenizer(loaded.tokenizer, max(size, known), eos)
    except ValueError as error:
        raise InvalidInput(f"structured output does not know this tokenizer: {shortened(error)}") from error


@lru_cache(maxsize=COMPILED)
def compiled(grammar: str, model: str, tried: bool):
    """Return a matcher in its first state, to be copied. Raise InvalidInput for a grammar that the library refuses."""
    matcher = compile_grammar(grammar, _tokens(model))
    if not tried:
        try_out(matcher)
    return matcher


@lru_cache(maxsize=1)
def _fill() -> Callable[[list, numpy.ndarray], None]:
    """Return the function that writes the masks of matchers to their rows, on threads, without the interpreter lock."""
    import llguidance.numpy

    return partial(llguidance.numpy.fill_next_token_bitmask_par, llguidance.LLExecutor())


def prefetch(requests: Sequence) -> None:
    """Begin to compute the masks of these requests' next tokens, while others schedule and run the model."""
    rows = [SimpleNamespace(params=one.params, token_ids=list(one.token_ids)) for one in requests]
    if rows:
        for row in rows:
            row.params.structure.state.masks.clear()  # those of earlier steps and of rejected draft tokens
        job = _pool.submit(_compute, rows)
        for row in rows:
            row.params.structure.state.pending = job


def masks(rows: Sequence) -> numpy.ndarray:
    """Return the tokens that each row may have next, a bit for each: [R, ceil(V / 32)] int32.

    After tokens that the grammar does not allow, such as draft tokens that will be rejected, all are allowed.
    """
    for row in rows:
        state = row.params.structure.state
        if state.pending is not None:
            state.pending.result()
            state.pending = None
    return _compute(rows)


def _compute(rows: Sequence) -> numpy.ndarray:
    """Compute the masks in waves, each with one row of a request, since a matcher is in one state at a time."""
    tokens = _tokens(rows[0].params.structure.model)
    result = numpy.full((len(rows), -(-tokens.vocab_size // 32)), ANYTHING, numpy.int32)
    waiting = range(len(rows))
    while waiting:
        first: dict[int, int] = {}  # of each state: its first row
        for i in waiting:
            first.setdefault(id(rows[i].params.structure.state), i)
        waiting = [i for i in waiting if i not in {*first.values()}]
        unknown = []
        for i in first.values():
            state, count = rows[i].params.structure.state, len(rows[i].token_ids)
            if state.advance(rows[i].token_ids) or state.matcher.is_error():
                if count in state.masks:
                    result[i] = state.masks[count]
                else:
                    unknown.append((state, i, count))
        if unknown:
            _fill()([(state.matcher, i) for state, i, _ in unknown], result)
        for state, i, count in unknown:
            if state.matcher.is_error() or not result[i].any():  # nothing fits, or a bound is exceeded: end the answer
                log.warning("an answer ends before its grammar does: %s", shortened(state.matcher.get_error()))
                result[i] = 0
                for token_id in tokens.eos_tokens:
                    result[i, token_id // 32] |= numpy.uint32(1 << token_id % 32).astype(numpy.int32)
            state.masks[count] = result[i].copy()
    return result


@lru_cache
def _biases(device: torch.device) -> Tensor:
    """Return what each byte of a mask adds to the logits of its eight tokens: [256, 8], 0 where allowed, else -inf."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.zeros(256, 8).masked_fill(bits == 0, -torch.inf).to(device)


def apply_masks(logits: Tensor, rows: Sequence) -> Tensor:
    """Set the logits of tokens that a row's structure does not allow to -inf: [B, V] -> [B, V], a new tensor.

    Return the same tensor if no row has a structure. One addition masks all rows: a CPU unpacks no bits for it.
    """
    index = [i for i, row in enumerate(rows) if row.params.structure is not None]
    if not index:
        return logits
    packed = to_device(masks([rows[i] for i in index]), torch.int32, logits.device).view(torch.uint8)  # [R, V / 8]
    biases = embedding(packed.int(), _biases(logits.device)).flatten(1)[:, : logits.shape[1]]  # [R, V]
    if len(index) == len(rows):
        return logits + biases
    places = to_device(index, torch.int64, logits.device)
    return logits.float().index_add(0, places, biases)

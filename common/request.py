"""One request: its prompt, its output so far, and its timings. A finished request is the completion."""

import reprlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

from .detokenizer import IncrementalDetokenizer, StopSearch
from .errors import InvalidInput, context_exceeded
from .model import ModelConfig
from .sampling import SamplingParams, TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass
class Timings:
    """Times in seconds on the clock of `time.perf_counter`, and the metrics derived from them (None: not yet known)."""

    arrival: float = field(default_factory=time.perf_counter)
    tokens: list[float] = field(default_factory=list)  # when the host had each output token
    finished: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        return self.tokens[0] - self.arrival if self.tokens else None

    @property
    def end_to_end_latency(self) -> float | None:
        return self.finished - self.arrival if self.finished is not None else None

    @property
    def time_per_output_token(self) -> float | None:
        """Return the mean time from one output token to the next, in seconds."""
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1) if len(self.tokens) > 1 else None


class SaltedTokens(list):
    """Token ids of a request with an adapter. salt: part of the key of their pages, beside the tokens."""

    def __init__(self, token_ids: list[int], salt: int):
        super().__init__(token_ids)
        self.salt = salt


def page_key(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the key of a page with these tokens among those after the same page; a salt is negative, and first."""
    return (tokens.salt, *tokens) if isinstance(tokens, SaltedTokens) else tuple(tokens)


class Request:
    """A prompt and its completion.

    Attributes for callers: `request_id`, `prompt_token_ids`, `token_ids` (output so far, with an end-of-sequence
    token), `text` (output so far, without special tokens and, unless include_stop_str_in_output is set, without what
    ended it), `finish_reason` (None until it ends), `stop_reason` (the stop string or stop token id that ended it),
    `logprobs` (one entry per output token, if requested), `cached_tokens` (prompt tokens found in the prefix cache),
    `timings`.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer,
        eos_token_ids: frozenset[int],
        max_tokens: int,
    ):
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        ending = (frozenset() if params.ignore_eos else eos_token_ids) | {*params.stop_token_ids}
        self.params = replace(params, ending_token_ids=sorted(ending)) if params.min_tokens else params
        if params.structure is not None:
            self.params = replace(self.params, structure=replace(params.structure))
            params = replace(params, ignore_eos=False)  # A complete answer must end.
        self.salt = 0  # Not 0 with an adapter: it changes K and V, so the same tokens are other pages.
        if params.adapter is not None:
            self.salt = -1 - (int.from_bytes(blake2b(params.adapter.encode(), digest_size=8).digest(), "big") >> 1)
        self.max_tokens = max_tokens
        self.seed = params.resolve_seed()
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprobs | None] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.cached_tokens = 0
        self.preempted = False  # whether it ever was: what it then finds in a prefix cache may be its own
        self.timings = Timings()
        self._eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        # A structure allows special tokens only where its grammar names them, as tags of a call: they are text.
        skipped = params.structure is None
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids, skipped) if tokenizer else None
        self._stops = StopSearch(params.stop)

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        return f"Request({self.request_id}, {len(self.prompt_token_ids)} + {len(self.token_ids)} tokens, {state})"

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def stable_text_length(self) -> int:
        """Return how many characters of `text` are final. Until the request ends, the rest may begin a stop string."""
        return len(self.text) - (0 if self.finished else self._stops.held)

    @property
    def all_token_ids(self) -> list[int]:
        """Return prompt and output so far: the sequence that the next token continues."""
        return self.prompt_token_ids + self.token_ids

    @property
    def num_tokens(self) -> int:
        """Return the length of `all_token_ids`."""
        return len(self.prompt_token_ids) + len(self.token_ids)

    def token_ids_between(self, start: int, stop: int) -> list[int]:
        """Return `all_token_ids[start:stop]` without building the whole sequence."""
        output = len(self.prompt_token_ids)  # where the output begins
        found = self.prompt_token_ids[start:stop] + self.token_ids[max(start - output, 0) : max(stop - output, 0)]
        return SaltedTokens(found, self.salt) if self.salt else found

    def append(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Append one generated token, and end the request if it is the last."""
        self.token_ids.append(token_id)
        self.timings.tokens.append(time.perf_counter())
        if self.params.logprobs is not None:
            self.logprobs.append(logprobs)
        if token_id in self._eos_token_ids:
            form = self.params.structure  # an answer that ends before its grammar does was cut at a bound
            self.finish("stop" if form is None or form.state.is_complete(self.token_ids[:-1]) else "length")
        elif token_id in self.params.stop_token_ids:
            shown = self.params.include_stop_str_in_output and self._detokenizer
            if not (shown and self._extend_text(self._detokenizer.append(token_id))):
                self.finish("stop", token_id)
        elif self._detokenizer and self._extend_text(self._detokenizer.append(token_id)):
            pass  # `_extend_text` has found a stop string and ended the request
        elif len(self.token_ids) == self.max_tokens:
            self.finish("length")

    def finish(self, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        """End the request, and append the text that the detokenizer has held back."""
        if self._detokenizer and not isinstance(stop_reason, str) and self._extend_text(self._detokenizer.flush()):
            return
        self.finish_reason, self.stop_reason = reason, stop_reason
        self.timings.finished = time.perf_counter()

    def _extend_text(self, piece: str) -> bool:
        """Append text. If it completes a stop string, cut the text there, end the request and return True.

        A stop string that a token before number min_tokens completes is ignored; a later one may overlap it.
        """
        self.text += piece
        found = self._stops.find(piece)
        if found is None or len(self.token_ids) < self.params.min_tokens:
            return False
        start, string = found
        self.text = self.text[: start + len(string) if self.params.include_stop_str_in_output else start]
        self.finish("stop", string)
        return True


def prompt_tokens(prompt: str | Sequence[int], tokenizer, config: ModelConfig) -> list[int]:
    """Return the token ids of a prompt given as text or as ids. Raise InvalidInput if no engine could run it.

    A text that cannot fit the context is refused before it is tokenized: 4 MB of text take a tokenizer ten seconds.
    """
    most = config.context_length
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidInput("this model has no tokenizer: give the prompt as a list of token ids")
        check_prompt_length(len(prompt), tokenizer, config)
        check_characters(prompt)
        token_ids = tokenizer(prompt)["input_ids"]
    else:
        if len(prompt) > most:
            raise context_exceeded(most, f"the prompt has {len(prompt)}: shorten it")
        token_ids = list(prompt)
    if not token_ids:
        raise InvalidInput("the prompt is empty: give at least one token")
    if set(map(type, token_ids)) != {int}:
        wrong = next(token_id for token_id in token_ids if type(token_id) is not int)
        raise InvalidInput(f"the prompt contains {reprlib.repr(wrong)}: give text, or a list of integer token ids")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < config.vocab_size:
            raise InvalidInput(
                f"token id {reprlib.repr(token_id)} is outside the vocabulary of {config.vocab_size} tokens"
            )
    return token_ids


def check_prompt_length(characters: int, tokenizer, config: ModelConfig) -> None:
    """Raise ContextExceeded for a text too long for the context even if each token is the vocabulary's longest."""
    if characters > config.context_length * max_token_characters(tokenizer):
        raise context_exceeded(config.context_length, f"the prompt has {characters} characters: shorten it")


@lru_cache(maxsize=8)  # one pass over the vocabulary for each tokenizer
def max_token_characters(tokenizer) -> int:
    """Return the length of the vocabulary's longest entry: no token decodes to more characters."""
    return max(map(len, tokenizer.get_vocab()))


def check_characters(text: str) -> None:
    """Raise InvalidInput for half of a surrogate pair, which JSON can write: a tokenizer would raise TypeError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("the text contains half of a surrogate pair: send whole characters") from error

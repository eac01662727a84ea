"""SamplingParams: what a request may ask of the sampler and of the stopping rules, and which values are allowed.

A new option is a field here, its row in ALLOWED, and its part of `filtered` or `has_penalties`; a step of `_weights`
(sampling.py) and its kernel for a GPU (sampling_kernels.py), or of penalties.py; a field of `Body`
(serving/openai_api/bodies.py); its option (options.toml); and a bad value in tests/helpers/refused_params.json. A
filter is one of COSTLIEST, too (memory.py), and what a checkpoint may set is in SAMPLING_DEFAULTS (loader/config.py).
"""

import reprlib
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from .errors import InvalidInput
from .structured_output import Structure

# The engine's thread compares each character of an answer with every stop string. OpenAI's API allows four.
MAX_STOPS, MAX_STOP_CHARACTERS, MAX_STOP_TOKENS = 32, 256, 128
MAX_BIASES = 300  # as in OpenAI's API
MAX_TENANT = 128  # characters of a tenant's name


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What one request asks of the sampler and of the stopping rules; immutable.

    Raise InvalidInput, in one sentence that names the field, for a value that ALLOWED does not allow.
    """

    max_tokens: int | None = 128  # output tokens; None: as many as the context length leaves
    temperature: float = 0.0  # 0: greedy, which ignores top_k, top_p and min_p
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # relative to the likeliest token; 0: off
    repetition_penalty: float = 1.0  # divides the logits of tokens in prompt or output; 1: off
    presence_penalty: float = 0.0  # subtracted once from the logits of tokens in the output
    frequency_penalty: float = 0.0  # subtracted once per occurrence in the output
    logit_bias: Mapping[int | str, float] | Sequence[tuple[int, float]] = ()  # added to logits; kept as pairs
    stop: str | Sequence[str] = ()  # kept as a tuple
    stop_token_ids: Sequence[int] = ()  # kept as a tuple
    include_stop_str_in_output: bool = False
    min_tokens: int = 0  # no token and no stop string ends an answer shorter than this
    ending_token_ids: Sequence[int] = ()  # the tokens that min_tokens forbids; Request fills it in
    seed: int | None = None  # None: a random one for each request
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; n: for the sampled token and the n likeliest
    priority: int = 0  # a lower one is served first, with --scheduling priority
    tenant: str = ""  # whose request it is, with --scheduling fair
    adapter: str | None = None  # None: the model alone; a name in `BaseEngine.adapters`: `add` puts its key here
    structure: Structure | None = None  # the form that the answer must have; Request gives it a state

    def __post_init__(self):
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.logit_bias, Mapping):  # in JSON, keys are strings
            pairs = [(_number_in(key), bias) for key, bias in self.logit_bias.items()]
            object.__setattr__(self, "logit_bias", tuple(pairs))
        for name, (is_allowed, allowed) in ALLOWED.items():
            value = getattr(self, name)
            if not is_allowed(value):
                # reprlib shortens: a client's value may be a megabyte long.
                raise InvalidInput(f"{name} must be {allowed}, not {reprlib.repr(value)}")
        if self.structure is not None and self.min_tokens:
            raise InvalidInput("min_tokens may contradict the form that the answer must have: leave it out")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidInput(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")
        # One spelling for each meaning, so that equal parameters compare equal and can be hashed.
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "ending_token_ids", tuple(self.ending_token_ids))
        object.__setattr__(self, "logit_bias", tuple(map(tuple, self.logit_bias)))

    @cached_property
    def greedy(self) -> bool:
        return self.temperature == 0

    @cached_property
    def filtered(self) -> bool:
        """Return whether top-k, top-p or min-p may drop tokens."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @cached_property
    def penalised(self) -> bool:
        """Return whether anything changes the logits, and so perhaps the likeliest token."""
        return self.has_penalties or self.structure is not None

    @cached_property
    def has_penalties(self) -> bool:
        """Return whether penalties, biases or min_tokens change the logits."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1, 0, 0) or bool(self.logit_bias) or self.min_tokens > 0

    def resolve_seed(self) -> int:
        """Return the requested seed, or a random one: the sampler then needs only one mechanism."""
        return secrets.randbits(63) if self.seed is None else self.seed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # NaN fails every comparison; infinity, and an integer too large for a float, fail this one.
    return (_is_int(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max


def _number_in(key: object) -> object:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20 else key


def _is_token_id(value: object) -> bool:
    return _is_int(value) and value >= 0


def _is_bias(pair: object) -> bool:
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    return is_pair and _is_token_id(pair[0]) and _is_number(pair[1]) and -100 <= pair[1] <= 100


def _is_list(value: object, most: int, is_allowed: Callable[[object], bool]) -> bool:
    return isinstance(value, (tuple, list)) and len(value) <= most and all(map(is_allowed, value))


# For each field of SamplingParams: a test for a value, and the words for what the test allows.
ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    "max_tokens": (lambda x: x is None or (_is_int(x) and x >= 1), "an integer of at least 1, or None"),
    "temperature": (lambda x: _is_number(x) and x >= 0, "a finite number of at least 0"),
    "top_k": (lambda x: _is_int(x) and x >= -1, "an integer of at least -1 (-1 and 0 mean off)"),
    "top_p": (lambda x: _is_number(x) and 0 < x <= 1, "a number above 0 and at most 1"),
    "min_p": (lambda x: _is_number(x) and 0 <= x <= 1, "a number from 0 to 1"),
    # A float32 logit divided by less, or multiplied by more, could become infinite, and a probability NaN.
    "repetition_penalty": (lambda x: _is_number(x) and 0.01 <= x <= 100, "a number from 0.01 to 100"),
    "presence_penalty": (lambda x: _is_number(x) and -2 <= x <= 2, "a number from -2 to 2"),
    "frequency_penalty": (lambda x: _is_number(x) and -2 <= x <= 2, "a number from -2 to 2"),
    "logit_bias": (
        lambda x: _is_list(x, MAX_BIASES, _is_bias),
        f"a map of at most {MAX_BIASES} token ids to numbers from -100 to 100",
    ),
    "stop": (
        lambda x: _is_list(x, MAX_STOPS, lambda text: isinstance(text, str) and 0 < len(text) <= MAX_STOP_CHARACTERS),
        f"a string of 1 to {MAX_STOP_CHARACTERS} characters or a list of at most {MAX_STOPS} of them",
    ),
    "stop_token_ids": (
        lambda x: _is_list(x, MAX_STOP_TOKENS, _is_token_id),
        f"a list of at most {MAX_STOP_TOKENS} integers of at least 0",
    ),
    "min_tokens": (lambda x: _is_int(x) and x >= 0, "an integer of at least 0"),
    "ending_token_ids": (
        lambda x: _is_list(x, MAX_BIASES, _is_token_id),
        f"a list of at most {MAX_BIASES} integers of at least 0",
    ),
    "include_stop_str_in_output": (lambda x: isinstance(x, bool), "True or False"),
    "seed": (
        lambda x: x is None or (_is_int(x) and 0 <= x < 2**63),
        "an integer from 0 to 2**63 - 1, or None",
    ),
    "ignore_eos": (lambda x: isinstance(x, bool), "True or False"),
    "priority": (lambda x: _is_int(x) and -(2**31) <= x < 2**31, "an integer from -2**31 to 2**31 - 1"),
    "tenant": (lambda x: isinstance(x, str) and len(x) <= MAX_TENANT, f"a text of at most {MAX_TENANT} characters"),
    "adapter": (lambda x: x is None or (isinstance(x, str) and bool(x)), "an adapter's name, or None"),
    "structure": (lambda x: x is None or isinstance(x, Structure), "a Structure, or None"),
    "logprobs": (lambda x: x is None or (_is_int(x) and 0 <= x <= 20), "an integer from 0 to 20, or None"),
}


class Row(Protocol):
    """What the sampler reads of a request. The token to draw is number `len(token_ids)` of its output."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]  # the output so far
    seed: int  # from params.resolve_seed(), once, when the request is created

"""NEW in 08: what router and workers say to each other: orders down, one report for every step up.

The router owns the requests: their text, their stop strings, their clients. A worker knows a request only as an order,
made for one attempt: token ids, a seed, a limit. So a worker can be lost at any moment, and what is left is enough to
give the same order to another one: the sampler depends on seed and position alone, so the tokens go on as they would
have.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.request import Request
from common.sampling import SamplingParams, TokenLogprobs
from common.trace import StepRecord


@dataclass(frozen=True)
class Order:
    """One attempt at one request. `key` is never used twice: what a worker says of an earlier attempt concerns nobody.

    number: orders are numbered as they are given, so that one that comes twice is taken once. token_ids: the output so
    far, which the client has. hand_over: after the next token the pages are for another worker. ticket: where the pages
    are; None: there are none yet, and all is to be computed.
    """

    number: int
    key: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    hand_over: bool = False
    ticket: Any = None

    def request(self, eos_token_ids: frozenset[int]) -> Request:
        """The request as a worker runs it: without a tokenizer, and so without text and stop strings."""
        request = Request(self.key, self.prompt_token_ids, self.params, None, eos_token_ids, self.max_tokens)
        request.seed, request.token_ids = self.seed, list(self.token_ids)
        if self.params.logprobs is not None:
            request.logprobs = [None] * len(self.token_ids)  # the router has them
        return request


class Gain(NamedTuple):
    """New tokens of one request; `first` is the place of the first one in the output."""

    key: str
    first: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # empty unless asked for
    cached_tokens: int  # of the prompt, found in the worker's cache
    finished: bool  # the worker has let go of it


class Arrival(NamedTuple):
    """Pages that have come: how many bytes, and how many seconds they were on their way."""

    key: str
    bytes: int
    seconds: float


@dataclass
class Report:
    """All that one call has done, in one message: in decode, the new tokens of all requests."""

    gains: list[Gain] = field(default_factory=list)
    ready: list[tuple[str, Any]] = field(default_factory=list)  # (key, ticket): the prompt is done, the pages wait
    arrived: list[Arrival] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # keys whose pages could not be had: their worker is gone
    record: StepRecord | None = None
    available: int = 0  # pages that can be had
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Hello:
    """A worker introduces itself. `incarnation` changes when it is restarted; `now` is its clock, in seconds."""

    incarnation: str
    host: str
    now: float
    num_pages: int
    page_size: int
    max_running: int
    why: str

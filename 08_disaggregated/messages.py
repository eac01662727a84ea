"""NEW in 08: what the router and its workers tell each other: mail one way, reports the other.

The router owns the requests: their text, their stop strings, their clients. A worker knows only orders. An order is one
attempt at one request: token ids, a seed, a limit. The sampler depends on seed and position alone, so another worker
can continue from the same order, in float32 with the same tokens.

Any message may be lost, repeated or overtaken. Three rules make that harmless. A key names one attempt and is never
used again. A gain says which place of the output its tokens take. A heartbeat says which orders a worker holds and
which mail it has read, so the router sees what is missing and what should not be there (Kubernetes' controllers
reconcile in the same way).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.request import Request
from common.sampling import SamplingParams, TokenLogprobs
from common.trace import StepRecord


@dataclass(frozen=True)
class Order:
    """One attempt at one request.

    token_ids: the output so far. hand_over: park the request after its next token, for another worker to continue.
    ticket: where its K and V can be fetched; None: compute them here.
    """

    key: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    hand_over: bool = False
    ticket: Any = None

    def request(self, eos_token_ids: frozenset[int]) -> Request:
        """Return the request as a worker runs it: without a tokenizer, so without text and stop strings."""
        request = Request(self.key, self.prompt_token_ids, self.params, None, eos_token_ids, self.max_tokens)
        request.seed, request.token_ids = self.seed, list(self.token_ids)
        if self.params.logprobs is not None:
            request.logprobs = [None] * len(self.token_ids)  # The router has these logprobs already.
        return request


class Mail(NamedTuple):
    """What the router sends in one message. number: 1, 2, 3 ... for each worker. drops: keys to let go of first."""

    number: int
    orders: list[Order]
    drops: list[str]


class Gain(NamedTuple):
    """New tokens of one request."""

    key: str
    first: int  # the place of the first one in the output
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # empty unless asked for
    cached_tokens: int  # of the prompt, found in the worker's cache
    finished: bool  # the worker holds the order no longer


class Arrival(NamedTuple):
    """Pages that have arrived: bytes, and seconds in transfer."""

    key: str
    bytes: int
    seconds: float


class Heartbeat(NamedTuple):
    """What a worker holds. mail: the newest one it has read."""

    mail: int
    held: frozenset[str]
    parked: frozenset[str]  # those of `held` whose pages wait to be fetched, as a report has said
    stats: dict[str, float]


@dataclass
class Report:
    """What one turn of a worker's loop has done: in decode, the new tokens of all requests."""

    gains: list[Gain] = field(default_factory=list)
    parked: list[tuple[str, Any]] = field(default_factory=list)  # (key, ticket): the prompt is done, its pages wait
    arrived: list[Arrival] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # (key, reason): not fetched, or it can never fit here
    available: int | None = None  # free pages, if changed, and pages of orders that the router counts as load
    record: StepRecord | None = None  # of the step, if there was one
    heartbeat: Heartbeat | None = None

    def __bool__(self) -> bool:
        """Return whether the router learns anything from it."""
        news = self.gains, self.parked, self.arrived, self.failed, self.record, self.heartbeat
        return any(news) or self.available is not None


class Hello(NamedTuple):
    """A worker that has started, empty. now: its clock, seconds of `time.perf_counter`."""

    host: str
    now: float
    process: int
    num_pages: int
    page_size: int
    max_running: int
    startup_notes: str
    transport: str  # how pages travel to it
    host_pages: int = 0  # pages that its host's memory keeps in addition (common/kv_tiers.py)


class Lost(NamedTuple):
    """A worker is gone, with everything it held."""

    reason: str

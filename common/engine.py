"""The contract that every stage's `Engine` obeys, and the housekeeping that no stage teaches.

    engine = Engine(loaded)
    request = engine.add(prompt, SamplingParams(max_tokens=50))
    while engine.has_unfinished:
        changed = engine.step()      # one iteration; the requests that gained tokens or ended

A stage writes `step`, and `accept` and `release` if its requests queue or hold memory. The rest, from checking a prompt
to `generate`, is the same in all eight, so one test suite, one command line, one server and one benchmark harness drive
any of them. An engine is not thread-safe: from stage 03 on, one thread owns it.
"""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from .errors import shortened
from .loader import Loaded
from .request import Request, prompt_tokens
from .sampling import Drawn, SampledToken, SamplingParams
from .trace import Trace
from .transfers import current


def on_its_device(step: Callable[["BaseEngine"], list[Request]]) -> Callable[["BaseEngine"], list[Request]]:
    """The same step with the engine's device as the current one, whichever thread calls it."""

    @functools.wraps(step)
    def with_device(self: "BaseEngine") -> list[Request]:
        with current(self.device):
            return step(self)

    return with_device


class BaseEngine(ABC):
    """Everything of an engine but the engine: validation, finishing, aborting, `generate`."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "step" in vars(cls):
            cls.step = on_its_device(cls.step)

    idle_seconds: float | None = None  # with nothing unfinished, the longest time without a step; None: for ever
    unavailable: str = ""  # why new requests should be sent elsewhere, if they should; may be read from any thread

    def __init__(self, loaded: Loaded):
        self.name = loaded.name
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.config = loaded.config
        self.device, self.dtype = loaded.device, loaded.dtype
        self.eos_token_ids = loaded.eos_token_ids
        self.sampling_defaults = loaded.sampling_defaults  # the checkpoint's own, for servers
        self.requests: dict[str, Request] = {}  # unfinished ones, in order of arrival
        self.trace = Trace()
        self.why = ""  # one line on what the engine has chosen by itself, and why
        self._generated_tokens = 0
        self._request_numbers = itertools.count()

    def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        """Queues a prompt (text or token ids). ValueError, and nothing queued, if it cannot be run."""
        params = params or SamplingParams()
        token_ids = prompt_tokens(prompt, self.tokenizer, self.config)
        room = self.config.context_length - len(token_ids)
        # As many as there is room for; `accept` says what is wrong if not even one fits.
        max_tokens = params.max_tokens if params.max_tokens is not None else max(1, self.max_model_len - len(token_ids))
        if max_tokens > room or room < 1:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens and max_tokens is {max_tokens}, together more than the "
                f"model's context of {self.config.context_length} tokens"
            )
        for token_id, _ in params.logit_bias:
            if token_id >= self.config.vocab_size:
                raise ValueError(f"logit_bias has token id {token_id}, and there are {self.config.vocab_size} tokens")
        if params.stop and self.tokenizer is None:
            raise ValueError("stop strings need a tokenizer, and this model has none")
        if request_id is None:
            request_id = f"request-{next(self._request_numbers)}"
        if request_id in self.requests:
            raise ValueError(f"request id {shortened(request_id)} is already in use by an unfinished request")
        request = Request(request_id, token_ids, params, self.tokenizer, self.eos_token_ids, max_tokens)
        self.accept(request)
        self.requests[request_id] = request
        return request

    @abstractmethod
    def step(self) -> list[Request]:
        """Runs one iteration and returns the requests that gained tokens or ended; [] if there is nothing to do."""

    def accept(self, request: Request) -> None:  # noqa: B027 (a stage may have no queue of its own)
        """Takes in a request that `add` has checked; ValueError if this stage can never run it."""

    def release(self, request: Request) -> None:  # noqa: B027 (a stage may hold nothing)
        """Frees what the stage holds for a request that ends. Called exactly once for each."""

    def check(self) -> None:  # noqa: B027 (a stage may have nothing to keep)
        """Raises AssertionError if the stage's books do not balance. For tests and debugging, between two steps."""

    def abort(self, request_id: str) -> None:
        """Ends a request now, whatever it waits for; unknown and finished ids are ignored."""
        if request := self.requests.get(request_id):
            request.finish("abort")
            self._retire(request)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that can run: the context, or less if a stage's memory holds no more."""
        return self.config.context_length

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def stats(self) -> dict[str, float]:
        """Counters and gauges. `kv_tokens_reserved` counts the places for K/V that are set aside, filled or not."""
        return {
            "unfinished": len(self.requests),
            "kv_tokens_used": 0,
            "kv_tokens_reserved": 0,
            "steps": self.trace.steps,
            "generated_tokens": self._generated_tokens,
        }

    def generate(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Request]:
        """Completes all prompts, in their order; `params` is one for all or one for each."""
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts came with {len(each)} sampling parameters")
        requests: list[Request] = []
        try:
            for prompt, one in zip(prompts, each, strict=True):
                requests.append(self.add(prompt, one))
            while not all(request.finished for request in requests):
                self.step()
        finally:  # a refused prompt or Ctrl-C: nothing of this call may stay behind
            for request in requests:
                self.abort(request.request_id)
        return requests

    def sample_next(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        """Samples one token for each request from `logits[B, V]` and retires the requests that it ends."""
        for request, sampled in zip(requests, self.draw(requests, logits).tokens(), strict=True):
            self.append_tokens(request, [sampled])
        self.retire_finished(requests)

    def draw(self, requests: Sequence[Request], logits: torch.Tensor) -> Drawn:
        """One token for each request, on the device; a graph may have found the likeliest ones already."""
        return Drawn(logits, requests, getattr(self.model, "best", None))

    def append_tokens(self, request: Request, tokens: Sequence[SampledToken]) -> None:
        """Gives a request its next tokens, up to the one that ends it; what is behind that one is dropped."""
        for sampled in tokens:
            request.append(sampled.token_id, sampled.logprobs)
            self._generated_tokens += 1
            if request.finished:
                break

    def retire_finished(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.finished:
                self._retire(request)

    def _retire(self, request: Request) -> None:
        del self.requests[request.request_id]
        self.release(request)

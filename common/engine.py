"""The contract that every stage's `Engine` obeys, and the housekeeping that no stage teaches.

    engine = Engine(loaded)
    request = engine.add(prompt, SamplingParams(max_tokens=50))
    while engine.has_unfinished:
        changed = engine.step()      # one iteration; the requests that gained tokens or ended

A stage writes `step` in three methods: `schedule` chooses what runs, `run` runs it, `commit` gives the requests their
tokens and retires those that end. It writes `accept` and `release` if its requests queue or hold memory. The rest, from
checking a prompt to `generate`, is the same in all eight, so one test suite, one command line, one server and one
benchmark harness drive any of them. An engine is not thread-safe: from stage 03 on, one thread owns it. What its server
adds to it, such as metrics, are hooks: `advance` is a `step` with them.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from . import structured_output
from .errors import InvalidInput, context_exceeded, shortened
from .loader import Loaded
from .request import Request, prompt_tokens
from .sampling import SampledToken, SamplerOutput, SamplingParams
from .trace import Trace
from .transfers import current


class BaseEngine(ABC):
    """Everything of an engine but `step`: validation, finishing, aborting, `generate`."""

    idle_seconds: float | None = None  # `step` is due after this time even if no request is unfinished; None: never
    scores_prompts = False  # whether `accept` takes prompts to score (serving/prompt_logprobs.py)
    scheduler: Any = None  # from stage 04 on
    cache: Any = None  # K and V of all requests
    drafter: Any = None  # from stage 07 on
    tiers: Any = None  # pages beside the device's memory (kv_tiers.py)
    lora: Any = None  # the model with adapters, if it has any (lora.py)
    unavailable: str = ""  # if not "", why new requests should go to another server; any thread may read it

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.name = loaded.name
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.config = loaded.config
        self.device, self.dtype = loaded.device, loaded.dtype
        self.eos_token_ids = loaded.eos_token_ids
        self.sampling_defaults = loaded.sampling_defaults  # the checkpoint's, for requests over HTTP
        self.requests: dict[str, Request] = {}  # unfinished ones, in order of arrival
        structured_output.register(loaded)
        self.adapters: dict[str, Any] = {}  # by the name that requests give (lora.py)
        self.trace = Trace(loaded.device)
        self.hooks: list[Hook] = []  # called in this order
        self.startup_notes = ""  # one line on what the engine has chosen by itself, and why
        self._generated_tokens = 0
        self._request_numbers = itertools.count()

    def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        """Queue a prompt (text or token ids). Raise InvalidInput, and queue nothing, if it can never run."""
        params = params or SamplingParams()
        for hook in self.hooks:
            hook.before_add(prompt, params)
        token_ids = prompt_tokens(prompt, self.tokenizer, self.config)
        room = self.config.context_length - len(token_ids)
        # None: as many output tokens as fit. If not even one fits, `accept` raises the error.
        max_tokens = params.max_tokens if params.max_tokens is not None else max(1, self.max_model_len - len(token_ids))
        if max_tokens > room or room < 1:
            both = f"the prompt has {len(token_ids)} and max_tokens is {max_tokens}: shorten one of them"
            raise context_exceeded(self.config.context_length, both)
        for token_id, _ in params.logit_bias:
            if token_id >= (size := self.config.vocab_size):
                raise InvalidInput(f"logit_bias has token id {token_id}, outside the vocabulary of {size} tokens")
        if params.structure is not None:
            params = replace(params, structure=replace(params.structure, model=self.name))
            params.structure.check()
        if params.adapter is not None:
            params = replace(params, adapter=self.adapter_key(params.adapter))
        if params.stop and self.tokenizer is None:
            raise InvalidInput("stop strings need a tokenizer and this model has none: use stop_token_ids")
        if request_id is None:
            names = (f"request-{number}" for number in self._request_numbers)
            request_id = next(name for name in names if name not in self.requests)  # callers may have chosen such names
        if request_id in self.requests:
            raise InvalidInput(
                f"request id {shortened(request_id)} belongs to an unfinished request: choose another one"
            )
        request = Request(request_id, token_ids, params, self.tokenizer, self.eos_token_ids, max_tokens)
        self.accept(request)
        self.requests[request_id] = request
        for hook in self.hooks:
            hook.on_add(request)
        return request

    def adapter_key(self, name: str) -> str:
        """Return the key of an adapter, given by its name or its key. Raise InvalidInput if there is none."""
        for adapter in list(self.adapters.values()):
            if name in (adapter.name, adapter.key):
                return adapter.key
        known = f"use one of {', '.join(self.adapters)}" if self.adapters else "start with --lora NAME=FOLDER"
        raise InvalidInput(f"there is no adapter {shortened(name)}: {known}")

    @abstractmethod
    def step(self) -> list[Request]:
        """Run one iteration; return the requests that gained tokens or ended, [] if there is nothing to do."""

    def advance(self) -> list[Request]:
        """Run a step and what the hooks do before and after it; return the requests whose clients are to be told."""
        # A list, so that every hook is asked, whatever those before it say.
        changed = self.step() if all([hook.before_step() for hook in self.hooks]) else []
        for hook in self.hooks:
            changed = hook.on_step(changed)
        return changed

    def accept(self, request: Request) -> None:  # noqa: B027 (a stage may have no queue of its own)
        """Queue a request that `add` has checked. Raise InvalidInput if this stage can never run it."""

    def release(self, request: Request) -> None:  # noqa: B027 (a stage may hold nothing)
        """Free what the stage holds for a request that ends. Called exactly once for each request."""

    def measure(self) -> None:  # noqa: B027 (a stage may depend on no measurement)
        """Measure again what decisions depend on: the stage's models now run in another way (acceleration/graphs.py).

        Called before the first request.
        """

    def check(self) -> None:  # noqa: B027 (a stage may hold nothing)
        """Raise AssertionError if the stage's bookkeeping is inconsistent. For tests, between two steps."""

    def on_device(self) -> AbstractContextManager:
        """Return a context for kernels that are launched between two steps, on the engine's GPU from any thread."""
        return current(self.device)

    def abort(self, request_id: str) -> None:
        """End a request now, running or waiting; ignore unknown and finished ids."""
        if request := self.requests.get(request_id):
            request.finish("abort")
            self._retire(request)

    @property
    def max_model_len(self) -> int:
        """Return the length in tokens of the longest sequence that can run: the context, or less if memory is short."""
        return self.config.context_length

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def stats(self) -> dict[str, float]:
        """Return counters and gauges. `kv_tokens_reserved` counts the K/V places set aside, filled or not."""
        return {
            "unfinished": len(self.requests),
            "kv_tokens_used": 0,
            "kv_tokens_reserved": 0,
            "steps": self.trace.steps,
            "generated_tokens": self._generated_tokens,
            **(self.tiers.stats() if self.tiers else {}),
        }

    def close(self) -> None:
        """End what the engine has started, and write what is to outlive it. Afterwards it cannot be used."""
        if self.tiers:
            self.tiers.close()

    def generate(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Request]:
        """Complete all prompts and return the requests in the same order; `params` is one for all or one for each."""
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise InvalidInput(
                f"{len(prompts)} prompts came with {len(each)} SamplingParams: give one, or one for each"
            )
        requests: list[Request] = []
        try:
            for prompt, one in zip(prompts, each, strict=True):
                requests.append(self.add(prompt, one))
            while not all(request.finished for request in requests):
                self.step()
        finally:  # after a refused prompt or Ctrl-C, no request of this call may stay in the engine
            for request in requests:
                self.abort(request.request_id)
        return requests

    def draw(self, requests: Sequence[Request], logits: torch.Tensor) -> SamplerOutput:
        """Draw one token for each request from `logits[B, V]`, on the device, without waiting for it."""
        return SamplerOutput(logits, requests)

    def append_tokens(self, requests: Sequence[Request], tokens: Sequence[Sequence[SampledToken]]) -> list[Request]:
        """Append to each request its tokens, up to the one that ends it; return the requests that gained any.

        A request that ended while the step was on the device (acceleration/overlap.py) gains nothing.
        """
        unfinished = [request for request in requests if not request.finished]
        for request, new in zip(requests, tokens, strict=True):
            for sampled in new:
                if not request.finished:
                    request.append(sampled.token_id, sampled.logprobs)
                    self._generated_tokens += 1
        going = (request for request in unfinished if not request.finished)
        structured_output.prefetch([request for request in going if request.params.structure is not None])
        return unfinished

    def retire_finished(self, requests: Sequence[Request]) -> None:
        """Release whatever the stage holds for those of the requests that have ended."""
        for request in requests:
            if request.finished:
                self._retire(request)

    def _retire(self, request: Request) -> None:
        del self.requests[request.request_id]
        self.release(request)
        for hook in self.hooks:
            hook.on_finish(request)


class Hook:
    """What a server adds to an engine, in its `hooks`. All methods run on the engine's thread; here they do nothing."""

    def before_add(self, prompt: str | Sequence[int], params: SamplingParams) -> None:
        """Raise QueueFull to refuse a prompt that nothing has checked yet."""

    def on_add(self, request: Request) -> None:
        """Note a request that has been queued."""

    def before_step(self) -> bool:
        """Return whether the engine may take a step now."""
        return True

    def on_step(self, changed: list[Request]) -> list[Request]:
        """Return those of the changed requests whose clients are to be told. If no step was taken, there are none."""
        return changed

    def on_stats(self, stats: dict[str, float]) -> None:
        """Note the engine's figures after a step."""

    def on_finish(self, request: Request) -> None:
        """Note a request that has ended, in the middle of a step or between two."""


class Around:
    """An engine that wraps another, its `_engine`, and looks up there what it does not define itself.

    There are two, `PromptLogprobs` and within it `TensorParallelEngine`, each with a `step` of its own. The hooks are
    those of the stage's engine, and each is called once.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class AroundModel:
    """A model that wraps another, its `model`, in the same way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

"""Overlapped scheduling: the host schedules the next step, and commits the last one, while the device runs this one.

    plain:       schedule 1, run 1 | wait | commit 1, schedule 2, run 2 | wait | commit 2, schedule 3, run 3 | ...
                             device 1 ----                     device 2 ----                     device 3 --

    overlapped:  schedule 1, run 1 | schedule 2, run 2 | wait | commit 1, schedule 3, run 3 | wait | commit 2, ...
                             device 1 ----------------  device 2 --------------------------  device 3 ------

In the plain loop, a stage's own `step`, the device has nothing to do while the host commits a step and schedules the
next. But to schedule a step the host need not know the tokens of the one before, only that each request has one more.
To run it the host need not know them either: they are on the device, where the next step can pick them up. So here the
host is a step ahead.

The stage's three methods are used as they are. While a step is scheduled and run, each request whose newest token is
still on the device has a placeholder in its place: -1 stands for the first token that the step before has drawn, -2 for
the second. The scheduler and the sampler count it as any token, and `Resolved` replaces it before the model runs. What
the step on the device runs counts as computed: the device does steps in order.

What it costs: the host learns of an end-of-sequence token or a stop string one step late. By then another token of that
request is on its way, and is dropped. Its pages can be given away all the same: the device does steps in order, so
another request writes to them later. An answer that ends by its length is foreseen.

SGLang ("zero-overhead scheduler") and vLLM ("async scheduling") do the same. On a CPU, which is host and device in one,
nothing is gained by it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from ..engine import AroundModel, BaseEngine
from ..loader import Loaded
from ..model import Attend
from ..request import Request
from ..sampling import SamplerOutput


class Launched(NamedTuple):
    """A step on the device: its chunks, the requests that gain a token by it, and these tokens in the same order."""

    chunks: list
    requests: list[Request]
    drawn: SamplerOutput


NOTHING = Launched([], [], SimpleNamespace(token_ids=None, tokens=list))  # before the first step


class Resolved(AroundModel):
    """A model that takes placeholders for tokens; everything else is the model's own."""

    def __init__(self, model):
        self.model = model
        self.drawn: Tensor | None = None  # [B] int64 on the device: what placeholders stand for

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        if self.drawn is not None and len(self.drawn):
            known = self.drawn[(-token_ids - 1).clamp(min=0)]
            token_ids = torch.where(token_ids < 0, known, token_ids)
        return self.model(token_ids, positions, attend)


class OverlappedLoop(BaseEngine):
    """A base class that comes before a stage's Engine and replaces its loop by the overlapped one."""

    def __init__(self, loaded: Loaded, **options):
        super().__init__(loaded, **options)
        self.model = Resolved(self.model)
        self.launched = NOTHING  # the step on the device, whose tokens are not known yet
        self.leaving: set[Request] = set()  # the device has their last token, and they have been released

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Launch a step, and then commit the one before."""
        if not self.requests:
            return []
        before, launched = self.launched, NOTHING
        # Penalties depend on the tokens themselves, which the host counts: then it waits for them and launches nothing.
        if not any(request.params.penalised for request in before.requests):
            launched = self._launch(before)  # If this is interrupted, `self.launched` has not changed.
        changed = self.commit(before.chunks, before.drawn)
        self.launched = launched if self.requests else NOTHING
        return changed

    def release(self, request: Request) -> None:
        if request in self.leaving:
            self.leaving.remove(request)
        else:
            super().release(request)
        if not self.requests:
            self.launched = NOTHING

    def check(self) -> None:
        with self._placeholders(self.launched):
            super().check()

    def _launch(self, before: Launched) -> Launched:
        """Schedule and run a step, while the tokens of the step before are on the device."""
        self.scheduler.count_computed(before.chunks)
        with self._placeholders(before):
            self._release_ending(before)
            if len(self.leaving) == len(self.requests):
                return NOTHING
            with self.trace.step() as record:
                chunks = self.schedule(record)
                requests = [chunk.sequence.request for chunk in chunks if chunk.completes]
                return Launched(chunks, requests, self.run(chunks))

    @contextmanager
    def _placeholders(self, before: Launched) -> Iterator[None]:
        """Give each request a placeholder for its token that is on the device, within the context."""
        self.model.drawn = before.drawn.token_ids
        for place, request in enumerate(before.requests):
            request.token_ids.append(-1 - place)
        try:
            yield
        finally:
            for request in before.requests:
                request.token_ids.pop()
            self.model.drawn = None

    def _release_ending(self, before: Launched) -> None:
        """Release the requests whose last token is on the device: they run no more."""
        for request in before.requests:
            ends = len(request.token_ids) == request.max_tokens and not request.finished
            if ends and request not in self.leaving:
                super().release(request)
                self.leaving.add(request)

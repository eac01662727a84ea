"""Overlapped scheduling: the host plans the next step, and processes the last one, while the device runs this one.

    plain:       plan 1, launch | wait | process 1, plan 2, launch | wait | process 2, plan 3, launch | ...
                                 device 1                           device 2

    overlapped:  plan 1, launch | plan 2, launch | wait | process 1, plan 3, launch | wait | process 2, ...
                                 device 1 ------------  device 2 -----------------   device 3 ---------

In the plain loop, a stage's own `step`, the device has nothing to do while the host takes note of tokens and plans. But
to plan a step the host need not know the tokens of the one before, only that each request has one more; and to run it
need not know them either: they are on the device, where the next step can pick them up. So here the host is a step
ahead.

The stage's step is used as it is. While it lasts, each request whose newest token is still on the device has a
placeholder in its place: -1 stands for the first token that the flight before has drawn, -2 for the second. The
scheduler plans with it as with any token, the sampler counts it, and `Resolved` puts the token itself in before the
model sees it.

What it costs: of an end-of-sequence token or a stop string the host learns one step late. By then another token of that
request is on its way, which is dropped. Its pages can be given away all the same: the device does steps in order, so
whoever gets them writes to them later. An answer that ends by its length is foreseen.

SGLang ("zero-overhead scheduler") and vLLM ("async scheduling") do the same. On a CPU, which is host and device in one,
nothing is gained by it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ..engine import BaseEngine
from ..loader import Loaded
from ..model import Attend
from ..request import Request
from ..sampling import Drawn


class Flight(NamedTuple):
    """A step that has been launched: the requests that gain a token by it, and these tokens, in the same order."""

    requests: list[Request]
    drawn: Drawn


class Resolved:
    """A model that takes placeholders for tokens; everything else is the model's own."""

    def __init__(self, model):
        self.model = model
        self.drawn: Tensor | None = None  # [B] int64 on the device: what placeholders stand for

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        if self.drawn is not None and len(self.drawn):
            known = self.drawn[(-token_ids - 1).clamp(min=0)]
            token_ids = torch.where(token_ids < 0, known, token_ids)
        return self.model(token_ids, positions, attend)


class OverlappedLoop(BaseEngine):
    """Before a stage's Engine in the order of methods, it makes its loop the overlapped one."""

    def __init__(self, loaded: Loaded, **options):
        super().__init__(loaded, **options)
        self.model = Resolved(self.model)
        self.flight: Flight | None = None  # launched, and its tokens are not known yet
        self.leaving: set[Request] = set()  # their last token is in flight, and they have been released

    def step(self) -> list[Request]:
        """Launches a step, and then processes the tokens of the one before."""
        changed: list[Request] = []
        # Penalties depend on the tokens themselves, which the host counts: then it has to wait for them.
        if self.flight and any(request.params.penalised for request in self.flight.requests):
            changed = self._land()
        with self._in_place():
            self._let_go()
            before, self.flight = self.flight, None
            if len(self.leaving) < len(self.requests):
                super().step()
        self.flight, launched = before, self.flight
        changed += self._land()
        self.flight = launched if self.requests else None
        return changed

    def sample_next(self, requests: Sequence[Request], logits: Tensor) -> None:
        """The stage's step ends here: the tokens are drawn, and not waited for."""
        self.flight = Flight(list(requests), self.draw(requests, logits))

    def release(self, request: Request) -> None:
        if request in self.leaving:
            self.leaving.remove(request)
        else:
            super().release(request)
        if not self.requests:
            self.flight = None

    def check(self) -> None:
        with self._in_place():
            super().check()

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """As long as this lasts, requests in flight have a placeholder for the token that they will have."""
        expecting = [] if self.flight is None else self.flight.requests
        self.model.drawn = None if self.flight is None else self.flight.drawn.token_ids
        for place, request in enumerate(expecting):
            request.token_ids.append(-1 - place)
        try:
            yield
        finally:
            for request in expecting:
                request.token_ids.pop()
            self.model.drawn = None

    def _let_go(self) -> None:
        """Requests whose last token is in flight run no more, and whatever they hold can be given away."""
        for request in self.flight.requests if self.flight else []:
            if len(request.token_ids) == request.max_tokens and not request.finished:
                super().release(request)
                self.leaving.add(request)

    def _land(self) -> list[Request]:
        """Waits for the tokens in flight and gives them to their requests; returns those that had not ended before."""
        flight, self.flight = self.flight, None
        if flight is None:
            return []
        changed = []
        for request, sampled in zip(flight.requests, flight.drawn.tokens(), strict=True):
            if not request.finished:
                self.append_tokens(request, [sampled])
                changed.append(request)
        self.retire_finished(changed)
        return changed

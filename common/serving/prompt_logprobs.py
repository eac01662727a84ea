"""Log-probabilities of a prompt's own tokens: evaluation harnesses request them with `echo` and `logprobs`.

A text is scored between the steps of the engine, on the engine's thread, one piece after each step. So a long text
delays other streams no more than a long prompt does. To the engine thread it is a request like any other: it counts
against the queue, and ends when its client disconnects. And no other thread touches the model. Stage 08's router passes
it on to a worker, which scores it between the steps of its own engine: the router needs no weights.

vLLM scores prompts within its steps (`prompt_logprobs`), where they share batches and memory with other requests. Here
one text at a time is scored, with its own keys and values outside the engine's memory.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.attention.int8 import dequantize, quantize
from common.engine import Around, BaseEngine
from common.errors import InvalidInput
from common.loader.shard import VocabularyParallelHead
from common.request import Request, prompt_tokens
from common.sampling import SamplingParams, TokenLogprobs, token_logprobs

PIECE = 64  # tokens run and scored at once: with 20 log-probabilities each, no more work than a full step


class PromptLogprobsParams(SamplingParams):
    """Parameters of a request for the `logprobs` of its prompt's tokens. It generates nothing."""


class PromptScorer:
    """The prompts that an engine's model has to score, and how far it is with each."""

    def __init__(self, engine: BaseEngine):
        self._engine = engine
        self.texts: dict[str, tuple[Request, Iterator[list[TokenLogprobs | None]]]] = {}  # by request id, oldest first

    def add(self, request: Request) -> None:
        model = unwrapped(self._engine.model)
        pieces = scores(model, request.prompt_token_ids, request.params.logprobs or 0, self._engine.dtype)
        self.texts[request.request_id] = request, pieces

    def step(self) -> Request | None:
        """Score a piece of the oldest prompt; return its request, not yet finished, if that was the last piece."""
        if not self.texts:
            return None
        request, pieces = next(iter(self.texts.values()))
        with torch.inference_mode(), self._engine.on_device():
            request.logprobs += next(pieces)
        if len(request.logprobs) < len(request.prompt_token_ids):
            return None
        return self.remove(request.request_id)

    def remove(self, request_id: str) -> Request | None:
        """Forget a request, and return it; None if it is not here."""
        return self.texts.pop(request_id, (None, None))[0]


class PromptLogprobs(Around):
    """An engine that also scores prompts: `add` one with `PromptLogprobsParams`, and read the scores in its `logprobs`.

    All other attributes are the engine's own.
    """

    def __init__(self, engine: BaseEngine):
        self._engine, self._scorer = engine, PromptScorer(engine)
        self._numbers = itertools.count()

    @property
    def why_no_scoring(self) -> str:
        """Return a sentence if this engine scores no prompts, otherwise ""."""
        if self._engine.scores_prompts:
            return ""
        parts = isinstance(getattr(unwrapped(self._engine.model), "head", None), VocabularyParallelHead)
        # Only rank 0 would run the model: it would wait for the others, and hang.
        return "echo with logprobs does not work with --tensor-parallel: leave out one of the two" if parts else ""

    @property
    def has_unfinished(self) -> bool:
        return bool(self._scorer.texts) or self._engine.has_unfinished

    def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        if not isinstance(params, PromptLogprobsParams):
            return self._engine.add(prompt, params, request_id)
        for hook in self.hooks:
            hook.before_add(prompt, params)
        token_ids = prompt_tokens(prompt, self._engine.tokenizer, self._engine.config)
        request_id = request_id or f"scoring-{next(self._numbers)}"
        request = Request(request_id, token_ids, params, None, frozenset(), max_tokens=0)
        if self._engine.scores_prompts:
            self._engine.accept(request)
            self._engine.requests[request.request_id] = request
        elif self.why_no_scoring:
            raise InvalidInput(self.why_no_scoring)
        else:
            self._scorer.add(request)
        return request

    def step(self) -> list[Request]:
        """Run one step of the engine, with its hooks, then score a piece of the oldest text."""
        changed = self._engine.advance()
        if (request := self._scorer.step()) is None:
            return changed
        request.finish("length")
        return [*changed, request]

    def abort(self, request_id: str) -> None:
        if (request := self._scorer.remove(request_id)) is None:
            self._engine.abort(request_id)
        else:
            request.finish("abort")

    def stats(self) -> dict[str, float]:
        stats = self._engine.stats()
        for hook in self.hooks:
            hook.on_stats(stats)
        return stats | {"unfinished": stats["unfinished"] + len(self._scorer.texts)}


def unwrapped(model) -> nn.Module:
    """Return the model without the engine's wrappers: that of CUDA graphs keeps the logits of its last replay."""
    while not isinstance(model, nn.Module):
        model = model.model
    return model


def scores(
    model: nn.Module, token_ids: list[int], top: int, dtype: torch.dtype
) -> Iterator[list[TokenLogprobs | None]]:
    """Yield, piece by piece, each token's log-probability given those before it, with the `top` likeliest tokens.

    The entry of the first token, which nothing predicts, is None. Nothing runs before the first piece is requested.
    """
    config, device = model.config, next(model.parameters()).device
    ids = torch.tensor(token_ids, device=device)
    k, v = (
        torch.empty(config.num_layers, config.num_kv_heads, len(ids), config.head_dim, device=device, dtype=dtype)
        for _ in range(2)
    )
    first: list[TokenLogprobs | None] = [None]
    if len(ids) == 1:
        yield first
    for start in range(0, len(ids) - 1, PIECE):  # the last token predicts nothing that is scored
        stop = min(start + PIECE, len(ids) - 1)
        hidden = model(
            ids[start:stop], torch.arange(start, stop, device=device), partial(attend, k, v, start, config.kv_int8)
        )
        following = ids[start + 1 : stop + 1]
        yield first + token_logprobs(model.logits(hidden), following, [top] * len(following))
        first = []


def attend(keys: Tensor, values: Tensor, start: int, int8: bool, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Store the new K and V from position `start` on, and attend to all positions so far.

    q is [N, H, D], k and v are [N, H_kv, D], keys and values [layers, H_kv, S, D]; return [N, H, D]. int8: round K and
    V as the engine's pages do, so that the scores are those of the served model.
    """
    if int8:
        k, v = (dequantize(quantize(x), x.dtype) for x in (k, v))
    stop = start + len(q)
    keys[layer, :, start:stop], values[layer, :, start:stop] = k.transpose(0, 1), v.transpose(0, 1)
    earlier = torch.ones(len(q), stop, dtype=torch.bool, device=q.device).tril(start)
    q, k, v = q.transpose(0, 1), keys[layer, :, :stop], values[layer, :, :stop]
    q, k, v = (heads.unsqueeze(0) for heads in (q, k, v))  # [1, H, N, D], twice [1, H_kv, S, D]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=earlier, enable_gqa=True)[0].transpose(0, 1)

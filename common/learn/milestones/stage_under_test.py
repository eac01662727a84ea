"""The stage that milestones look at, and what they share: requests, engines, right answers, and how to say "wrong"."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from string import ascii_uppercase
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.engine import BaseEngine
from common.loader import Loaded, load_model
from common.request import Request
from common.sampling import SamplingParams
from common.stages import load_engine, load_stage_module

from . import Failed
from .page_writes import last_writes, record_writes
from .pictures import bars, first_difference, rows, timeline

STORIES = (
    "Once upon a time, there was a fox",
    "The capital of France is",
    "Count from 1 to 10:",
    "A KV cache keeps the keys and values",
    "The owl and the turtle went to",
    "What is 2+2?",
)


class StageUnderTest:
    """A stage's folder, with a model. Its modules are attributes: `stage.page_table.PageTable`."""

    def __init__(self, folder: Path, model: str | None = None):
        self.folder, self.model = folder, model

    def __getattr__(self, module: str) -> ModuleType:
        return load_stage_module(self.folder, module)

    @property
    def loaded(self) -> Loaded:
        return loaded_once(self.model)

    @cached_property
    def token_bytes(self) -> int:
        """Return bytes that K and V of one token take."""
        return self.loaded.config.kv_bytes_per_token(self.loaded.dtype)

    def make_engine(self, **options) -> BaseEngine:
        return load_engine(self.folder)(self.loaded, **options)

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Return different prompts of this many tokens."""
        texts = [self.loaded.tokenizer(f"{STORIES[i % len(STORIES)]} {i}, ")["input_ids"] for i in range(count)]
        return [(text * tokens)[:tokens] for text in texts]

    def text(self, tokens: Sequence[int]) -> str:
        return self.loaded.tokenizer.decode(tokens)


def bundled() -> Loaded:
    return loaded_once(None)


@cache
def loaded_once(model: str | None) -> Loaded:
    """Return a model in float32, None for the bundled one. A context of 512 tokens keeps the slots of stage 04 small.

    It is the plain model: numba's kernels would take longer to load than the milestones take, and their threads do not
    survive the fork with which the suite saves loading it.
    """
    loaded = load_model(model, device="cpu", dtype="float32", fused=False)
    return replace(loaded, config=replace(loaded.config, context_length=512))


@cache  # The same milestone runs on several folders, one after the other.
@torch.inference_mode()
def likeliest(prompt: tuple[int, ...], output: tuple[int, ...]) -> list[int]:
    """Return the greedy token behind the prompt, and behind each token of the output, by one pass over both."""
    token_ids, model = torch.tensor(prompt + output), bundled().model
    hidden = model(token_ids, torch.arange(len(token_ids)), causal_attention)
    return model.logits(hidden[len(prompt) - 1 :]).argmax(-1).tolist()


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend over one whole sequence, as stage 01 does."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, S, D]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def endless(max_tokens: int) -> SamplingParams:
    """Return greedy parameters for exactly this many tokens."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def make_request(name: str, prompt: int | list[int], max_tokens: int = 100) -> Request:
    """Return a request without a tokenizer, whose client gave no max_tokens. prompt: its tokens, or how many."""
    tokens = list(range(10, 10 + prompt)) if isinstance(prompt, int) else prompt
    return Request(name, tokens, SamplingParams(max_tokens=None, ignore_eos=True), None, frozenset(), max_tokens)


def expect(condition: Any, what: str, picture: str = "") -> None:
    if not condition:
        raise Failed(what, picture)


def expect_rows(what: str, mine: Any, wanted: Sequence, box: int = 0, **above: Sequence) -> None:
    """Fail with both rows under each other, and the first wrong place marked. above: rows that explain them."""
    mine, wanted = list(mine), list(wanted)
    if (place := first_difference(mine, wanted)) is not None:
        lines = above | {"wanted": wanted, "yours": mine}
        raise Failed(f"{what}: place {place} is wrong", rows(lines, place, box))


def expect_stats(what: str, engine: BaseEngine, wanted: Mapping[str, float]) -> None:
    """Fail unless the engine's stats have these values."""
    stats = engine.stats()
    expect_rows(f"stats, {what}", [stats.get(name) for name in wanted], [*wanted.values()], name=[*wanted])


def expect_tensors(of: Any, requests: str, **wanted: list) -> None:
    """Fail unless these attributes have these values, of which each belongs to the request with the letter above it."""
    for name, values in wanted.items():
        expect_rows(name, getattr(of, name).tolist(), values, request=requests)


def expect_attention_in_steps(
    stage: StageUnderTest,
    cache: Any,
    steps: Sequence[Sequence[tuple[str, int, int]]],
    bind: Callable[[Sequence[tuple[str, int, int]]], Any],
    place_of: Callable[[str, int], Any],
) -> None:
    """Fail unless each step leaves its keys and values in the cache, in layer 3, and attends to each token's past.

    steps: of each request that runs its name, its first token and the one behind its last. bind: to a step's `attend`.
    place_of: the place of a request's token in one layer of the cache, as an index.
    """
    config = stage.loaded.config
    torch.manual_seed(0)
    cache.k.zero_()
    past: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for spans in steps:
        tokens = [(name, position) for name, start, stop in spans for position in range(start, stop)]
        names = [f"{name}{position}" for name, position in tokens]
        q = torch.randn(len(tokens), config.num_heads, config.head_dim)
        k, v = torch.randn(2, len(tokens), config.num_kv_heads, config.head_dim)
        mine = bind(spans)(3, q, k, v)
        right = isinstance(mine, Tensor) and mine.shape == q.shape
        expect(right, f"`attend` must return a tensor of shape {list(q.shape)}, not {getattr(mine, 'shape', mine)}")
        for kind, pool, new in (("keys", cache.k, k), ("values", cache.v, v)):
            stored = [torch.equal(pool[3][place_of(*token)], row) for token, row in zip(tokens, new, strict=True)]
            expect_rows(f"{kind} in their places", stored, [True] * len(tokens), token=names)
        errors = {}
        for i, (name, _) in enumerate(tokens):
            past[name].append((k[i], v[i]))
            keys, values = (torch.stack(rows, dim=1) for rows in zip(*past[name], strict=True))  # [H_kv, S, D]
            wanted = F.scaled_dot_product_attention(q[i][:, None], keys, values, enable_gqa=True)[:, 0]
            errors[names[i]] = (mine[i] - wanted).abs().max().item()
        picture = bars(errors, 1.0)
        expect(max(errors.values()) < 1e-4, "attention differs from the definition; the error by token", picture)
    expect(not cache.k[[0, -1]].any(), "layers that were not run have keys: `layer` picks the pool")


def expect_error(kind: type[Exception], call, what: str) -> str:
    """Return the message of the error that the call raises. Fail if it raises none of this kind."""
    try:
        call()
    except kind as error:
        return str(error)
    raise Failed(f"{what} must raise {kind.__name__}, and raised nothing")


def commit(scheduler: Any, chunks: list) -> None:
    """Append a token to each request that has run to its end, and count all chunks as computed."""
    for one in chunks:
        if one.completes:
            one.sequence.request.append(7)
    scheduler.count_computed(chunks)


def expect_steps(scheduler: Any, arriving: list[dict[str, int]], wanted: list[dict[str, int]]) -> None:
    """Fail unless each step runs the wanted tokens of each request, in the wanted order.

    arriving: the prompts, in tokens, that arrive before each of the first steps, by the names of their requests.
    """
    for number, right in enumerate(wanted, 1):
        for name, tokens in arriving[number - 1].items() if number <= len(arriving) else ():
            scheduler.add(make_request(name, [10 + ord(name)] * tokens, 40))
        chunks = scheduler.schedule()
        mine = {one.sequence.request.request_id: len(one.token_ids) for one in chunks}
        expect([*mine.items()] == [*right.items()], f"step {number} runs {mine}, not {right}")
        commit(scheduler, chunks)


def drain(engine: BaseEngine, most: int = 400, until: Callable[[], bool] = lambda: False) -> None:
    """Step until nothing is unfinished, or `until` says so. Fail after `most` steps, or if one returns no list."""
    record_writes(engine)
    for _ in range(most):
        if until() or not engine.has_unfinished:
            return
        changed = engine.step()
        expect(isinstance(changed, list), f"`step` returned {changed!r}, not the list of requests that have changed")
    names = letters(engine.requests)
    picture = timeline(list(engine.trace)[-12:], names)
    raise Failed(f"after {most} steps these requests are not finished: {', '.join(names.values())}", picture)


def letters(request_ids: Sequence[str]) -> dict[str, str]:
    return {request_id: ascii_uppercase[i % 26] for i, request_id in enumerate(request_ids)}


def expect_tokens(stage: StageUnderTest, engine: BaseEngine, requests: list[Request], count: int | None = None) -> None:
    """Fail at the first wrong output token, as text, with what wrote its request's pages and the steps around it.

    Right are the greedy tokens behind each prompt. count: how many there must be so far; None: max_tokens of each.
    """
    names = letters([request.request_id for request in requests])
    for request in requests:
        right = likeliest(tuple(request.prompt_token_ids), tuple(request.token_ids))[: count or request.max_tokens]
        place = first_difference(request.token_ids, right)
        if place is not None:
            letter, mine = names[request.request_id], request.token_ids[place : place + 1]
            said = f"{stage.text(mine)!r} in place of {stage.text(right[place : place + 1])!r}"
            count = len(request.prompt_token_ids) + place
            picture = f"... {stage.text(request.all_token_ids[:count])[-40:]!r}\n"
            pages, step = last_writes(engine, request.request_id, count, names)
            steps = list(engine.trace)
            ran = [i for i, step in enumerate(steps) if any(w.request_id == request.request_id for w in step.works)]
            mark = step - 1 if step else ran[min(place, len(ran) - 1)] if ran else None
            picture += pages + (timeline(steps, names, mark) if ran else "")
            raise Failed(f"request {letter}, output token {place + 1}: {said}", picture)

"""Sampling: what a request may ask for, and how logits become its next token.

B rows (one for each token to be drawn) of V logits go through one pipeline, all rows at once, each row with
its own parameters. The order is vLLM's, and each step depends on it:

1. biases and penalties change which token is likeliest, so they come first; greedy rows obey them too
2. temperature changes how much mass each token has, so it precedes the filters that measure mass
3. min-p drops tokens far below the likeliest one; then top-k keeps k of what is left; then top-p keeps the
   smallest set that holds the share top_p of the mass still there
4. one draw from what remains

`probabilities` is steps 1 to 3 and `draw` is step 4, so that speculative decoding can verify its drafts
against exactly the distribution that `sample` draws from.

Randomness is a pure function of (seed, index of the output token): there is no generator whose position could
be lost in a preemption or advanced by a neighbour in the batch. Equal logits therefore give equal tokens,
whatever else is in the batch. (Whether a model's logits are equal in another batch is up to its kernels.)

On a GPU, rows that want a temperature and nothing else are drawn by two kernels (gpu/sampler.py); what stands here is
their definition. Which way a row goes depends on its own parameters alone, never on its neighbours.

Production engines fuse the filters too, and avoid the full sort. SGLang keeps the penalties' counts on the device
between steps; vLLM recounts them from the token lists, as this sampler does: that costs time, but leaves no state to
lose.
"""

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .sampling_params import SamplingParams
from .transfers import ToHost, to_device

# Rows that pass the filters together. On the way each takes about 70 bytes a token of the vocabulary, and leaves 8.
MOST_ROWS = 64


class Row(Protocol):
    """What the sampler reads of a request. The token to draw is number `len(token_ids)` of its output."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]  # the output so far
    seed: int  # from params.resolve_seed(), once, when the request is created


class TokenLogprobs(NamedTuple):
    """Natural logarithms of the probabilities the model gave, before penalties, temperature and filters."""

    logprob: float  # of the sampled token
    top: list[tuple[int, float]]  # (token id, logprob) of the n likeliest tokens, best first


class SampledToken(NamedTuple):
    token_id: int
    logprobs: TokenLogprobs | None  # None unless the request asked


def sample(logits: Tensor, rows: Sequence[Row]) -> list[SampledToken]:
    """Return the next token of every row; see `Drawn`."""
    return Drawn(logits, rows).tokens()


class Drawn:
    """The next token of every row, drawn on the device and on its way to the host.

    logits is [B, V] on any device, in float32 or a type that float32 holds, left as it is; each row of it has a finite
    value and no NaN or +inf. Raise ValueError unless there are exactly B rows. best is its argmax, [B] int64, if known.

    token_ids: [B] int64, on the device: a next step can begin with them before the host has seen them. The
    host waits for nothing until it asks for `tokens`.
    """

    def __init__(self, logits: Tensor, rows: Sequence[Row], best: Tensor | None = None):
        if len(rows) != len(logits):
            raise ValueError(f"logits must have one row for each of the {len(rows)} tokens, not {len(logits)}")
        if not all(row.params.greedy for row in rows):
            self.token_ids = draw_rows(logits, rows)
        elif best is None or any(row.params.penalised for row in rows):
            self.token_ids = apply_penalties(logits, rows).argmax(-1)
        else:
            self.token_ids = best
        self.ids = ToHost(self.token_ids)
        self.logprobs = Logprobs(logits, self.token_ids, [row.params.logprobs for row in rows])

    def tokens(self) -> list[SampledToken]:
        """Wait for the tokens, and return them."""
        return [SampledToken(*pair) for pair in zip(self.ids.tolist(), self.logprobs.tolist(), strict=True)]


def draw_rows(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the next token of every row, [B] int64: kernels draw the rows that they can, the definition the others."""
    uniforms = [uniform(row.seed, len(row.token_ids)) for row in rows]
    if not has_kernels(logits.device):
        return draw(probabilities(logits, rows), uniforms)
    from .gpu.sampler import draw_plain  # needs triton

    token_ids = draw_plain(logits, [row.params.temperature for row in rows], uniforms)
    if others := [i for i, row in enumerate(rows) if row.params.penalised or row.params.filtered]:
        index = to_device(others, torch.int64, logits.device)
        drawn = draw(probabilities(logits[index], [rows[i] for i in others]), [uniforms[i] for i in others])
        token_ids.index_copy_(0, index, drawn)
    return token_ids


def has_kernels(device: torch.device) -> bool:
    """Return whether the kernels of gpu/sampler.py run on this device."""
    return device.type == "cuda" and find_spec("triton") is not None


def probabilities(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the distributions that `sample` draws from: [B, V] -> [B, V] float64, each row summing to 1.

    A greedy row is one-hot. Among equal logits the lower token id ranks first, for greedy as for top-k and
    top-p, so top_k=1 is greedy at any temperature. (vLLM, in PyTorch, keeps all tokens that tie for place k.)

    float64, because a GPU may sum a row in another order when B changes. In float32 that rounding would now
    and then move a token across the top-p cut or across the number drawn, and the same seed would give
    another text.
    """
    result = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    for start in range(0, len(rows), MOST_ROWS):
        some = slice(start, start + MOST_ROWS)
        weights = _weights(logits[some], rows[some])
        torch.div(weights, weights.sum(-1, keepdim=True), out=result[some])
    return result


def _weights(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return what penalties, temperature and filters leave of R rows: [R, V] -> [R, V] float64, not yet normalised."""
    params = [row.params for row in rows]
    logits = apply_penalties(logits, rows)
    # Weights are relative to the likeliest token, whose weight is 1: what min-p needs. And as no difference
    # is above 0, the smallest temperature can only overflow to -inf, which is weight 0.
    weights = logits.double() - logits.amax(-1, keepdim=True)
    weights = (weights / _column([p.temperature or 1.0 for p in params], weights)).exp()
    if any(p.min_p for p in params):
        weights = weights.masked_fill(weights < _column([p.min_p for p in params], weights), 0.0)
    if ranked := [i for i, p in enumerate(params) if p.filtered and (p.top_k or p.top_p < 1)]:
        index = to_device(ranked, torch.int64, logits.device)
        weights[index] = _keep_top(weights[index], logits[index], [params[i] for i in ranked])
    if any(p.greedy for p in params):
        one_hot = torch.zeros_like(weights).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        weights = torch.where(_column([p.greedy for p in params], weights) > 0, one_hot, weights)
    return weights


def _keep_top(weights: Tensor, logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero the weights that top-k or top-p excludes: [R, V] -> [R, V]. One sort serves both filters."""
    V = weights.shape[-1]
    # Logits are sorted, not weights: exp() rounds, and would make ties where there are none.
    order = logits.argsort(dim=-1, descending=True, stable=True)
    kept = weights.gather(-1, order)
    top_k = _column([min(p.top_k or V, V) for p in params], kept)
    kept = kept.masked_fill(torch.arange(V, device=kept.device) >= top_k, 0.0)
    # A token stays if those ahead of it fall short of the share top_p, so the first always stays. Where top-p
    # is off its share is infinite: with 1, tokens in the tail would be lost to rounding.
    top_p = _column([p.top_p if p.top_p < 1 else math.inf for p in params], kept)
    ahead = kept.cumsum(-1) - kept
    kept = kept.masked_fill(ahead >= top_p * kept.sum(-1, keepdim=True), 0.0)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def draw(weights: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Draw one token per row by inverse CDF: [B, V] float64 weights >= 0, B numbers in [0, 1) -> [B] int64.

    The weights need not sum to 1, but each row needs a positive one. A token of weight 0 is never returned.

    The token is the first at which the running sum exceeds the row's number (as a share of the total). One
    number and the row's own weights decide it, so it cannot depend on the batch; noise generated for all of
    [B, V] at once, from one generator, would differ with B and with the row's place.
    """
    # A token of weight 0 gets a running sum of 0, which exceeds nothing, and the total is a running sum that
    # some token has. So a valid token is found even where a parallel sum is rounded and not quite monotonic.
    cdf = weights.cumsum(-1).masked_fill_(weights == 0, 0.0)
    threshold = _column(uniforms, weights) * cdf.amax(-1, keepdim=True)
    return (cdf > threshold).int().argmax(-1)  # of equals, argmax takes the first


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """Return a number in [0, 1), a multiple of 2**-53; the same arguments always give the same one.

    position is the index of the output token it decides; stream tells apart several draws for one position, 0
    being that of the token itself. All three are integers in [0, 2**64).

    This is a counter-based generator: it hashes the place in the sequence instead of advancing a state. On a
    GPU that is usually Philox; here any good hash will do.
    """
    digest = hashlib.blake2b(struct.pack("<3Q", seed, position, stream), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def apply_penalties(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Make tokens that occurred before less likely (or likelier, below the neutral value), and others as asked.

    [B, V] -> [B, V]: a new tensor, float32, or the same one if no row wants that. Repetition counts prompt and
    output, as the paper that introduced it does (CTRL); presence and frequency only the output, as OpenAI's do.
    Before them come the biases, and the tokens that may not end the answer yet: as in vLLM.
    """
    index = [i for i, row in enumerate(rows) if row.params.penalised]
    if not index:
        return logits
    places, logits = to_device(index, torch.int64, logits.device), logits.float()
    rows, changed = [rows[i] for i in index], logits[places]  # [R, V], a copy
    for row, scores in zip(rows, changed, strict=True):
        if row.params.logit_bias:
            token_ids, biases = zip(*row.params.logit_bias, strict=True)
            token_ids = to_device(token_ids, torch.int64, scores.device)
            scores.scatter_add_(0, token_ids, to_device(biases, scores.dtype, scores.device))
        if len(row.token_ids) < row.params.min_tokens:
            forbidden = [token_id for token_id in row.params.ending_token_ids if token_id < len(scores)]
            scores.index_fill_(0, to_device(forbidden, torch.int64, scores.device), -math.inf)
    in_output = _count((row.token_ids for row in rows), changed)
    seen = in_output + _count((row.prompt_token_ids for row in rows), changed) > 0
    repetition = _column([row.params.repetition_penalty for row in rows], changed)
    # Dividing would make a negative logit likelier, so that is multiplied.
    changed = torch.where(seen, torch.where(changed > 0, changed / repetition, changed * repetition), changed)
    changed -= _column([row.params.frequency_penalty for row in rows], changed) * in_output
    changed -= _column([row.params.presence_penalty for row in rows], changed) * (in_output > 0)
    return logits.index_copy(0, places, changed)


def _count(token_ids: Iterable[Sequence[int]], like: Tensor) -> Tensor:
    """Count how often each token occurs in each of R lists: [R, V], like `like` in shape, dtype and device."""
    counts = torch.zeros_like(like)
    for row, ids in zip(counts, token_ids, strict=True):
        index = to_device(ids, torch.int64, like.device)
        row.scatter_add_(0, index, torch.ones_like(index, dtype=like.dtype))
    return counts


def token_logprobs(logits: Tensor, token_ids: Tensor, wanted: Sequence[int | None]) -> list[TokenLogprobs | None]:
    """Return an entry for each row, None for rows that want none; see `Logprobs`."""
    return Logprobs(logits, token_ids, wanted).tolist()


class Logprobs:
    """Log-probabilities of the sampled tokens and of the likeliest ones, on their way to the host.

    logits is [B, V], as the model gave them; token_ids [B] int64 are those sampled; wanted is
    SamplingParams.logprobs of each row. A token whose logit is -inf has -inf.
    """

    def __init__(self, logits: Tensor, token_ids: Tensor, wanted: Sequence[int | None]):
        self.wanted = wanted
        self.index = [i for i, n in enumerate(wanted) if n is not None]
        if self.index:
            places = to_device(self.index, torch.int64, logits.device)
            logprobs = logits[places].float().log_softmax(-1)  # [R, V]
            top = logprobs.topk(min(max(wanted[i] for i in self.index), logits.shape[-1]))
            sampled = logprobs.gather(-1, token_ids[places, None])[:, 0]
            self.columns = [ToHost(column) for column in (sampled, top.indices, top.values)]

    def tolist(self) -> list[TokenLogprobs | None]:
        """Wait for them, and return an entry for each row; None for rows that want none."""
        result: list[TokenLogprobs | None] = [None] * len(self.wanted)
        if self.index:
            columns = (column.tolist() for column in self.columns)
            for i, logprob, ids, values in zip(self.index, *columns, strict=True):
                result[i] = TokenLogprobs(logprob, list(zip(ids, values, strict=True))[: self.wanted[i]])
        return result


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """Return one number per row, to broadcast over the vocabulary: [B, 1], with the dtype and device of `like`."""
    return to_device(values, like.dtype, like.device)[:, None]

"""Sampling: how logits become the next token of a request.

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
whatever else is in the batch. (Whether a model's logits are equal in another batch is up to its kernels: in float32
they are near enough, in bfloat16 near ties flip.)

On a GPU, steps 2 to 4 are three kernels without a sort (sampling_kernels.py); what stands here is their definition.
What a row draws depends on its own parameters alone, never on its neighbours.

A CPU ranks the likeliest CANDIDATES tokens for top-k and top-p, and all of them only where those do not suffice.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .fused.triton_launch import why_not_triton
from .penalties import apply_penalties
from .sampling_params import Row, SamplingParams
from .transfers import ToHost, to_device

# Rows that pass the filters together. Each takes about 70 bytes per token of the vocabulary meanwhile, and 8 after.
MAX_ROWS = 64
# Tokens that a CPU ranks first: top-k and top-p seldom keep more, and sorting 151,936 takes 15 times as long.
CANDIDATES = 512


class TokenLogprobs(NamedTuple):
    """Natural logarithms of the probabilities the model gave, before penalties, temperature and filters."""

    logprob: float  # of the sampled token
    top: list[tuple[int, float]]  # (token id, logprob) of the n likeliest tokens, best first


class SampledToken(NamedTuple):
    token_id: int
    logprobs: TokenLogprobs | None  # None unless the request asked


def sample(logits: Tensor, rows: Sequence[Row]) -> list[SampledToken]:
    """Return the next token of every row; see `SamplerOutput`."""
    return SamplerOutput(logits, rows).tokens()


class SamplerOutput:
    """The next token of every row, drawn on the device and on its way to the host.

    logits is [B, V] on any device, in float32 or a type that float32 holds, left as it is; each row of it has a finite
    value and no NaN or +inf. Raise ValueError unless there are exactly B rows.

    token_ids: [B] int64, on the device: a next step can begin with them before the host has seen them. The
    host waits for nothing until it asks for `tokens`.
    """

    def __init__(self, logits: Tensor, rows: Sequence[Row]):
        if len(rows) != len(logits):
            raise ValueError(f"logits must have one row for each of the {len(rows)} tokens, not {len(logits)}")
        if not all(row.params.greedy for row in rows):
            self.token_ids = draw_rows(logits, rows)
        else:
            self.token_ids = likeliest(apply_penalties(logits, rows))
        self.ids = ToHost(self.token_ids)
        self.logprobs = Logprobs(logits, self.token_ids, [row.params.logprobs for row in rows])

    def tokens(self) -> list[SampledToken]:
        """Wait for the tokens, and return them."""
        return [SampledToken(*pair) for pair in zip(self.ids.tolist(), self.logprobs.tolist(), strict=True)]


def likeliest(logits: Tensor) -> Tensor:
    """Return the first of the highest logits in each row. numpy finds them in a fraction of the time torch takes."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def draw_rows(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the next token of every row, [B] int64: drawn by kernels on a GPU, and elsewhere by the definition."""
    uniforms = [uniform(row.seed, len(row.token_ids)) for row in rows]
    if has_kernels(logits.device):
        from .sampling_kernels import draw_tokens  # needs triton

        token_ids = draw_tokens(logits, [row.params for row in rows], uniforms)
        others = [i for i, row in enumerate(rows) if row.params.penalised]
    else:
        draw_tokens = None
        token_ids = likeliest(logits)
        others = [i for i, row in enumerate(rows) if row.params.penalised or not row.params.greedy]
    if others:
        index = to_device(others, torch.int64, logits.device)
        rows, uniforms, logits = [rows[i] for i in others], [uniforms[i] for i in others], logits[index]
        if draw_tokens:
            drawn = draw_tokens(apply_penalties(logits, rows), [row.params for row in rows], uniforms)
        else:
            drawn = draw(probabilities(logits, rows), uniforms)
        token_ids.index_copy_(0, index, drawn)
    return token_ids


def has_kernels(device: torch.device) -> bool:
    """Return whether the kernels of sampling_kernels.py run on this device."""
    return device.type == "cuda" and why_not_triton(device) is None


def probabilities(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the distributions that `sample` draws from: [B, V] -> [B, V] float64, each row summing to 1.

    A greedy row is one-hot. Among equal logits the lower token id ranks first, for greedy as for top-k and
    top-p, so top_k=1 is greedy at any temperature. (vLLM, in PyTorch, keeps all tokens that tie for place k.)

    float64, because a GPU may sum a row in another order when B changes. In float32 that rounding would now
    and then move a token across the top-p cut or across the number drawn, and the same seed would give
    another text.
    """
    result = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    for start in range(0, len(rows), MAX_ROWS):
        some = slice(start, start + MAX_ROWS)
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
        V = weights.shape[-1]
        first = CANDIDATES if logits.device.type == "cpu" and V > 4 * CANDIDATES else V
        weights[index] = _keep_top(weights[index], logits[index], [params[i] for i in ranked], first)
    if any(p.greedy for p in params):
        one_hot = torch.zeros_like(weights).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        weights = torch.where(_column([p.greedy for p in params], weights) > 0, one_hot, weights)
    return weights


def _keep_top(weights: Tensor, logits: Tensor, params: Sequence[SamplingParams], first: int) -> Tensor:
    """Zero the weights that top-k or top-p excludes: [R, V] -> [R, V]. One sort serves both filters.

    first: how many of the likeliest tokens to rank. A row for which they do not suffice is ranked as a whole.
    """
    V = weights.shape[-1]
    # Logits are ranked, not weights: exp() rounds, and would make ties where there are none.
    scores, order = _ranked(logits, first)
    kept = weights.gather(-1, order)
    top_k = _column([min(p.top_k or V, V) for p in params], kept)
    kept = kept.masked_fill(torch.arange(first, device=kept.device) >= top_k, 0.0)
    # A token stays if those ahead of it fall short of the share top_p, so the first always stays. Where top-p
    # is off its share is infinite: with 1, tokens in the tail would be lost to rounding.
    top_p = _column([p.top_p if p.top_p < 1 else math.inf for p in params], kept)
    ahead = kept.cumsum(-1) - kept
    total = torch.where(top_k < V, kept.sum(-1, keepdim=True), weights.sum(-1, keepdim=True))
    kept = kept.masked_fill(ahead >= top_p * total, 0.0)
    result = torch.zeros_like(weights).scatter(-1, order, kept)
    if first < V:
        # Tokens that tie with the last ranked one may be missing, so all that the filters keep must rank before it.
        needed = torch.where(top_k < V, top_k, (kept > 0).sum(-1, keepdim=True))
        short = (needed > (scores > scores[:, -1:]).sum(-1, keepdim=True)).nonzero()[:, 0]
        if len(short):
            result[short] = _keep_top(weights[short], logits[short], [params[i] for i in short.tolist()], V)
    return result


def _ranked(logits: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return the `first` largest logits of each row and their token ids, best first; of equals the lower id is first.

    Of logits that tie for the last place any may be returned.
    """
    if first == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    token_ids = logits.topk(first, sorted=False).indices.sort().values
    scores, order = logits.gather(-1, token_ids).sort(dim=-1, descending=True, stable=True)
    return scores, token_ids.gather(-1, order)


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

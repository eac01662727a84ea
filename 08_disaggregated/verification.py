"""NEW in 07: which of the proposed tokens become output, and what follows the last of them.

The target has scored the newest token and the k proposals behind it in one pass, so it has said what it would have
said after each of them. The output is the proposals up to the first one that it does not take, and one token of its
own: in place of that one, or, if it takes all, behind the last. So a pass gives 1 to k + 1 tokens, and never fewer
than a pass without proposals.

Two ways to decide, and the output of both is distributed as the target's own (Leviathan et al., 2023; Chen et al.,
2023):

- *Comparison.* The sampler of stage 06 draws the target's token. A proposal that is the same token is accepted. For
  greedy requests nothing else makes sense. It also keeps what a seed promises, since what is drawn depends on seed and
  position alone: the text is that of stage 06, whatever has been proposed.
- *Rejection sampling*, for requests without a seed whose proposals were drawn from a distribution q. With p the
  target's, a proposal x is accepted with probability min(1, p(x) / q(x)), else the token is drawn from the positive
  part of p - q. No other way accepts more often: in sum over x, min(p(x), q(x)).

For a proposal that was not drawn at all (prompt lookup) the two are the same: q is 1 at x, and p(x) is accepted.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.request import Request
from common.sampling import SampledToken, SamplingParams, draw, probabilities, sample, token_logprobs, uniform

# Of the numbers that a seed has for each position, the sampler takes the first: see common.sampling.uniform.
COIN, RESIDUAL = 1, 2


@dataclass
class Proposal:
    """What a drafter thinks comes next: up to k tokens.

    probabilities: for each token the distribution `[V]`, float64, that it was drawn from, where a request is to be
    verified by rejection sampling; otherwise empty. accepted: how many of them `verify` has taken.
    """

    token_ids: list[int] = field(default_factory=list)
    probabilities: list[Tensor] = field(default_factory=list)
    accepted: int = 0


@dataclass
class Row:
    """A request as it would be with some proposals accepted: what the sampler reads of it."""

    params: SamplingParams
    prompt_token_ids: list[int]
    token_ids: list[int]
    seed: int

    @classmethod
    def after(cls, request: Request, proposed: list[int]) -> "Row":
        return cls(request.params, request.prompt_token_ids, request.token_ids + proposed, request.seed)


def by_rejection(request: Request) -> bool:
    return not request.params.greedy and request.params.seed is None


def verify(logits: Tensor, requests: List[Request], proposals: List[Proposal]) -> list[list[SampledToken]]:
    """The tokens that each request gains, at least one; each proposal learns how many of its own are among them.

    logits is `[R, V]` float32: for each request in turn, the scores behind its newest token and behind each proposal.
    """
    rows, spans = [], []
    for request, proposal in zip(requests, proposals, strict=True):
        spans.append(range(len(rows), len(rows) + len(proposal.token_ids) + 1))
        rows += [Row.after(request, proposal.token_ids[:count]) for count in range(len(spans[-1]))]
    drawn = [i for span, proposal in zip(spans, proposals, strict=True) if proposal.probabilities for i in span]
    others = [i for span, proposal in zip(spans, proposals, strict=True) if not proposal.probabilities for i in span]
    said: dict[int, SampledToken] = {}
    p: dict[int, Tensor] = {}
    if others:
        chosen = logits[others] if drawn else logits
        said = dict(zip(others, sample(chosen, [rows[i] for i in others]), strict=True))
    if drawn:
        p = dict(zip(drawn, probabilities(logits[drawn], [rows[i] for i in drawn]), strict=True))
    gained = []
    for span, proposal in zip(spans, proposals, strict=True):
        if proposal.probabilities:
            tokens = reject(logits[span.start : span.stop], [p[i] for i in span], [rows[i] for i in span], proposal)
        else:
            tokens = compare([said[i] for i in span], proposal.token_ids)
        proposal.accepted = len(tokens) - 1
        gained.append(tokens)
    return gained


def compare(said: list[SampledToken], proposed: list[int]) -> list[SampledToken]:
    """What the target has said, for as long as the proposals say the same, and its next token."""
    agreed = 0
    while agreed < len(proposed) and said[agreed].token_id == proposed[agreed]:
        agreed += 1
    return said[: agreed + 1]


def reject(logits: Tensor, p: List[Tensor], rows: List[Row], proposal: Proposal) -> list[SampledToken]:
    """Rejection sampling for one request: logits `[k + 1, V]`, and k + 1 distributions `[V]` of the target."""
    ids, q = proposal.token_ids, proposal.probabilities
    kept = 0
    while kept < len(ids):
        # q is positive where a token was drawn. A coin is below 1, so what p likes at least as much is always kept.
        coin = uniform(rows[kept].seed, len(rows[kept].token_ids), COIN)
        if coin * q[kept][ids[kept]] >= p[kept][ids[kept]]:
            break
        kept += 1
    if kept == len(ids):
        weights, stream = p[kept], 0
    else:
        # As p and q both sum to 1 and p is less at the rejected token, it is more somewhere, unless by rounding alone.
        weights, stream = (p[kept] - q[kept]).clamp(min=0), RESIDUAL
        weights = weights if weights.any() else p[kept]
    last = draw(weights[None], [uniform(rows[kept].seed, len(rows[kept].token_ids), stream)]).tolist()
    token_ids = torch.tensor(ids[:kept] + last, device=logits.device)
    logprobs = token_logprobs(logits[: kept + 1], token_ids, [rows[0].params.logprobs] * (kept + 1))
    return [SampledToken(*pair) for pair in zip(token_ids.tolist(), logprobs, strict=True)]

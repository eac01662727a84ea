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
    rows = [
        Row.after(request, proposal.token_ids[:count])
        for request, proposal in zip(requests, proposals, strict=True)
        for count in range(len(proposal.token_ids) + 1)
    ]
    said = sample(logits, rows)
    gained, start = [], 0
    for proposal in proposals:
        stop = start + len(proposal.token_ids) + 1
        if proposal.probabilities:
            gained.append(reject(logits[start:stop], rows[start:stop], proposal))
        else:
            gained.append(compare(said[start:stop], proposal.token_ids))
        proposal.accepted = len(gained[-1]) - 1
        start = stop
    return gained


def compare(said: list[SampledToken], proposed: list[int]) -> list[SampledToken]:
    """What the target has said, for as long as the proposals say the same, and its next token."""
    agreed = 0
    while agreed < len(proposed) and said[agreed].token_id == proposed[agreed]:
        agreed += 1
    return said[: agreed + 1]


def reject(logits: Tensor, rows: list[Row], proposal: Proposal) -> list[SampledToken]:
    """Rejection sampling for one request: logits `[k + 1, V]`, and k + 1 rows."""
    p = probabilities(logits, rows)  # [k + 1, V]
    q = torch.stack(proposal.probabilities)  # [k, V]
    ids = torch.tensor(proposal.token_ids, device=p.device)[:, None]
    ratios = (p[:-1].gather(1, ids) / q.gather(1, ids))[:, 0].tolist()  # q is positive where a token was drawn
    coins = [uniform(row.seed, len(row.token_ids), COIN) for row in rows]
    kept = next((i for i, ratio in enumerate(ratios) if coins[i] >= ratio), len(ratios))
    if kept < len(ratios):
        # Not empty: p(x) < q(x) for the rejected x, and both sum to 1. But rounding may leave nothing of a p that is q.
        weights, stream = (p[kept] - q[kept]).clamp(min=0), RESIDUAL
        weights = weights if weights.any() else p[kept]
    else:
        weights, stream = p[kept], 0
    last = draw(weights[None], [uniform(rows[kept].seed, len(rows[kept].token_ids), stream)])
    token_ids = torch.cat([ids[:kept, 0], last])
    logprobs = token_logprobs(logits[: kept + 1], token_ids, [rows[0].params.logprobs] * (kept + 1))
    return [SampledToken(*pair) for pair in zip(token_ids.tolist(), logprobs, strict=True)]

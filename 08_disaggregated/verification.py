"""Which draft tokens become output, and what follows the last of them.

The target scores the newest token and the k draft tokens behind it in one pass, so its own choice after each of them is
known. The output is the draft tokens up to the first one that it rejects, and one token of its own: in place of the
rejected one, or, if it accepts all, behind the last. So a pass gives 1 to k + 1 tokens, and never fewer than a pass
without draft tokens.

Two ways to decide, and the output of both is distributed as the target's own (Leviathan et al., 2023; Chen et al.,
2023):

- *Comparison.* The sampler of stage 06 draws the target's token. A draft token that is the same is accepted. For
  greedy requests nothing else makes sense. It also keeps what a seed promises, since what is drawn depends on seed and
  position alone: in float32 the text is that of stage 06, whatever the draft.
- *Rejection sampling*, for requests without a seed whose draft tokens were drawn from a distribution q. With p the
  target's, a draft token x is accepted with probability min(1, p(x) / q(x)), else the token is drawn from the positive
  part of p - q, scaled to sum to 1. No other way accepts more often: in sum over x, min(p(x), q(x)).

For a draft token that was not drawn at all (prompt lookup) the two are the same: q is 1 at x, and p(x) is accepted.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from common.request import Request
from common.sampling import SampledToken, SamplingParams, draw, probabilities, sample, token_logprobs, uniform
from common.transfers import to_device

# A seed has several random numbers for each position. The sampler takes number 0: see common.sampling.uniform.
COIN, RESIDUAL = 1, 2


@dataclass
class Draft:
    """What a drafter expects to come next: up to k draft tokens.

    probabilities: for each token the distribution `[V]`, float64, that it was drawn from, where a request is to be
    verified by rejection sampling; otherwise empty. accepted: how many of them `verify` has taken. computed: how many
    tokens of the text, and then of the draft, a draft model has run.
    """

    token_ids: list[int] = field(default_factory=list)
    probabilities: list[Tensor] = field(default_factory=list)
    accepted: int = 0
    computed: int = 0
    hidden: Tensor | None = None  # [hidden_size]: the draft model's, of the text's last token. None: not all is read.


@dataclass
class Row:
    """A request as it would be with some draft tokens accepted: what the sampler reads of it.

    Without penalties the sampler reads only how many token_ids there are. A range then stands for them, since a copy of
    each output for each row would take milliseconds.
    """

    params: SamplingParams
    prompt_token_ids: list[int]
    token_ids: list[int] | range
    seed: int

    @classmethod
    def after(cls, request: Request, accepted: list[int]) -> "Row":
        """Return a request as it would be with these draft tokens accepted."""
        count = len(request.token_ids) + len(accepted)
        token_ids = request.token_ids + accepted if request.params.penalised else range(count)
        return cls(request.params, request.prompt_token_ids, token_ids, request.seed)


def by_rejection(request: Request) -> bool:
    """Return whether rejection sampling verifies the request: it samples, and no seed promises its text."""
    return not request.params.greedy and request.params.seed is None


def verify(logits: Tensor, requests: list[Request], drafts: list[Draft]) -> list[list[SampledToken]]:
    """Return the tokens that each request gains, at least one, and set `accepted` in each draft.

    logits is `[R, V]` float32: for each request in turn, the scores behind its newest token and each draft token.
    """
    rows, spans = [], []
    for request, draft in zip(requests, drafts, strict=True):
        spans.append(range(len(rows), len(rows) + len(draft.token_ids) + 1))
        rows += [Row.after(request, draft.token_ids[:count]) for count in range(len(spans[-1]))]
    gained: list[list[SampledToken]] = [[] for _ in requests]
    for decide in (compare, reject):
        mine = [i for i, draft in enumerate(drafts) if bool(draft.probabilities) == (decide is reject)]
        if mine:
            places = [row for i in mine for row in spans[i]]
            chosen = logits if len(mine) == len(drafts) else logits[to_device(places, torch.int64, logits.device)]
            decided = decide(chosen, [rows[i] for i in places], [drafts[i] for i in mine])
            for i, tokens in zip(mine, decided, strict=True):
                gained[i], drafts[i].accepted = tokens, len(tokens) - 1
    return gained


def compare(logits: Tensor, rows: list[Row], drafts: list[Draft]) -> list[list[SampledToken]]:
    """Return for each request the target's tokens for as long as the draft agrees, and the target's next token."""
    said, gained = iter(sample(logits, rows)), []
    for draft in drafts:
        mine = [next(said) for _ in range(len(draft.token_ids) + 1)]
        agreed = 0
        while agreed < len(draft.token_ids) and mine[agreed].token_id == draft.token_ids[agreed]:
            agreed += 1
        gained.append(mine[: agreed + 1])
    return gained


def reject(logits: Tensor, rows: list[Row], drafts: list[Draft]) -> list[list[SampledToken]]:
    """Return what `compare` does, but decide by rejection sampling: a random number of the stream COIN accepts a draft
    token or not, and one of RESIDUAL draws the token in place of a rejected one. The host waits for the device twice
    for any number of requests.
    """
    device = logits.device
    p = probabilities(logits, rows)  # [R, V]
    none = torch.zeros_like(p[0])  # The last row of a request, behind its whole draft, has a p and no q.
    q = torch.stack([one for draft in drafts for one in (*draft.probabilities, none)])  # [R, V]
    ids = to_device([token for draft in drafts for token in (*draft.token_ids, 0)], torch.int64, device)[:, None]
    chances = torch.cat([p.gather(-1, ids), q.gather(-1, ids)], dim=-1).tolist()
    starts = [0, *accumulate(len(draft.token_ids) + 1 for draft in drafts)]
    kept, uniforms = [], []
    for draft, start in zip(drafts, starts, strict=False):
        count = 0
        while count < len(draft.token_ids):
            # q is positive at a drawn token. A coin is below 1, so a token with p >= q is always kept.
            row, (p_of_it, q_of_it) = rows[start + count], chances[start + count]
            if uniform(row.seed, len(row.token_ids), COIN) * q_of_it >= p_of_it:
                break
            count += 1
        kept.append(count)
        row = rows[start + count]
        uniforms.append(uniform(row.seed, len(row.token_ids), RESIDUAL if count < len(draft.token_ids) else 0))
    lasts = to_device([start + count for start, count in zip(starts, kept, strict=False)], torch.int64, device)
    # p and q both sum to 1, and p < q at the rejected token. So p > q at some other token, except through rounding.
    rest = (p[lasts] - q[lasts]).clamp(min=0)  # [B, V], p itself where all of a draft is kept
    last = draw(torch.where(rest.sum(-1, keepdim=True) > 0, rest, p[lasts]), uniforms).tolist()
    token_ids = [[*one.token_ids[:count], end] for one, count, end in zip(drafts, kept, last, strict=True)]
    scored = [start + i for start, tokens in zip(starts, token_ids, strict=False) for i in range(len(tokens))]
    flat = to_device([token for tokens in token_ids for token in tokens], torch.int64, device)
    wanted = [rows[i].params.logprobs for i in scored]
    logprobs = iter(token_logprobs(logits[to_device(scored, torch.int64, device)], flat, wanted))
    return [[SampledToken(token, next(logprobs)) for token in tokens] for tokens in token_ids]

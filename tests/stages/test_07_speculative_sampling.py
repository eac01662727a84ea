"""Speculative sampling leaves the distribution as it is: chi-square tests against exact probabilities."""

import itertools
import math
from collections import Counter

import pytest
import torch

from common.request import Request
from common.sampling import SamplingParams, draw, probabilities, uniform
from common.stages import load_stage_module
from tests.helpers.engine_options import drain, endless

engine_module, verification = (load_stage_module("07", name) for name in ("engine", "verification"))
Engine, Draft, Row = engine_module.Engine, verification.Draft, verification.Row


def chi_square_is_ordinary(observed: Counter, expected: dict[tuple, float]) -> bool:
    """Pearson's statistic over all outcomes with at least five expected draws, and one for the rest."""
    draws = observed.total()
    cells = [(observed.get(key, 0), share * draws) for key, share in expected.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    rest = [sum(column) for column in zip(*[cell for cell in cells if cell[1] < 5], strict=True)] or [0, 0]
    assert not observed.keys() - expected.keys(), "a token that the sampler excludes"
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in [*large, *([rest] if rest[1] >= 1 else [])])
    freedom = len(large) - 1
    return statistic < freedom + 6 * math.sqrt(2 * freedom)  # six standard deviations


V, DRAWS = 5, 2000
TARGET, NOISE = (
    torch.randn(2, V, V, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.5, 0.3])[:, None, None]
)
DRAFTS = {"good": TARGET + NOISE, "bad": -TARGET, "equal": TARGET}
SAMPLINGS = {
    "plain": {"temperature": 1.0},
    "temperature": {"temperature": 0.6},
    "top-k": {"temperature": 1.0, "top_k": 3},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.2},
}
# Each sampling and each draft, and those two together in which the draft says much that the target excludes.
CASES = [*itertools.product(["good"], SAMPLINGS), *itertools.product(["bad", "equal", "lookup"], ["plain"])]
CASES += [("bad", "top-k"), ("lookup", "top-p")]


def speculate(requests: list[Request], draft: torch.Tensor | None, counts: list[int]) -> None:
    """One step for a target and a draft that know the last token only: row i of their tables follows token i."""
    drafts = [Draft() for _ in requests]
    for place in range(max(counts)):
        going = [i for i, count in enumerate(counts) if count > place]
        rows = [Row.after(requests[i], drafts[i].token_ids) for i in going]
        last = [[*requests[i].all_token_ids, *drafts[i].token_ids][-1] for i in going]
        q = probabilities(TARGET[last] if draft is None else draft[last], rows)
        drawn = draw(q, [uniform(row.seed, len(row.token_ids)) for row in rows]).tolist()
        for i, before, token, shares in zip(going, last, drawn, q, strict=True):
            drafts[i].token_ids.append((before + 1) % V if draft is None else token)  # lookup draws nothing
            if draft is not None and verification.by_rejection(requests[i]):
                drafts[i].probabilities.append(shares)
    behind = [
        token for one, two in zip(requests, drafts, strict=True) for token in [one.all_token_ids[-1], *two.token_ids]
    ]
    gained = verification.verify(TARGET[behind], requests, drafts)
    for request, one, tokens in zip(requests, drafts, gained, strict=True):
        assert len(tokens) == one.accepted + 1
        for sampled in tokens:
            if not request.finished:
                request.append(sampled.token_id, sampled.logprobs)


def texts(draft: str, params: SamplingParams, seeds: range) -> list[Request]:
    """Speculates until all have ended. Requests begin with token 0 or 3, in turn, and differ in their chance."""
    requests = [Request("", [seed % 2 * 3], params, None, frozenset(), params.max_tokens) for seed in seeds]
    for request, seed in zip(requests, seeds, strict=True):
        request.seed = seed
    while going := [request for request in requests if not request.finished]:
        speculate(going, DRAFTS.get(draft), [1 + request.seed % 3 for request in going])
    return requests


def exact(params: SamplingParams, tokens: int, start: int) -> dict[tuple, float]:
    """The probability of each text of `tokens` tokens behind token `start`."""
    p = probabilities(TARGET, [Row(params, [], [], 0)] * V)
    texts = itertools.product(range(V), repeat=tokens)
    shares = {text: math.prod(p[a, b].item() for a, b in itertools.pairwise((start, *text))) for text in texts}
    return {text: share for text, share in shares.items() if share}


@pytest.mark.parametrize(("draft", "sampling"), CASES)
def test_the_output_is_distributed_as_the_targets(draft, sampling):
    """Texts of three tokens, in as many passes as it takes, against the probability of every such text."""
    params = SamplingParams(max_tokens=3, **SAMPLINGS[sampling])
    requests = texts(draft, params, range(2 * DRAWS))
    for start in (0, 3):
        observed = Counter(tuple(one.token_ids) for one in requests if one.prompt_token_ids == [start])
        assert chi_square_is_ordinary(observed, exact(params, 3, start))


@pytest.mark.parametrize("draft", [*DRAFTS, "lookup"])
def test_chance_decides_alike_alone_and_beside_others(draft):
    """Nothing of a request's neighbours, and none of their random numbers, has a part in what it draws."""
    params, seeds = SamplingParams(max_tokens=6, temperature=1.0), range(40)
    alone = [texts(draft, params, range(seed, seed + 1))[0].token_ids for seed in seeds]
    assert [request.token_ids for request in texts(draft, params, seeds)] == alone


def test_the_engines_output_is_distributed_as_the_models(loaded, reference, monkeypatch):
    """Three tokens after a prompt, from the five likeliest each, drawn a thousand times.

    Where a draft is nearly always right, a wrong rule is hard to see. So the draft model is made less sure than it is.
    """
    prompt = loaded.tokenizer("What is 7 + ")["input_ids"]
    params, draws = endless(3, temperature=1.0, top_k=5), 1000
    engine = Engine(loaded, num_draft_tokens=2, page_size=2)  # nearly all of the prompt is cached
    logits = engine.drafter.model.logits
    monkeypatch.setattr(engine.drafter.model, "logits", lambda hidden: 0.3 * logits(hidden))
    requests = [engine.add(prompt, params) for _ in range(draws)]
    for seed, request in enumerate(requests):
        request.seed = seed
    drain(engine)
    observed = Counter(tuple(request.token_ids) for request in requests)
    expected = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, share in expected.items():
            p = probabilities(reference.next_logits([*prompt, *text])[None], [Row(params, prompt, [], 0)])[0]
            longer |= {(*text, token): share * p[token].item() for token in p.nonzero()[:, 0].tolist()}
        expected = longer
    assert chi_square_is_ordinary(observed, expected)
    assert 0 < engine.stats()["accepted_tokens"] < engine.stats()["draft_tokens"]


def test_logprobs_of_rejection_sampling_are_the_models(loaded, reference, prompts):
    [request] = Engine(loaded, num_draft_tokens=4).generate([prompts[0]], endless(12, temperature=1.0, logprobs=1))
    for i, (token, entry) in enumerate(zip(request.token_ids, request.logprobs, strict=True)):
        wanted = reference.next_logits(prompts[0] + request.token_ids[:i]).log_softmax(-1)
        assert entry.logprob == pytest.approx(wanted[token].item(), abs=1e-4)

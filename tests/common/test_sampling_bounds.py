"""What a request may ask at most, logits that it changes, and shorter ways to a token than the definition."""

from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
import torch

from common import sampling
from common.sampling import SamplingParams, apply_penalties, probabilities, sample


@dataclass
class Request:  # the part of a request that the sampler reads
    params: SamplingParams
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    seed: int = 0


def test_the_ends_of_each_range_are_allowed():
    SamplingParams(temperature=0, top_k=0, top_p=5e-324, min_p=0, seed=0, logprobs=0, max_tokens=1)
    SamplingParams(temperature=1e300, top_k=2**100, top_p=1, min_p=1, seed=2**63 - 1, logprobs=20)
    SamplingParams(stop=["a" * 256] * 32, stop_token_ids=[1] * 128)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, repetition_penalty=0.01, max_tokens=None)
    SamplingParams(repetition_penalty=100, logit_bias={5: -100, "6": 100}, min_tokens=5, max_tokens=5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_is_added_to_a_logit(temperature):
    plain = Request(SamplingParams(temperature=temperature))
    biased = Request(SamplingParams(temperature=temperature, logit_bias={1: 1.5, 2: -100}))
    logits = torch.tensor([[1.0, 0.5, 3.0]] * 2)
    kept, changed = apply_penalties(logits, [plain, biased]).tolist()
    assert kept == [1.0, 0.5, 3.0] and changed == [1.0, 2.0, -97.0]
    assert sample(logits[:1], [biased])[0].token_id in ([1] if temperature == 0 else [0, 1])


def test_nothing_ends_an_answer_before_min_tokens():
    params = SamplingParams(min_tokens=2, ending_token_ids=[1, 2, 99])
    logits = torch.tensor([[0.0, 5.0, 6.0]])
    drawn = [sample(logits, [Request(params, token_ids=[0] * count)])[0].token_id for count in range(4)]
    assert drawn == [0, 0, 2, 2]


def test_the_strongest_penalties_leave_finite_scores():
    """1e-40 made NaN of every score, and token 0 of every token, until it was refused."""
    for penalty in (0.01, 100):
        request = Request(SamplingParams(repetition_penalty=penalty), [0, 1], [2])
        logits = torch.tensor([[1e4, -1e4, 30.0, 0.0]])
        assert apply_penalties(logits, [request]).isfinite().all()


@pytest.mark.parametrize("top_k", [0, 1, 6, 20])
@pytest.mark.parametrize("top_p", [1.0, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("rounded", [False, True], ids=["apart", "with equals"])
def test_the_likeliest_tokens_decide_as_all_of_them_do(top_k, top_p, rounded):
    """Ranked are 8 of 50: they suffice for some of the rows."""
    logits = 3 * torch.randn(200, 50, generator=torch.Generator().manual_seed(1))
    rows = [Request(SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p))] * 200
    logits = logits.round() if rounded else logits
    by_all = probabilities(logits, rows)
    with patch.object(sampling, "CANDIDATES", 8):
        by_few = probabilities(logits, rows)
    assert torch.equal(by_few > 0, by_all > 0)
    torch.testing.assert_close(by_few, by_all, atol=1e-12, rtol=0)


def test_rows_that_need_no_draw_are_what_they_are_alone():
    """A greedy row, one with a penalty, one that is drawn: in a batch and each by itself."""
    logits = torch.tensor([[1.0, 3.0, 2.9], [1.0, 3.0, 2.9], [2.0, 2.0, 2.0]])
    params = [SamplingParams(), SamplingParams(presence_penalty=1.0), SamplingParams(temperature=1.0)]
    rows = [Request(one, token_ids=[1]) for one in params]
    together = [token.token_id for token in sample(logits, rows)]
    assert together[:2] == [1, 2]
    assert together == [sample(logits[[i]], [row])[0].token_id for i, row in enumerate(rows)]

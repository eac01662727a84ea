"""What a request may ask at most, and logits that it changes: biases, ends that may not come yet, penalties."""

from dataclasses import dataclass, field

import pytest
import torch

from common.sampling import SamplingParams, apply_penalties, sample


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

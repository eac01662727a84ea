"""The sampler's kernels draw what common/sampling.py defines, and a row's token depends on nothing but the row."""

import math
from dataclasses import dataclass, field

import pytest
import torch

from common import sampling
from common.sampling import SamplingParams, draw, probabilities, sample, uniform
from tests.helpers.triton_marks import devices, needs_triton

pytestmark = needs_triton
SMALL_BLOCK = 16  # tokens, so that a small vocabulary has several blocks


@dataclass
class Row:
    params: SamplingParams
    seed: int
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("common.sampling_kernels.BLOCK", SMALL_BLOCK)


def by_definition(logits, temperatures, uniforms):
    rows = [Row(SamplingParams(temperature=temperature), 0) for temperature in temperatures]
    return draw(probabilities(logits, rows), uniforms).tolist()


@devices
@pytest.mark.parametrize("vocab_size", [1, 16, 53])
@pytest.mark.parametrize("kind", ["any", "equals", "blocks without weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_what_is_drawn_is_what_the_definition_draws(vocab_size, kind, dtype, device):
    """Of equal logits the lowest token is greedy, and one without weight is never drawn."""
    from common.sampling_kernels import draw_plain

    temperatures = [0.0, 1e-300, 0.1, 0.6, 1.0, 5.0] * 4
    torch.manual_seed(vocab_size)
    logits = (3 * torch.randn(len(temperatures), vocab_size)).to(device, dtype)
    if kind == "equals":
        logits = logits.round()
    elif kind == "blocks without weight":
        logits[:, 1:-1] = -math.inf
    uniforms = [uniform(7, i) for i in range(len(temperatures) - 2)] + [0.0, 1 - 2**-53]
    assert draw_plain(logits, temperatures, uniforms).tolist() == by_definition(logits, temperatures, uniforms)


@devices
def test_shares_are_those_of_the_definition(device):
    """Every border between two tokens: a number a little below it gives the one, a little above it the other."""
    from common.sampling_kernels import draw_plain

    torch.manual_seed(0)
    logits = torch.randn(1, 40)
    borders = probabilities(logits, [Row(SamplingParams(temperature=0.7), 0)])[0].cumsum(-1)[:-1].tolist()
    for shift, token in ((-1e-5, 0), (1e-5, 1)):
        numbers = [border + shift for border in borders]
        copies = logits.expand(len(numbers), -1).contiguous().to(device)
        drawn = draw_plain(copies, [0.7] * len(numbers), numbers).tolist()
        assert drawn == [i + token for i in range(len(numbers))]


@devices
def test_no_neighbour_changes_a_token(device, monkeypatch):
    """Rows that the kernels can draw stand beside rows that they cannot, and alone: the same bits, the same token."""
    monkeypatch.setattr(sampling, "has_kernels", lambda device: True)
    kinds = [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"logit_bias": ((9, 2.0),)}]
    kinds = [{"temperature": 0.8} | kind for kind in kinds] + [{"temperature": 0.0}, {"presence_penalty": 1.0}]
    rows = [Row(SamplingParams(**kind), seed, [3, 9], [1]) for seed, kind in enumerate(kinds)]
    torch.manual_seed(1)
    logits = (2 * torch.randn(len(rows), 53)).to(device, torch.bfloat16)
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert together == alone
    assert sample(logits[:1].expand(5, -1).contiguous(), [rows[0]] * 5) == [together[0]] * 5

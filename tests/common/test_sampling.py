"""The sampler against an independent definition: slow, one row at a time, in plain Python floats."""

import itertools
import math
from dataclasses import dataclass, field, fields
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common import sampling
from common.sampling import SamplingParams, apply_penalties, draw, probabilities, sample, uniform
from tests.helpers import helper_file
from tests.helpers.triton_marks import devices, needs_triton

DETERMINISTIC = settings(derandomize=True, deadline=None)
INF = math.inf


@dataclass
class Request:  # the part of a request that the sampler reads
    params: SamplingParams
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    seed: int = 0


# What clients send in JSON, and what is too long or too large.
INVALID = helper_file("refused_params.json")
TOO_LONG = {
    "temperature": "a megabyte " * 100_000,
    "top_p": 10**400,
    "logit_bias": dict.fromkeys(range(301), 1),
    "stop": ["a"] * 33,
    "stop_token_ids": [1] * 129,
    "tenant": "a megabyte " * 100_000,
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_value_is_refused_with_field_value_and_what_is_allowed(name):
    for value in [*INVALID[name], TOO_LONG.get(name, "")]:
        with pytest.raises(ValueError, match=f"^{name} must be .+, not .+") as error:
            SamplingParams(**{name: value})
        assert len(str(error.value)) < 300, "a client's value may be long"
    assert INVALID.keys() == {field.name for field in fields(SamplingParams)} - {"ending_token_ids"}


def test_the_ends_of_each_range_are_allowed():
    SamplingParams(temperature=0, top_k=0, top_p=5e-324, min_p=0, seed=0, logprobs=0, max_tokens=1)
    SamplingParams(temperature=1e300, top_k=2**100, top_p=1, min_p=1, seed=2**63 - 1, logprobs=20)
    SamplingParams(stop=["a" * 256] * 32, stop_token_ids=[1] * 128)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, repetition_penalty=0.01, max_tokens=None)
    SamplingParams(repetition_penalty=100, logit_bias={5: -100, "6": 100}, min_tokens=5, max_tokens=5)


def test_each_meaning_has_one_spelling():
    params = SamplingParams(top_k=-1, stop="END", stop_token_ids=[1, 2], logit_bias={"5": 1.0})
    same = SamplingParams(stop=["END"], stop_token_ids=(1, 2), logit_bias=[(5, 1.0)])
    assert params == same and hash(params) == hash(same), "they are immutable"


def normalised(weights: list[float]) -> list[float]:
    return [weight / math.fsum(weights) for weight in weights]


def penalised(value: float, token_id: int, request: Request) -> float:
    """Return one logit as the request's biases and penalties leave it."""
    params, occurrences = request.params, request.token_ids.count(token_id)
    value += dict(params.logit_bias).get(token_id, 0)
    if token_id in request.prompt_token_ids or occurrences:
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    return value - params.frequency_penalty * occurrences - params.presence_penalty * min(occurrences, 1)


def distribution(logits: list[float], params: SamplingParams) -> tuple[list[float], float]:
    """Return one row's probabilities, and how near it came to a cut, where rounding may decide."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.temperature == 0:
        return [float(i == ranked[0]) for i in range(len(logits))], INF
    margins = [INF]
    probs = normalised([math.exp((logit - max(logits)) / params.temperature) for logit in logits])
    if params.min_p > 0:
        ratios = [p / max(probs) for p in probs]
        margins += [abs(ratio - params.min_p) for ratio in ratios if ratio < 1]
        probs = normalised([p * (ratio >= params.min_p) for p, ratio in zip(probs, ratios, strict=True)])
    if params.top_k > 0:
        probs = normalised([p * (i in ranked[: params.top_k]) for i, p in enumerate(probs)])
    if params.top_p < 1:
        ahead = [math.fsum(probs[j] for j in ranked[: ranked.index(i)]) for i in range(len(logits))]
        margins += [abs(mass - params.top_p) for mass in ahead]
        probs = normalised([p * (mass < params.top_p) for p, mass in zip(probs, ahead, strict=True)])
    return probs, min(margins)


logit = st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30, width=32), st.just(-INF))  # with ties
filtered = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.5, 100.0]),
        "top_k": st.integers(-1, 14),
        "top_p": st.one_of(st.just(1.0), st.floats(0.001, 1)),
        "min_p": st.one_of(st.just(0.0), st.floats(0, 1)),
    }
)
penalties = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 0.01, 0.5, 1.3, 100.0]),
        "presence_penalty": st.sampled_from([0.0, -2.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, -0.4, 2.0]),
        "logit_bias": st.sampled_from([(), {0: 1.5}, {0: -100}]),
    }
)


@settings(DETERMINISTIC, max_examples=200)
@given(st.data(), st.integers(1, 12))
def test_penalties_are_those_defined_and_each_row_has_its_own_distribution(data, vocabulary):
    """In blocks of two rows, which the likeliest two tokens may suffice for, as of a large batch and vocabulary."""
    row = st.lists(logit, min_size=vocabulary, max_size=vocabulary).filter(lambda row: max(row) > -INF)
    tokens = st.lists(st.integers(0, vocabulary - 1), max_size=8)
    params = st.builds(lambda one, two: SamplingParams(**one, **two), filtered, penalties | st.just({}))
    rows = data.draw(st.lists(st.tuples(row, st.builds(Request, params, tokens, tokens)), min_size=1, max_size=5))
    logits, requests = torch.tensor([row for row, _ in rows]), [request for _, request in rows]
    before, changed = logits.clone(), apply_penalties(logits, requests).tolist()
    with patch.multiple(sampling, CANDIDATES=2, MAX_ROWS=2):
        batch = probabilities(logits, requests).tolist()
        drawn = sample(logits, requests)
    assert torch.equal(logits, before), "the caller's logits must not change"
    for (values, request), scores, actual, token in zip(rows, changed, batch, drawn, strict=True):
        defined = [penalised(value, token_id, request) for token_id, value in enumerate(values)]
        assert scores == pytest.approx(defined, rel=1e-5, abs=1e-5)
        expected, margin = distribution(scores, request.params)
        assume(margin > 1e-9)
        assert actual == pytest.approx(expected, abs=1e-12)
        assert [p > 0 for p in actual] == [p > 0 for p in expected]
        assert actual[token.token_id] > 0 and token.logprobs is None


EQUAL = [1.0, 1.0, 1.0, 1.0]  # The weights are exactly equal, so a cut can fall exactly between two.
BY_HAND = [
    (EQUAL, {"top_p": 0.5}, [0.5, 0.5, 0, 0]),
    (EQUAL, {"top_p": 0.501}, [1 / 3, 1 / 3, 1 / 3, 0]),
    (EQUAL, {"top_p": 5e-324}, [1, 0, 0, 0]),
    (EQUAL, {"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0]),  # half of the mass that top-k left
    (EQUAL, {"min_p": 1.0}, [0.25] * 4),
    ([0.0, 5.0, 5.0, 5.0], {"min_p": 0.5, "top_p": 1 / 3}, [0, 1, 0, 0]),  # a third of what min-p left
    ([0.0, 3e38, -3e38], {"temperature": 5e-324}, [0, 1, 0]),
    ([0.0, 1.0, -1.0], {"temperature": 1e300}, [1 / 3] * 3),
    ([-INF, 2.0, -INF, 2.0], {"top_k": 3}, [0, 0.5, 0, 0.5]),
    ([1e-30, 2e-30], {"top_k": 1}, [0, 1]),  # exp() rounds both weights to 1, but this is no tie
    ([1.0, 0.0], {"temperature": 0.5, "presence_penalty": 1.0}, [0.5, 0.5]),  # penalties before temperature
]


@pytest.mark.parametrize(("logits", "values", "expected"), BY_HAND, ids=str)
def test_distributions_worked_out_by_hand(logits, values, expected):
    params = SamplingParams(**({"temperature": 1.0} | values))
    [actual] = probabilities(torch.tensor([logits]), [Request(params, token_ids=[0])]).tolist()
    assert actual == pytest.approx(expected, abs=1e-12)


def test_nothing_ends_an_answer_before_min_tokens():
    params = SamplingParams(min_tokens=2, ending_token_ids=[1, 2, 99])
    logits = torch.tensor([[0.0, 5.0, 6.0]])
    drawn = [sample(logits, [Request(params, token_ids=[0] * count)])[0].token_id for count in range(4)]
    assert drawn == [0, 0, 2, 2]


# Weights whose sums are exact in any order, for an exact answer on any device.
weight_rows = st.lists(st.sampled_from([0.0, 1e-300, 1.0, 7.0]), min_size=9, max_size=9).filter(any)


@devices
@settings(DETERMINISTIC, max_examples=100)
@given(rows=st.lists(st.tuples(weight_rows, st.floats(0, 1 - 2.0**-53)), min_size=1, max_size=5))
def test_a_draw_inverts_the_distribution_function_and_never_gives_a_token_of_weight_zero(device, rows):
    weights = torch.tensor([weights for weights, _ in rows], dtype=torch.float64, device=device)
    drawn = draw(weights, [number for _, number in rows]).tolist()
    for token_id, (weights, number) in zip(drawn, rows, strict=True):
        sums = list(itertools.accumulate(weights))
        assert token_id == next(i for i, total in enumerate(sums) if total > number * sums[-1])
        assert weights[token_id] > 0


def test_uniform_never_changes():
    """Other numbers here would change the text of every seeded request."""
    assert [uniform(0, 0), uniform(2**63 - 1, 5, stream=2)] == [0.156742553465558, 0.11714927238674877]


def test_logprobs_are_of_the_raw_distribution_for_the_rows_that_ask():
    logits = torch.randn(4, 15, generator=torch.Generator().manual_seed(5))
    logits[:, 3] = -INF
    values, asked = {"temperature": 3.0, "top_k": 10, "presence_penalty": 2.0}, (0, 3, 20, None)
    rows = [Request(SamplingParams(**values, logprobs=count), token_ids=[1, 2]) for count in asked]
    *tokens, silent = sample(logits, rows)
    assert silent.logprobs is None
    for row, token, count in zip(logits.double().log_softmax(-1), tokens, asked, strict=False):
        best = row.sort(descending=True)
        assert token.logprobs.logprob == pytest.approx(row[token.token_id].item(), abs=1e-5)
        assert [token_id for token_id, _ in token.logprobs.top] == best.indices[:count].tolist()
        assert [value for _, value in token.logprobs.top] == pytest.approx(best.values[:count].tolist(), abs=1e-5)


# ---- The kernels, which draw what the definition draws ----


@pytest.fixture
def draw_tokens(monkeypatch):
    from common import sampling_kernels

    # tokens: so few that a small vocabulary has several blocks, and that the nearest ones do not always suffice
    for name, tokens in {"BLOCK": 16, "NEAREST": 16}.items():
        monkeypatch.setattr(sampling_kernels, name, tokens)
    return sampling_kernels.draw_tokens


FILTERS = [
    {}, {"top_k": 1}, {"top_k": 40}, {"top_p": 0.01}, {"top_p": 0.6}, {"top_p": 0.9999}, {"min_p": 0.1},
    {"top_k": 9, "top_p": 0.7}, {"top_k": 12, "min_p": 0.05}, {"top_p": 0.8, "min_p": 0.01},
    {"top_k": 7, "top_p": 0.95, "min_p": 0.02},
]  # fmt: skip
EACH = [SamplingParams(temperature=0.7, **filters) for filters in FILTERS]
for temperature in (0.0, 1e-20, 1e300):
    EACH += [SamplingParams(temperature=temperature), SamplingParams(temperature=temperature, **FILTERS[-1])]


@needs_triton
@devices
@pytest.mark.parametrize(("vocab_size", "dtype"), [(16, torch.bfloat16), (37, torch.float32)], ids=str)
def test_what_is_drawn_is_what_the_definition_draws(draw_tokens, vocab_size, dtype, device):
    """A number a little below or above the border between two tokens draws the one or the other. Of equal logits the
    lowest token is greedy, the first ones pass top-k, and one without weight is never drawn."""
    torch.manual_seed(vocab_size)
    plain = (3 * torch.randn(len(EACH), vocab_size)).to(device, dtype)
    part_of_wider = torch.cat([plain, plain], dim=1)[:, :vocab_size]  # Ranks with padded parts give this.
    empty_blocks = plain.clone()
    empty_blocks[:, 1:-1] = -math.inf
    for logits in (part_of_wider, plain.round(), empty_blocks):
        expected = probabilities(logits, [Request(params) for params in EACH])
        places = torch.randint(vocab_size, (len(EACH), 1), device=device)
        shifts = 1e-5 * torch.randn(len(EACH), device=device).sign()
        borders = expected.cumsum(-1).gather(-1, places)[:, 0] + shifts
        numbers = borders.clamp(0, 1 - 2**-53).tolist()
        assert draw_tokens(logits, EACH, numbers).tolist() == draw(expected, numbers).tolist()


@needs_triton
@devices
def test_rows_draw_the_same_with_kernels_beside_others_and_alone(draw_tokens, device, monkeypatch):
    kinds = [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"temperature": 0.0}]
    params = [SamplingParams(**{"temperature": 0.8} | kind) for kind in kinds]
    rows = [Request(each, [1], [3, 9], seed) for seed, each in enumerate(params)]
    torch.manual_seed(1)
    logits = (2 * torch.randn(len(rows), 53)).bfloat16()
    expected = sample(logits, rows)
    monkeypatch.setattr(sampling, "has_kernels", lambda device: True)
    logits = logits.to(device)
    assert sample(logits, rows) == expected
    for i, row in enumerate(rows):
        assert sample(logits[i : i + 1], [row]) == expected[i : i + 1]

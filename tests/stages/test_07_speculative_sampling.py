"""Speculative sampling leaves the distribution as it is: chi-square tests against exact probabilities."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from common.loader import Loaded
from common.request import Request
from common.sampling import SamplingParams, probabilities
from common.stages import load_stage_module
from tests.helpers.engine_options import drain
from tests.helpers.small_models import SMALL

engine_module, verification = (load_stage_module("07", name) for name in ("engine", "verification"))
Engine, Row = engine_module.Engine, verification.Row


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
# Each draft, and each sampling; in the last two pairs the draft often says what the target excludes.
CASES = [("good", "temperature"), ("good", "min-p"), ("equal", "plain"), ("bad", "top-k"), ("lookup", "top-p")]
TEXT = torch.randint(V, (40,), generator=torch.Generator().manual_seed(3)).tolist()  # Lookup finds drafts in it.


class Table:
    """Stands for a model that knows the last token only: row i of its table follows token i."""

    def __init__(self, table: torch.Tensor):
        self.table = table

    def __call__(self, token_ids, positions, attend):
        return self.table[token_ids]

    def logits(self, hidden):
        return hidden


def loaded_table(table: torch.Tensor | None) -> Loaded | None:
    config = replace(SMALL, vocab_size=V)
    model = Loaded(Table(table), None, config, frozenset(), "table", torch.device("cpu"), torch.float32)
    return None if table is None else model


def texts(monkeypatch, draft: str, params: SamplingParams, seeds: range) -> tuple[list[Request], dict[str, float]]:
    """Return answers by chance, all in one batch, and the engine's stats. Prompts end with token 0 or 3, in turn."""
    monkeypatch.setattr(engine_module, "load_draft_model", lambda *_: loaded_table(DRAFTS.get(draft)))
    engine = Engine(loaded_table(TARGET), 2 * DRAWS, 200_000, "256M", attention="torch", num_draft_tokens=2)
    requests = [engine.add([*TEXT, seed % 2 * 3], params) for seed in seeds]
    for request, seed in zip(requests, seeds, strict=True):
        request.seed = seed
    drain(engine)
    return requests, engine.stats()


def exact(params: SamplingParams, tokens: int, start: int) -> dict[tuple, float]:
    """The probability of each text of `tokens` tokens behind token `start`."""
    p = probabilities(TARGET, [Row(params, [], [], 0)] * V)
    texts = itertools.product(range(V), repeat=tokens)
    shares = {text: math.prod(p[a, b].item() for a, b in itertools.pairwise((start, *text))) for text in texts}
    return {text: share for text, share in shares.items() if share}


@pytest.mark.parametrize(("draft", "sampling"), CASES)
def test_the_output_is_distributed_as_the_targets(monkeypatch, draft, sampling):
    """Texts of four tokens against the probability of every such text."""
    params = SamplingParams(max_tokens=4, **SAMPLINGS[sampling])
    requests, stats = texts(monkeypatch, draft, params, range(2 * DRAWS))
    for start in (0, 3):
        observed = Counter(tuple(one.token_ids) for one in requests if one.prompt_token_ids[-1] == start)
        assert chi_square_is_ordinary(observed, exact(params, 4, start))
    assert stats["draft_tokens"] > DRAWS
    assert (stats["accepted_tokens"] == stats["draft_tokens"]) == (draft == "equal")


@pytest.mark.parametrize("draft", [*DRAFTS, "lookup"])
def test_chance_decides_alike_alone_and_beside_others(monkeypatch, draft):
    """Nothing of a request's neighbours, and none of their random numbers, has a part in what it draws."""
    params = SamplingParams(max_tokens=6, temperature=1.0)
    alone = [texts(monkeypatch, draft, params, range(seed, seed + 1))[0][0].token_ids for seed in range(40)]
    assert [request.token_ids for request in texts(monkeypatch, draft, params, range(40))[0]] == alone

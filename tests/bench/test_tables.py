"""Tables in the texts are those of the committed results, and what texts and titles say in words holds for these."""

import pytest

from beyond.any_model.benchmark import BENCHMARK as ANY_MODEL
from beyond.quantisation.benchmark import BENCHMARK as QUANTISATION
from beyond.structured.benchmark import BENCHMARK as STRUCTURED
from common.bench.__main__ import course_benchmarks
from common.bench.description import holds
from common.bench.experiments.peers import BENCHMARK as PEERS
from common.bench.harness import spread
from common.bench.tables import MACHINE, committed, main
from common.serving.benchmark import BENCHMARK as SERVING

BENCHMARKS = [*course_benchmarks(), SERVING, PEERS, STRUCTURED, ANY_MODEL, QUANTISATION]
CLAIMS = [
    (each, claim, result) for each in BENCHMARKS for claim in each.claims for result in claim.get("of", [MACHINE])
]


def test_tables_are_those_of_the_committed_results():
    """If they are not: `python -m common.bench.tables` writes them."""
    assert main(["--check", "--diff"]) == 0


@pytest.mark.parametrize(
    ("benchmark", "claim", "result"), CLAIMS, ids=[f"{each.name}: {claim['says']}" for each, claim, _ in CLAIMS]
)
def test_what_is_said_in_words_holds(benchmark, claim, result):
    assert holds(claim, committed(benchmark.module, result)), claim["says"]


@pytest.mark.parametrize(
    ("figure", "bounds", "true"),
    [
        ("sides.now.ms", {"least": 1, "most": 4}, True),
        ("sides.now.ms", {"least": 2}, False),
        ("sides.now.ms.-1", {"least": 3, "most": 4}, True),
        ("sides.now.ms / sides.before.ms", {"most": 2}, True),
        ("sides.now.ms.1 / sides.before.ms.1", {"least": 2}, False),
        ("sides.now.ms.0 / sides.before.once", {"least": 0.1, "most": 0.2}, True),
    ],
)
def test_a_claim_is_about_every_repeat_and_each_place_of_a_curve(figure, bounds, true):
    now, before = {"ms": spread([[1, 4], [2, 3]])}, {"ms": spread([[1, 2], [1, 2]]), "once": spread([10, 10])}
    document = {"order": [[], []], "sides": {"now": now, "before": before}}
    assert holds({"figures": [figure]} | bounds, document) == true

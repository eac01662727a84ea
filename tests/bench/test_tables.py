"""Tables in the texts are those of the committed results, and what texts and titles say in words holds for these."""

import pytest

from common.bench.__main__ import course_benchmarks
from common.bench.experiments.peers import BENCHMARK as PEERS
from common.bench.tables import committed, main

CLAIMS = [(each, claim) for each in [*course_benchmarks(), PEERS] for claim in each.claims]


def test_tables_are_those_of_the_committed_results():
    """If they are not: `python -m common.bench.tables` writes them."""
    assert main(["--check", "--diff"]) == 0


@pytest.mark.parametrize(("benchmark", "claim"), CLAIMS, ids=[f"{each.name}: {claim}" for each, claim in CLAIMS])
def test_what_is_said_in_words_holds(benchmark, claim):
    assert benchmark.claims[claim](committed(benchmark.module)), claim

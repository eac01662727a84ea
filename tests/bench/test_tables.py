"""Tables in the texts are those of the committed results, and what texts and titles say in words holds for these."""

import pytest

from common.bench.description import holds
from common.bench.documents import read_json
from common.bench.harness import spread
from common.bench.tables import MACHINE, main
from common.stages import ROOT
from common.toml import read_toml

FILES = [path for pattern in ("0*", "common/*", "beyond/*") for path in sorted(ROOT.glob(f"{pattern}/benchmark.toml"))]
CLAIMS = [
    (path.parent, claim, result)
    for path in FILES
    for claim in read_toml(path).get("claims", ())
    for result in claim.get("of", [MACHINE])
]


def test_tables_are_those_of_the_committed_results():
    """If they are not: `python -m common.bench.tables` writes them."""
    assert main(["--check", "--diff"]) == 0


@pytest.mark.parametrize(
    ("folder", "claim", "result"), CLAIMS, ids=[f"{folder.name}: {claim['says']}" for folder, claim, _ in CLAIMS]
)
def test_what_is_said_in_words_holds(folder, claim, result):
    assert holds(claim, read_json(folder / "results" / f"{result}.json"))


@pytest.mark.parametrize(
    ("figure", "bounds", "true"),
    [
        ("sides.now.ms", {"least": 1, "most": 4}, True),
        ("sides.now.ms.-1", {"least": 3.5}, False),
        ("sides.now.ms / sides.before.ms", {"most": 2}, True),
        ("sides.now.ms.1 / sides.before.ms.1", {"least": 2}, False),
    ],
)
def test_a_claim_is_about_every_repeat_and_each_place_of_a_curve(figure, bounds, true):
    sides = {"now": {"ms": spread([[1, 4], [2, 3]])}, "before": {"ms": spread([[1, 2], [1, 2]])}}
    document = {"order": [[], []], "sides": sides}
    assert holds({"figures": [figure]} | bounds, document) == true

"""A learner's stage is measured beside the reference, and its results do not mix with the course's."""

from common.bench import commands, suite
from common.bench.harness import Benchmark, Headline
from common.bench.learner import beside_reference, is_learners
from common.stages import stage_folder

NAME = "02_kv_cache"


def test_a_learners_stage_is_measured_beside_the_reference(tmp_path, monkeypatch):
    own, drawn = tmp_path / NAME, []

    def measure(settings, sizes):
        return {"seconds": 2.0 if stage_folder(NAME) == own else 3.0}

    benchmark = Benchmark(
        str(own / "benchmark.py"), "", {"01_naive": None, NAME: measure}, {"full": {}}, derive=None,
        draw=lambda document, png: drawn.append(document["sides"][NAME]["seconds"]),
        headline=Headline("an answer", "s", (NAME,), lambda sizes, side: {"warm-up": 0.0, NAME: side["seconds"]}),
    )  # fmt: skip
    assert not is_learners(benchmark) and commands.usual_folder([benchmark]) == suite.RESULTS
    monkeypatch.setenv("COURSE_STAGE", str(own))
    assert is_learners(benchmark) and commands.usual_folder([benchmark]) == own / "results"

    both = beside_reference(benchmark)
    assert list(both.sides) == ["01_naive", NAME, "reference"]
    measured = {side: both.sides[side](None, {}) for side in (NAME, "reference")}
    assert both.headline.values({}, measured) == {"reference": 3.0, NAME: 2.0}
    spread = {side: {"seconds": {"median": figures["seconds"]}} for side, figures in measured.items()}
    both.draw({"sides": spread}, tmp_path)
    assert drawn == [{"median": 2.0, "reference": {"median": 3.0}}]

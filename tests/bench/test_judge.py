"""`judge`: a fixed load on two servers in turn, what the clients saw, and a file that `compare` draws for a class."""

import argparse
from contextlib import nullcontext

import pytest

from common.bench import judge
from common.bench.compare import __main__ as compare
from common.bench.documents import read_json
from common.bench.metrics import LoadResult, RequestRecord
from common.errors import InvalidInput
from tests.helpers.measured_here import shrink_measurements

STANDARD = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}
OBJECTIVES = argparse.Namespace(ttft_ms=1000, itl_ms=500)


@pytest.fixture
def run(server, monkeypatch):
    """Judge a server that stands for both sides, by a load of one rate and few requests."""
    shrink_measurements(monkeypatch)
    for name, value in {"RATES": (200,), "SECONDS": 0, "MIN_REQUESTS": 6, "ALONE": 2, "MAX_TOKENS": 8}.items():
        monkeypatch.setattr(judge, name, value)
    monkeypatch.setattr(judge, "running_server", lambda *_: nullcontext(server.url))
    usual = [server.url, "--ttft-ms", "60000", "--itl-ms", "60000", "--repeats", "2"]
    return lambda *options: judge.main([*usual, *map(str, options)])


def record(start: float, *chunks: float) -> RequestRecord:
    return RequestRecord(start, chunks[-1], list(chunks), prompt_tokens=9, output_tokens=len(chunks))


def test_one_question_in_five_follows_a_handbook_and_all_follow_the_same_rules():
    prompts = [job.prompt for job in judge.jobs_of(20, 1, 0)]
    assert all(prompt.startswith(judge.SYSTEM_PROMPTS[8]) for prompt in prompts)
    long = [len(prompt) > 2000 for prompt in prompts]
    assert long == [judge.is_long(place) for place in range(20)] and sum(long) == 4


def test_what_clients_saw_of_a_known_schedule():
    """The fifth request has the long prompt, and the second one's long gap comes while that one waits."""
    fast, gap, late = record(0, 0.5, 0.6, 0.7), record(0, 0.5, 1.5, 1.6), record(0, 1.2, 1.3)
    failed, long = RequestRecord(0, error="full"), record(1, 1.4, 1.5)
    row = judge.row_of(4, LoadResult([fast, gap, late, failed, long], 2.0), OBJECTIVES)
    counts = {"rate": 4, "met": 2, "late": 1, "slow": 1, "failed": 1, "goodput": 1.0, "good_tokens_per_second": 2.5}
    assert counts.items() <= row.items()
    alone = judge.row_of(0, LoadResult([record(0, 0.26, 0.36)], 0.4), OBJECTIVES)
    said = judge.explanation("server", [alone, row], OBJECTIVES)
    assert "The server at 4/s: queue 38%, prefill 25%, decode 37% of a request's 1.02 s." in said
    assert said.endswith("1 gap above 500 ms, 1 of them while a long prompt waited.")
    none = judge.row_of(4, LoadResult([failed], 1.0), OBJECTIVES)
    assert judge.explanation("server", [alone, none], OBJECTIVES) == "The server at 4/s: full."


def test_both_sides_get_the_same_standard_requests_and_compare_draws_the_file(run, server, tmp_path, capsys):
    assert run("--out", tmp_path / "anna.json") == 0
    assert "16 of 16 answers are the same on both sides" in capsys.readouterr().out
    assert all(body.keys() <= STANDARD for body in server.bodies)
    assert len(server.bodies) == 1 + 2 * (8 + 1 + 8), "beside the load each server is asked whether it answers"
    asked = [str(body["messages"]) for body in server.bodies]
    turns = [sorted(asked[start : start + 8]) for start in (2, 10, 18, 27)]  # reference, server, server, reference
    assert turns[0] == turns[1] != turns[2] == turns[3], "each repeat has questions of its own"
    entry = read_json(tmp_path / "anna.json")["benchmarks"]["judge"]
    assert entry["order"] == [[*judge.SIDES], [*judge.SIDES][::-1]]
    assert entry["sides"] == {side: entry["figures"][side]["goodput"] for side in judge.SIDES}
    compare.main([str(tmp_path), "--out", str(tmp_path / "page")])
    page = (tmp_path / "page" / "index.html").read_text()
    assert "The capstone" in page and "Over the reference: goodput: first token within 60000 ms" in page
    assert page.count("requests/s</small>") == 1


def test_other_answers_than_the_references_are_other_work(run, tmp_path, monkeypatch):
    """And a repeat may have come to a higher rate than another."""
    rows = [judge.row_of(rate, LoadResult([record(0, 0.1, 0.2)], 1.0), OBJECTIVES) for rate in (0, 2, 4)]

    def turn(side, args, target, repeat):
        return rows[: 2 + repeat], {(0, 2, i): f"{side} {i < 3}" for i in range(4)}

    monkeypatch.setattr(judge, "take_turn", turn)
    assert run("--out", tmp_path / "other.json") == 0
    doubt = read_json(tmp_path / "other.json")["benchmarks"]["judge"]["doubt"]
    assert doubt == "only 0 of 4 answers are the reference's, and others are other work"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "gpt"], "the server has no model 'gpt'; it serves steady, "),
        (["--out", "."], ". is a folder: name a file in it"),
        (["--ttft-ms", "1", "--repeats", "1"], "no request met the objectives of the reference: give larger ones"),
    ],
)
def test_what_cannot_be_judged_is_told_in_a_sentence(run, options, sentence):
    with pytest.raises(InvalidInput) as refused:
        run(*options)
    assert str(refused.value).startswith(sentence)


def test_control_c_ends_it_without_a_file(run, server, tmp_path, capsys, ctrl_c):
    server.on_request = lambda count: ctrl_c() if count == 1 + 4 else None
    assert run("--out", tmp_path / "none.json") == 130
    assert capsys.readouterr().err.endswith("interrupted: nothing is written\n") and not [*tmp_path.iterdir()]

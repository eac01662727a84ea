"""The comparison with vLLM, without vLLM: what both engines are asked, and what is counted."""

import sys

import pytest

from common.bench.experiments import peer_program, peers
from common.bench.harness import Unavailable
from common.bench.settings import Settings
from common.errors import InvalidInput


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/bin/python"])
def test_a_python_without_vllm_is_refused_with_what_to_do(monkeypatch, python):
    monkeypatch.setenv("PEER_PYTHON", python)
    with pytest.raises(Unavailable, match="no Python with vLLM: see --help, and set PEER_PYTHON"):
        peers.measure_vllm(Settings(), peers.TINY, peers.COMPILED)


def test_the_answer_is_the_last_line_that_is_one():
    program = "import json, sys; print('{}'); print(json.dumps({'side': 'a', 'figures': json.load(sys.stdin)}), '\\n')"
    assert peers.answer([sys.executable, "-c", program], {"side": "a", "x": [1.5]}) == {"side": "a", "x": [1.5]}
    with pytest.raises(InvalidInput, match=r"a gave no figures: no vllm here"):
        peers.answer([sys.executable, "-c", "raise SystemExit('no vllm here')"], {"side": "a"})


def test_both_engines_get_the_same_requests_and_none_twice():
    orders, sizes = [], {"offline": [[1, 2], [8, 8]]}
    for side in (peers.OURS, peers.EAGER):
        figures = peers.offline(lambda order: orders.append(order) or {"quiet": [2.0]}, Settings(), side, sizes)
        assert figures == {"auto_quiet": [2.0]}
    assert all(orders[0][key] == orders[1][key] for key in ("loads", "warm_up"))
    jobs = [job for _, each in orders[0]["loads"] for job in each] + orders[0]["warm_up"]
    assert len({tuple(prompt[:8]) for prompt, _ in jobs}) == len(jobs)  # less than a page in common


def test_a_rate_counts_the_tokens_asked_for(monkeypatch):
    seconds, groups = iter([10.0, 14.0, 20.0, 30.0]), []
    monkeypatch.setattr(peer_program.time, "perf_counter", lambda: next(seconds))

    def generate(jobs):
        groups.append(len(jobs))
        return [[7] * tokens for _, tokens in jobs]

    assert peer_program.rate(generate, 2, [[[1], 3], [[2], 4], [[3], 5]]) == 3.0 and groups == [2, 1]
    with pytest.raises(RuntimeError, match="as many tokens"):
        peer_program.rate(lambda jobs: [[7]], 1, [[[1], 3]])


def test_reports_of_the_client_become_figures_by_load():
    reports = [{"output_throughput": rate, "p99_itl_ms": 7.5, "failed": 0, "completed": 8} for rate in (150.0, 700.0)]
    figures = {"tokens_per_second": [150.0, 700.0], "p99_itl_ms": [7.5, 7.5]}
    assert peer_program.figures_of(reports) == figures
    with pytest.raises(RuntimeError, match="3 requests failed"):
        peer_program.figures_of([*reports, reports[0] | {"failed": 3}])


def test_ratios_are_taken_inside_a_repeat():
    measured = {peers.OURS: {"float32_quiet": [200.0, 600.0]}, peers.EAGER: {"float32_quiet": [100.0, 400.0]}}
    assert peers.derive(None, None, {}, measured) == {"float32_quiet_over_eager": [2.0, 1.5]}
    assert peers.derive(None, None, {}, {}) == {}, "without vLLM"

"""The comparison with other engines, without one: the course's own engine stands in for a peer."""

import sys
from contextlib import nullcontext
from functools import partial

import pytest

from common.bench.experiments import peer_program, peers
from common.bench.experiments.peers import BENCHMARK, OURS, OVER_HTTP, PEERS
from common.bench.hardware import ROOT
from common.bench.harness import measure_sides
from common.bench.settings import Settings
from tests.helpers.measured_here import shrink_measurements


@pytest.mark.skipif(sys.platform == "win32", reason="the Python that stands in is a shell script")
def test_a_peer_is_asked_what_the_stage_is_asked_and_a_missing_one_is_named(monkeypatch, tmp_path, server):
    """The row of vLLM starts the course's engine, under a Python of its own."""
    shrink_measurements(monkeypatch)
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PEERS", str(tmp_path))
    row = PEERS[OURS]._replace(home="vllm", variables={"PYTHONPATH": str(ROOT)})
    monkeypatch.setitem(PEERS, "vLLM", row)
    monkeypatch.setattr(peers, "serving", lambda *_: nullcontext(server.url))
    served = partial(peers.measure_http, name=OURS, case="bundled")
    monkeypatch.setitem(BENCHMARK.sides, "served", served)
    sides = ["vLLM bundled", "llama.cpp bundled", "served"]
    answers = {answer["side"]: answer for answer in measure_sides(BENCHMARK, sides, Settings(), "tiny")}
    assert answers["llama.cpp bundled"]["missing"].startswith("llama lacks")
    found, served = (answers[side]["figures"] for side in ("vLLM bundled", "served"))
    assert [len(answer.split()) for answer in found["answers"]] == [8, 8]
    assert len(found["decode"]) == len(found["prompts"]) == len(found["floor"]) == 2
    assert found["settings"] == {"PYTHONPATH": ROOT.name} and found["versions"]["torch"]
    assert [len(row) for row in served["closed"] + served["open"]] == 3 * [len(OVER_HTTP)]


def test_prompts_and_decoding_are_timed_apart(monkeypatch):
    moments, asked = iter([10.0, 14.0, 24.0, 30.0, 34.0, 44.0, 50.0, 51.0, 99.0]), []  # s, the third pair disturbed
    monkeypatch.setattr(peer_program.time, "perf_counter", lambda: next(moments))

    def generate(prompts, tokens):
        asked.append((len(prompts), tokens))
        return [[7] * tokens for _ in prompts]

    pair = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
    assert peer_program.rate(generate, [pair] * 3, 4) == (1.0, 1.0)
    assert asked == [(2, 1), (2, 4)] * 3


def test_the_ceiling_and_the_tokens_are_compared_inside_a_repeat():
    sizes = {"requests": [1, 8]}
    ours = {"decode": [50.0, 80.0], "answers": ["1 2 3", "4 5 6"], "floor": [0.01, 0.05]}
    peer = {"decode": [25.0, 160.0], "answers": ["1 2 4", "5 5 6"], "floor": [0.01, 0.05]}
    measured = {f"{OURS} float32": ours, "vLLM float32": peer}
    found = BENCHMARK.derive(sizes, measured)
    assert found["vLLM float32 percent"] == [25.0, 100.0] and found[f"{OURS} float32 percent"] == [50.0, 50.0]
    assert found["vLLM float32 above"] == pytest.approx([30, 0])
    assert found["vLLM float32 alike"] == [2, 0] and found[f"{OURS} float32 alike"] == [3, 3]

"""The load generator for OpenAI-compatible servers, against a server that answers as the test wants it to."""

import asyncio
import json
import subprocess
import sys
from unittest.mock import ANY

import numpy
import pytest

from common.bench import serve
from common.bench.client import Target, ask, connections, poisson_arrivals
from common.bench.metrics import LoadResult, RequestRecord
from common.bench.workloads import WORKLOADS, Job, worded_jobs
from common.errors import InvalidInput
from common.stages import ROOT
from tests.helpers.openai_stand_in import FAILURES, FIRST, GAP, KEY, MODELS

# ---- One request ----


@pytest.mark.parametrize(
    ("model", "endpoint", "chunks"), [("steady", "chat", 8), ("empty-first", "completions", 8), ("bursts", "chat", 2)]
)
def test_an_answer_is_timed_by_its_text_and_counted_by_its_usage(server, model, endpoint, chunks):
    async def send():
        async with connections(server.url + "/v1/")() as http:
            return await ask(http, Target(model, endpoint), Job("how are you", 8))

    record = asyncio.run(send())
    assert (record.error, record.prompt_tokens, record.output_tokens, len(record.chunks)) == (None, 3, 8, chunks)
    assert record.ttft >= 0.95 * FIRST, "a chunk without text is no first token"
    assert record.e2el >= 0.95 * (FIRST + (chunks - 1) * GAP)
    assert record.end == record.chunks[-1], "the usage that follows the answer is not waited for"
    assert record.tpot == (record.e2el - record.ttft) / 7 and len(record.itl) == chunks - 1


# ---- When requests are sent, and which ----


def test_poisson_arrivals_are_seeded_and_keep_their_rate():
    arrivals = poisson_arrivals(20_000, rate=4.0, seed=1)
    assert arrivals == poisson_arrivals(20_000, rate=4.0, seed=1) != poisson_arrivals(20_000, rate=4.0, seed=2)
    gaps = numpy.diff(arrivals)
    assert gaps.min() >= 0 and gaps.mean() == pytest.approx(1 / 4, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 4, rel=0.05), "as the gaps of a Poisson process are"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_runs_are_seeded_equally_long_and_begin_with_other_words(workload):
    runs = [worded_jobs(workload, 9, 40, 20, seed=1, number=number) for number in range(3)]
    assert runs[0] == worded_jobs(workload, 9, 40, 20, seed=1) != worded_jobs(workload, 9, 40, 20, seed=2)
    assert all(job.max_tokens <= 20 and not job.ignore_eos for run in runs for job in run)
    prompts = [[job.prompt.split() for job in run] for run in runs]
    if workload != "corpus":
        for same in zip(*prompts, strict=True):
            assert len({len(words) for words in same}) == 1 and len(same[0]) <= 40
            assert len({words[0] for words in same}) == 3
        shared = {tuple(words[:20]) for words in prompts[0]}
        assert len(shared) == (1 if workload == "shared-prefix" else 9)


# ---- Figures ----


def test_the_figures_of_a_known_schedule_are_those_of_vllm_bench_serve():
    """Within ten seconds three tokens in three chunks, four in two, one in one, and failures, which count nowhere."""
    records = [
        RequestRecord(start=0.0, end=3.0, chunks=[1.0, 2.0, 3.0], prompt_tokens=5, output_tokens=3),
        RequestRecord(start=1.0, end=4.0, chunks=[2.5, 4.0], prompt_tokens=6, output_tokens=4),
        RequestRecord(start=2.0, end=2.5, chunks=[2.5], prompt_tokens=7, output_tokens=1),
        RequestRecord(start=1.0, error="full"),
        RequestRecord(start=2.0, end=9.0, error="full"),
    ]
    result = LoadResult(records, 10.0, client_seconds=9.0)
    assert result.values("itl") == [1.0, 1.0, 1.5] and result.values("e2el") == [3.0, 3.0, 0.5]
    assert result.values("tpot") == [(3.0 - 1.0) / 2, (3.0 - 1.5) / 3], "of one token there is none"
    assert result.processed_per_second == (5 + 2 + 6 + 3 + 7 + 0) / 10
    assert result.goodput({"ttft": 1.5, "tpot": 0.6, "e2el": 1.0}) == 1 / 10, "one token meets any TPOT"
    figures = result.figures()
    counts = {"requests": 5, "failed": 2, "failures": {"full": 2}, "prompt_tokens": 18, "output_tokens": 8}
    assert (counts | {"requests_per_second": 0.3, "output_tokens_per_second": 0.8}).items() <= figures.items()
    assert figures["ttft"] == pytest.approx({"mean": 1.0, "p50": 1.0, "p90": 1.4, "p99": 1.49}), "interpolated"
    [_, busy] = serve.warnings({"points": [{"rate": 4, **figures}], "axis": "rate", "interrupted": False})
    assert busy == "the load generator was at its limit at rate 4: a part of those latencies is its own"


# ---- The command line ----


def run(server, *options: str) -> int:
    return serve.main(["--url", server.url, "--output-tokens", "4", "--prompt-tokens", "20", *options])


def test_a_sweep_gives_a_table_json_and_a_plot(server, tmp_path, capsys):
    files = ["--json", str(tmp_path / "sweep.json"), "--plot", str(tmp_path / "sweep.png")]
    assert run(server, "--concurrency", "8,1,2", "--requests", "16", *files) == 0
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert document["model"] == MODELS[0] and "hardware" not in document and server.url not in json.dumps(document)
    assert server.most_open == 8 and len(server.bodies) == 1 + 3 * 16
    assert len({str(body.get("prompt")) for body in server.bodies}) > 3 * 12, "each run has prompts of its own"
    assert (tmp_path / "sweep.png").read_bytes()[16:20] == (1600).to_bytes(4, "big")
    printed = capsys.readouterr()
    rows = [line.split()[:3] for line in printed.out.splitlines() if line.split()[1:2] == ["16"]]
    assert rows == [["1", "16", "0"], ["2", "16", "0"], ["8", "16", "0"]]
    assert max(len(line) for line in printed.out.splitlines()) <= 80 and "…" not in printed.out
    assert printed.out.count(" p50 ") == printed.out.count(" p99 ") == 4
    assert "concurrency 8" in printed.err and "16/16" in printed.err and "16/16" not in printed.out


def test_rates_are_open_loops_whose_failures_are_counted(server, capsys):
    options = ["--rate", "100,400.5", "--requests", "7", "--workload", "corpus", "--endpoint", "chat", "--ignore-eos"]
    assert run(server, *options, "--model", "flaky", "--json", "-") == 1
    *table, line = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    found = [[point[name] for name in ("rate", "requests", "failed")] for point in document["points"]]
    assert found == [[100, 7, 2], [400.5, 7, 3]] and document["arrivals"] == "Poisson arrivals"
    assert server.most_open > 1, "a request does not wait for the answer to another"
    assert document["points"][1]["failures"] == {"HTTP 429: the queue is full": 3}
    assert "5 of 14 requests failed, 5 of them with: HTTP 429: the queue is full" in table
    body = server.bodies[-1]
    assert body.pop("messages") == [{"role": "user", "content": ANY}] and body.pop("max_tokens") <= 4
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert body == {"model": "flaky", "temperature": 0, "ignore_eos": True} | streamed, "OpenAI's fields, and vLLM's"


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--model", "gpt-7"], "the server has no model 'gpt-7'; it serves steady, bursts"),
        (["--api-key", "wrong"], "HTTP 401: Incorrect API key provided (the API key is that of --api-key or"),
        *[(["--model", name], f"the first request failed: {reason}") for name, reason in FAILURES.items()],
    ],
)
def test_what_makes_every_request_fail_is_one_sentence(server, monkeypatch, options, sentence, capsys):
    server.key = KEY
    monkeypatch.setenv("OPENAI_API_KEY", KEY)  # in place of --api-key
    with pytest.raises(InvalidInput) as refused:
        run(server, *options)
    assert str(refused.value).startswith(sentence) and "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_ctrl_c_reports_the_runs_that_are_complete(server, capsys, ctrl_c):
    server.on_request = lambda count: ctrl_c() if count == 1 + 8 + 3 else None
    assert run(server, "--concurrency", "2,4", "--requests", "8", "--json", "-") == 130
    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    assert document["interrupted"] and [point["concurrency"] for point in document["points"]] == [2]
    assert printed.err.splitlines()[-1] == "interrupted: 1 of 2 runs are complete"


def test_it_starts_without_torch():
    program = "import sys, common.bench.serve; assert 'torch' not in sys.modules and 'httpx' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

"""The load generator for OpenAI-compatible servers, against a server that answers as the test wants it to."""

import asyncio
import json
import subprocess
import sys
from contextlib import nullcontext

import pytest

from common.bench import serve
from common.bench.client import Target, ask, connections, open_loop, poisson_arrivals
from common.bench.metrics import LoadResult, RequestRecord, percentiles
from common.bench.workloads import WORKLOADS, Job, worded_jobs
from common.errors import InvalidInput
from common.stages import ROOT
from tests.helpers.openai_stand_in import FAILURES, FIRST, GAP, KEY, MODELS, stand_in


@pytest.fixture(scope="module")
def running_server():
    with stand_in() as server:
        yield server


@pytest.fixture
def server(running_server):
    running_server.forget()
    return running_server


def ask_once(server, model: str, job: Job, endpoint: str = "completions") -> RequestRecord:
    async def send():
        async with connections(server.url + "/v1/")() as http:
            return await ask(http, Target(model, endpoint), job)

    return asyncio.run(send())


# ---- One request ----


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("model, chunks", [("steady", 8), ("empty-first", 8), ("bursts", 2)])
def test_an_answer_is_timed_by_its_text_and_counted_by_its_usage(server, model, chunks, endpoint):
    record = ask_once(server, model, Job("how are you", 8, ignore_eos=False), endpoint)
    assert (record.error, record.prompt_tokens, record.output_tokens, len(record.chunks)) == (None, 3, 8, chunks)
    assert record.ttft >= 0.95 * FIRST, "a chunk without text is no first token"
    assert record.e2el >= 0.95 * (FIRST + (chunks - 1) * GAP)
    assert record.end == record.chunks[-1], "the usage that follows the answer is not waited for"
    assert record.tpot == (record.e2el - record.ttft) / 7 and len(record.itl) == chunks - 1


@pytest.mark.parametrize("model, reason", FAILURES.items())
def test_whatever_goes_wrong_is_said(server, model, reason):
    assert ask_once(server, model, Job("how are you", 3)).error == reason


def test_what_is_sent(server):
    ask_once(server, "steady", Job([5, 6, 7], 2, ignore_eos=True))
    ask_once(server, "steady", Job("hello", 2, ignore_eos=False), "chat")
    common = {"model": "steady", "max_tokens": 2, "temperature": 0, "stream": True}
    common["stream_options"] = {"include_usage": True}
    assert server.bodies[0] == common | {"prompt": [5, 6, 7], "ignore_eos": True}
    assert server.bodies[1] == common | {"messages": [{"role": "user", "content": "hello"}]}


# ---- When requests are sent, and which ----


def test_poisson_arrivals_are_seeded_and_keep_their_rate():
    arrivals = poisson_arrivals(20_000, rate=4.0, seed=1)
    assert arrivals == poisson_arrivals(20_000, rate=4.0, seed=1) != poisson_arrivals(20_000, rate=4.0, seed=2)
    gaps = [later - earlier for earlier, later in zip([0.0, *arrivals], arrivals, strict=False)]
    assert min(gaps) >= 0 and sum(gaps) / len(gaps) == pytest.approx(1 / 4, rel=0.03)
    variance = sum((gap - 1 / 4) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(1 / 4, rel=0.05), "as the gaps of a Poisson process are"


def test_an_open_loop_waits_for_no_answer():
    """No time passes here but that of the event loop: how many are under way does not depend on the machine."""
    open_now, most, connected = 0, 0, []

    async def send(http, number: int) -> RequestRecord:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.02)
        open_now -= 1
        return RequestRecord(start=float(number))

    result = asyncio.run(open_loop(range(7), [0.0] * 6 + [0.05], lambda: connected.append(1) or nullcontext(), send))
    assert most == len(connected) >= 6 and len(result.records) == 7 and result.seconds >= 0.95 * 0.07


@pytest.mark.parametrize("workload", WORKLOADS)
def test_runs_are_seeded_equally_long_and_begin_with_other_words(workload):
    runs = [worded_jobs(workload, 9, 40, 20, seed=1, number=number) for number in range(3)]
    assert runs[0] == worded_jobs(workload, 9, 40, 20, seed=1) != worded_jobs(workload, 9, 40, 20, seed=2)
    jobs = [job for run in runs for job in run]
    assert all(isinstance(job.prompt, str) and job.max_tokens <= 20 and not job.ignore_eos for job in jobs)
    if workload == "corpus":
        return
    for same in zip(*runs, strict=True):
        prompts = [job.prompt.split() for job in same]
        assert len({len(prompt) for prompt in prompts}) == len({job.max_tokens for job in same}) == 1
        assert len(prompts[0]) <= 40 and len({prompt[0] for prompt in prompts}) == 3
    shared = {tuple(job.prompt.split()[:20]) for job in runs[0]}
    assert len(shared) == (1 if workload == "shared-prefix" else 9)


# ---- Figures ----


def test_the_figures_of_a_known_schedule_are_those_of_vllm_bench_serve():
    """Within ten seconds three tokens in three chunks, four in two, one in one, and failures, which count nowhere."""
    records = [
        RequestRecord(start=0.0, end=3.0, chunks=[1.0, 2.0, 3.0], prompt_tokens=5, output_tokens=3),
        RequestRecord(start=1.0, end=4.0, chunks=[2.5, 4.0], prompt_tokens=6, output_tokens=4),
        RequestRecord(start=2.0, end=2.5, chunks=[2.5], prompt_tokens=7, output_tokens=1),
        RequestRecord(start=1.0, error="full"),
        RequestRecord(start=2.0, error="full"),
        RequestRecord(start=2.0, end=9.0, error="cut"),
    ]
    result = LoadResult(records, 10.0, client_seconds=9.0)
    assert result.values("itl") == [1.0, 1.0, 1.5] and result.values("e2el") == [3.0, 3.0, 0.5]
    assert result.values("tpot") == [(3.0 - 1.0) / 2, (3.0 - 1.5) / 3], "of one token there is none"
    assert result.processed_per_second == (5 + 2 + 6 + 3 + 7 + 0) / 10
    assert result.goodput({"ttft": 1.5, "tpot": 0.6, "e2el": 1.0}) == 1 / 10, "one token meets any TPOT"
    assert result.goodput({"ttft": 1.5, "tpot": 0.6}) == 2 / 10
    figures = result.figures()
    assert (figures["requests"], figures["failed"], figures["failures"]) == (6, 3, {"full": 2, "cut": 1})
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (18, 8)
    assert (figures["requests_per_second"], figures["output_tokens_per_second"]) == (3 / 10, 8 / 10)
    assert figures["ttft"] == pytest.approx({"mean": 1.0, "p50": 1.0, "p90": 1.4, "p99": 1.49}), "interpolated"
    with pytest.raises(ValueError, match="no values"):
        percentiles([])
    document = {"points": [{"rate": 4, **figures}], "axis": "rate", "interrupted": False}
    failed, busy = serve.warnings(document)
    assert failed == "3 of 6 requests failed, 2 of them with: full"
    assert busy == "the load generator was at its limit at rate 4: a part of those latencies is its own"


# ---- The command line ----


def run(server, *options: str) -> int:
    return serve.main(["--url", server.url, "--output-tokens", "4", "--prompt-tokens", "20", *options])


def test_a_sweep_gives_a_table_json_and_a_plot(server, tmp_path, capsys):
    files = ["--json", str(tmp_path / "sweep.json"), "--plot", str(tmp_path / "sweep.png")]
    assert run(server, "--concurrency", "8,1,2", "--requests", "16", *files) == 0
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert document["model"] == MODELS[0] and "hardware" not in document and server.url not in json.dumps(document)
    assert [point["concurrency"] for point in document["points"]] == [1, 2, 8]
    assert all(point["requests"] == 16 and point["failed"] == 0 for point in document["points"])
    rates = [point["requests_per_second"] for point in document["points"]]
    assert rates == sorted(rates)
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
    assert document["workload"] == "corpus: answers of up to 4 tokens, to full length"
    assert document["points"][1]["failures"] == {"HTTP 429: the queue is full": 3}
    assert "5 of 14 requests failed, 5 of them with: HTTP 429: the queue is full" in table
    assert all(body["ignore_eos"] and len(body["messages"]) == 1 for body in server.bodies[1:])


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--model", "gpt-7"], "the server has no model 'gpt-7'; it serves steady, bursts"),
        (["--api-key", "wrong"], "HTTP 401: Incorrect API key provided (the API key is that of --api-key or"),
        (["--model", "cut"], "the first request failed: peer closed connection"),
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

"""The load generator for OpenAI-compatible servers, against a server that answers as the test wants it to."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.bench import serve
from common.bench.client import NOT_SENT, Connections, Target, converse
from common.bench.conversations import Workload
from common.bench.metrics import LoadResult, RequestRecord
from common.bench.serve_report import footer, point_figures, result_document
from common.bench.workloads import Job
from tests.helpers.openai_stand_in import FAILURES, FIRST, GAP, KEY, MODELS, stand_in

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def running_server():
    with stand_in() as server:
        yield server


@pytest.fixture
def server(running_server):
    running_server.forget()
    return running_server


def ask(server, model: str, *turns: Job, endpoint: str = "completions") -> list[RequestRecord]:
    async def send():
        async with Connections(server.url + "/v1/") as connections:
            return await converse(connections, Target(model, endpoint), turns)

    return asyncio.run(send())


# ---- One request ----


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("model, chunks", [("steady", 8), ("empty-first", 8), ("bursts", 2)])
def test_an_answer_is_timed_by_its_text_and_counted_by_its_usage(server, model, chunks, endpoint):
    [record] = ask(server, model, Job("how are you", 8, ignore_eos=False), endpoint=endpoint)
    assert record.error is None and record.text == " word" * 8
    assert (record.prompt_tokens, record.output_tokens, len(record.chunks)) == (3, 8, chunks)
    assert record.ttft >= 0.95 * FIRST, "a chunk without text is no first token"
    assert record.e2el >= 0.95 * (FIRST + (chunks - 1) * GAP)
    assert record.end == record.chunks[-1], "the usage that follows the answer is not waited for"
    assert record.tpot == (record.e2el - record.ttft) / 7 and len(record.itl) == chunks - 1


@pytest.mark.parametrize("model, reason", FAILURES.items())
def test_whatever_goes_wrong_is_said_and_ends_the_conversation(server, model, reason):
    job = Job("how are you", 3)
    assert [record.error for record in ask(server, model, job, job)] == [reason, NOT_SENT]
    assert len(server.bodies) == 1


def test_what_is_sent(server):
    ask(server, "steady", Job([5, 6, 7], 2, ignore_eos=True))
    ask(server, "steady", Job("hello", 2, ignore_eos=False), endpoint="chat")
    common = {"model": "steady", "max_tokens": 2, "temperature": 0, "stream": True}
    common["stream_options"] = {"include_usage": True}
    assert server.bodies[0] == common | {"prompt": [5, 6, 7], "ignore_eos": True}
    assert server.bodies[1] == common | {"messages": [{"role": "user", "content": "hello"}]}


def test_a_turn_carries_all_that_was_said(server):
    turns = [Job(text, 2, ignore_eos=False) for text in ("one", "two", "three")]
    records = ask(server, "steady", *turns)
    answer = " word word"
    said = [body["prompt"] for body in server.bodies]
    assert said == ["one", f"one\n{answer}\ntwo", f"one\n{answer}\ntwo\n{answer}\nthree"]
    assert [record.prompt_tokens for record in records] == [1, 4, 7]
    assert all(later.start >= earlier.end for earlier, later in zip(records, records[1:], strict=False))

    ask(server, "steady", *turns, endpoint="chat")
    messages = server.bodies[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert [message["content"] for message in messages] == ["one", answer, "two", answer, "three"]
    assert server.bodies[-2]["messages"] == messages[:3]


# ---- Figures ----


def test_the_figures_of_a_known_schedule():
    records = [
        RequestRecord(start=0.0, end=2.0, chunks=[1.0, 1.5, 2.0], prompt_tokens=10, output_tokens=5),
        RequestRecord(start=1.0, end=4.0, chunks=[3.0, 4.0], prompt_tokens=20, output_tokens=3),
        RequestRecord(start=1.0, error="full"),
        RequestRecord(start=2.0, error="full"),
        RequestRecord(start=2.0, error="cut"),
    ]
    figures = point_figures(LoadResult(records, seconds=4.0), {"ttft": 1.5, "tpot": 0.25})
    assert (figures["requests"], figures["failed"], figures["failures"]) == (5, 3, {"full": 2, "cut": 1})
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (30, 8)
    assert figures["requests_per_second"] == 2 / 4 and figures["goodput"] == 1 / 4
    assert (figures["output_tokens_per_second"], figures["total_tokens_per_second"]) == (8 / 4, 38 / 4)
    assert figures["ttft"] == pytest.approx({"mean": 1.5, "p50": 1.5, "p90": 1.9, "p99": 1.99})
    assert figures["tpot"]["mean"] == (1 / 4 + 1 / 2) / 2 and figures["e2el"]["p50"] == 2.5
    assert figures["itl"]["mean"] == pytest.approx(2 / 3)
    assert point_figures(LoadResult(records[2:], 4.0), {})["ttft"] is None


def test_a_load_generator_at_its_limit_says_so():
    target, record = Target("m"), RequestRecord(start=0.0, end=2.0, chunks=[2.0], output_tokens=1)
    results = {4: LoadResult([record], 2.0, client_seconds=0.2), 64: LoadResult([record], 2.0, client_seconds=1.9)}
    document = result_document(target, Workload(), 0, "concurrency", results, {}, interrupted=False)
    assert "the load generator was at its limit at concurrency 64" in footer(document)
    assert [point["itl"] for point in document["points"]] == [None, None], "of one chunk there are no gaps"


# ---- The command line ----


def run(server, *options: str) -> int:
    return serve.main(["--url", server.url, "--output-tokens", "4", "--prompt-tokens", "20", *options])


def test_a_sweep_gives_a_table_json_and_a_plot(server, tmp_path, capsys):
    files = ["--json", str(tmp_path / "sweep.json"), "--plot", str(tmp_path / "sweep.png")]
    assert run(server, "--concurrency", "8,1,2", "--requests", "16", "--slo", "e2el=60", *files) == 0
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert document["model"] == MODELS[0] and "hardware" not in document and server.url not in json.dumps(document)
    assert [point["concurrency"] for point in document["points"]] == [1, 2, 8]
    assert all(point["requests"] == 16 and point["failed"] == 0 for point in document["points"])
    rates = [point["requests_per_second"] for point in document["points"]]
    assert rates == sorted(rates) and [point["goodput"] for point in document["points"]] == rates
    assert server.most_open == 8 and len(server.bodies) == 1 + 3 * 16
    assert len({str(body.get("prompt")) for body in server.bodies}) > 3 * 12, "each run has prompts of its own"
    assert (tmp_path / "sweep.png").read_bytes()[16:20] == (1600).to_bytes(4, "big")
    printed = capsys.readouterr()
    assert max(len(line) for line in printed.out.splitlines()) <= 80
    assert [line.split()[:2] for line in printed.out.splitlines() if line.split()[1:2] == ["16"]] == [
        ["1", "16"],
        ["2", "16"],
        ["8", "16"],
    ]
    assert "concurrency 8" in printed.err and "16/16" in printed.err and "16/16" not in printed.out


def test_rates_are_open_loops_and_the_last_line_may_be_json(server, capsys):
    options = ["--rate", "100,400.5", "--requests", "7", "--workload", "multi-turn", "--turns", "2"]
    assert run(server, *options, "--endpoint", "chat", "--json", "-", "--ignore-eos") == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(point["rate"], point["requests"]) for point in document["points"]] == [(100, 8), (400.5, 8)]
    assert document["arrivals"] == "Poisson arrivals" and document["workload"]["turns"] == 2
    assert all(body["ignore_eos"] for body in server.bodies)
    assert sorted(len(body["messages"]) for body in server.bodies) == [1] * 9 + [3] * 8


def test_failures_are_counted_and_change_the_exit_status(server, capsys):
    assert run(server, "--model", "flaky", "--concurrency", "1", "--requests", "8", "--json", "-") == 1
    *table, line = capsys.readouterr().out.splitlines()
    [point] = json.loads(line)["points"]
    assert (point["requests"], point["failed"], point["failures"]) == (8, 3, {"HTTP 429: the queue is full": 3})
    assert point["output_tokens"] == sum(body["max_tokens"] for i, body in enumerate(server.bodies[1:]) if i % 3 != 1)
    assert "3 of 8 requests failed, 3 of them with: HTTP 429: the queue is full" in table


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
        (["--model", "gpt-7"], "the server has no model 'gpt-7'; it serves steady, bursts"),
        (["--api-key", "wrong"], "HTTP 401: Incorrect API key provided (the API key is that of --api-key or"),
        (["--model", "cut"], "the first request failed: peer closed connection"),
    ],
)
def test_what_makes_every_request_fail_is_one_sentence(server, options, sentence, capsys):
    server.key = KEY
    key = [] if "--api-key" in options else ["--api-key", KEY]
    assert run(server, *key, *options) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"error: {sentence}") and printed.err.count("\n") == 1


def test_the_api_key_may_come_from_the_environment(server, monkeypatch):
    server.key = KEY
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert run(server, "--concurrency", "1", "--requests", "1") == 0
    assert server.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--concurrency", "1", "--rate", "1"], "not allowed with"),
        (["--concurrency", "0,1"], "not a list of positive numbers"),
        (["--concurrency", "8", "--requests", "4"], "too few for concurrency 8"),
        (["--slo", "itl=1"], "not of the form"),
        (["--token-ids", "--workload", "corpus"], "made of text"),
        (["--token-ids", "--workload", "fixed", "--endpoint", "chat"], "a chat is text"),
        (["--url", "localhost:8000"], "http://"),
        (["--plot", "/no/such/folder/plot.png"], "no folder /no/such/folder"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_sent(server, options, sentence, capsys):
    with pytest.raises(SystemExit) as refusal:
        run(server, *options)
    assert refusal.value.code == 2 and sentence in capsys.readouterr().err and server.bodies == []


def test_ctrl_c_reports_the_runs_that_are_complete(server, capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server.on_request = lambda count: os.kill(os.getpid(), signal.SIGINT) if count == 1 + 8 + 3 else None
        assert run(server, "--concurrency", "2,4", "--requests", "8", "--json", "-") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    assert document["interrupted"] and [point["concurrency"] for point in document["points"]] == [2]
    assert printed.err.splitlines()[-1] == "interrupted: 1 of 2 runs are complete"


def test_it_starts_without_torch():
    program = "import sys, common.bench.serve; assert 'torch' not in sys.modules and 'httpx' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

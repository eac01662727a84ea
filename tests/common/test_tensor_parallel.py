"""Engines on two ranks, two processes over gloo: they generate the tokens of one process, and end together."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from random import Random
from unittest.mock import Mock

import psutil
import pytest
import torch
import torch.distributed as dist

from common.acceleration import graphs
from common.cli import build_engine, build_parser
from common.parallel import ranks
from common.parallel.engine import TensorParallelEngine
from common.parallel.ranks import RankLost, Ranks
from common.sampling import SamplingParams
from common.stages import ROOT, load_engine, stage_folder
from tests.helpers.engine_options import drain, endless, pool
from tests.helpers.interruptions import Interruptions
from tests.test_contract import SAMPLINGS

GREEDY = SamplingParams(max_tokens=16)
STAGES = {"02": {}, "07": {"num_draft_tokens": 3}}
STORY = "Once upon a time, there was"

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


# ---- Engines of two ranks ----


@pytest.fixture(scope="module")
def built():
    """An engine as the command line builds it: this file's tests share its ranks."""
    args = parse("--device", "cpu", "--tensor-parallel", "2")
    _, engine = build_engine(ROOT / "02_kv_cache", load_engine("02"), args)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def two(built) -> Ranks:
    return built._ranks


@pytest.fixture
def own_two(built, monkeypatch):
    """Ranks for a test that ends them; those that are shared have been closed."""
    built.close()
    monkeypatch.setattr(ranks, "COLLECTIVE_SECONDS", 3.0)
    two = Ranks(2, device="cpu")
    yield two
    two.close()


def parse(*arguments: str):
    return build_parser("").parse_args([*([] if "--demo" in arguments else ["--prompt", STORY]), *arguments])


@pytest.mark.parametrize("stage", STAGES)
def test_tokens_are_those_of_one_rank_and_of_transformers(two, loaded, prompts, reference, stage):
    alone = load_engine(stage)(loaded, **STAGES[stage]).generate(prompts[:4], SAMPLINGS)
    engine = TensorParallelEngine(two, stage, **STAGES[stage])
    completions = engine.generate(prompts[:4] * 2, SAMPLINGS + [GREEDY] * 4)
    expected = [request.token_ids for request in alone] + [reference.generate(prompt, 16) for prompt in prompts[:4]]
    assert [request.token_ids for request in completions] == expected
    engine.check()
    assert engine.startup_notes.startswith("ranks=2 (a process with ") and "over gloo" in engine.startup_notes
    assert engine.config.num_kv_heads == 1 and engine.model.blocks[0].mlp.down.weight.shape == (256, 344)


def test_without_a_seed_all_ranks_reject_the_same_draft_tokens(two, loaded, prompts, monkeypatch):
    """All ranks draw from rank 0's seed. A seed in the parameters would switch from rejection to comparison.

    Rank 0 draws the same seeds in each run: with some, rounding decides, which is not the same on one rank.
    """
    monkeypatch.setattr("secrets.randbits", Random(1).getrandbits)
    params = endless(24, temperature=1.0)
    engine, alone = TensorParallelEngine(two, "07", **STAGES["07"]), load_engine("07")(loaded, **STAGES["07"])
    requests = [engine.add(prompt, params) for prompt in prompts[:4]]
    twins = [alone.add(prompt, params) for prompt in prompts[:4]]
    for request, twin in zip(requests, twins, strict=True):
        twin.seed = request.seed
    drain(engine)
    drain(alone)
    assert [request.token_ids for request in requests] == [twin.token_ids for twin in twins]
    stats = engine.stats()
    assert 0 < stats["accepted_tokens"] < stats["draft_tokens"]


def test_requests_that_join_late_leave_early_or_are_refused(two, loaded, prompts):
    """With so little memory that some requests are preempted, too."""
    params, short = endless(24), sorted(prompts, key=len)[:6]
    alone = load_engine("05")(loaded).generate(short, params)
    engine = TensorParallelEngine(two, "05", **pool(12, 4))
    requests = []
    for i, prompt in enumerate(short):
        requests.append(engine.add(prompt, params, f"number {i}"))
        with pytest.raises(ValueError, match="vocabulary"):
            engine.add([4096], params)
        engine.step()
        engine.check()
        if i == 2:
            engine.abort("number 1")
            engine.abort("unknown")
    drain(engine)
    engine.check()
    assert [request.finish_reason for request in requests] == ["length", "abort", *["length"] * 4]
    for request, other in zip(requests, alone, strict=True):
        assert request.token_ids == other.token_ids[: len(request.token_ids)]
    assert engine.stats()["preemptions"] > 0 and engine.step() == []


def test_ranks_meet_on_loopback(two):
    connections = psutil.Process().net_connections()
    listening = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_a_second_group_is_refused(two):
    with pytest.raises(ValueError, match="already"):
        Ranks(2, device="cpu")


def test_closing_ends_the_ranks(built, two, monkeypatch):
    """This one is the last of the tests that share them. Graphs are emptied before: NCCL waits for them."""
    graph, destroy, emptied = Mock(), dist.destroy_process_group, []
    graphs.recorded.add(graph)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: (emptied.append(graph.reset.called), destroy()))
    built.close()
    assert emptied == [True]
    assert [process.returncode for process in two._followers] == [0] and not dist.is_initialized()
    with pytest.raises(RankLost, match="have been ended"):
        built.add(STORY)


# ---- Failures ----


def assert_lost(engine, two: Ranks, says: str, call) -> None:
    """A call raises, says why, and leaves no process running."""
    with pytest.raises(RankLost, match=says):
        while True:
            call()
    with pytest.raises(RankLost, match=says):
        engine.add(STORY)
    for request_id in list(engine.requests):
        engine.abort(request_id)  # raises nothing
    engine.close()
    assert all(process.poll() is not None for process in two._followers)
    assert not dist.is_initialized()


@posix
@pytest.mark.parametrize(
    ("sent", "call", "says"),
    [
        ("SIGKILL", "step", r"rank 1 of 2 has ended \(exit status -9\)"),
        ("SIGSTOP", "step", "rank 0 could not end its step.*Timed out"),
        ("SIGSTOP", "check", "rank 1 of 2 does not answer within 1 s"),
    ],
)
def test_a_rank_that_is_killed_or_hangs_ends_all(own_two, monkeypatch, sent, call, says):
    """In a collective, or where rank 0 waits for an answer."""
    engine = TensorParallelEngine(own_two, "05")
    monkeypatch.setattr(ranks, "ANSWER_SECONDS", 1.0)
    engine.add(STORY, endless(3000))
    threading.Timer(0.5, own_two._followers[0].send_signal, [getattr(signal, sent)]).start()
    assert_lost(engine, own_two, says, getattr(engine, call))


def test_an_interrupted_step_ends_all_ranks(own_two, monkeypatch):
    """They may have stopped at different places: no request gets another token, right or wrong."""
    engine = TensorParallelEngine(own_two, "05")
    Interruptions(engine._engine, monkeypatch)
    request = engine.add(STORY, GREEDY)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([STORY], GREEDY)
    assert_lost(engine, own_two, "rank 0 could not end its step: KeyboardInterrupt", engine.step)
    assert not request.token_ids


def test_a_rank_that_fails_says_why(own_two):
    engine = TensorParallelEngine(own_two, "05")
    engine.add(STORY, endless(3000))
    with suppress(RankLost):  # The answer may arrive before `tell` returns.
        own_two.tell("add", [4096], GREEDY, "unknown to rank 0", 0)
    assert_lost(engine, own_two, "rank 1 of 2 failed: InvalidInput: token id 4096", engine.step)


@pytest.mark.parametrize(
    ("stage", "arguments", "says"),
    [
        ("02", ["--tensor-parallel", "3"], "3 ranks cannot share this model: its num_heads is 4"),
        ("02", ["--tensor-parallel", "0"], "at least 2 ranks, not 0"),
        ("02", ["--tensor-parallel", "2", "--device", "cuda:1"], "give the device as cuda"),
        ("02", ["--tensor-parallel", "3", "--device", "cuda"], "3 ranks need a GPU each, and torch sees 2 CUDA"),
        ("02", ["--tensor-parallel", "2", "--demo"], "--prompt or --serve"),
        ("07", ["--tensor-parallel", "2"], "--num-draft-tokens"),  # a number by measured times differs among ranks
        ("08", ["--tensor-parallel", "2"], "in stage 08 each worker has one process: .* with stages 01 to 07"),
    ],
)
def test_impossible_numbers_of_ranks_and_devices_are_refused(monkeypatch, stage, arguments, says):
    if "cuda" in "".join(arguments):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(ValueError, match=says):
        build_engine(stage_folder(stage), load_engine(stage), parse(*arguments))
    assert not dist.is_initialized()


# ---- The command line ----


@posix
def test_all_ranks_end_with_a_first_one_that_is_killed():
    options = "--device cpu --max-tokens 3000 --ignore-eos --tensor-parallel 2 --prompt".split()
    command = [sys.executable, str(ROOT / "02_kv_cache" / "main.py"), *options, STORY]
    main = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert main.stdout.read(1)
    main.kill()
    # Rank 1 writes to the same stderr: `communicate` returns only when both have ended.
    _, errors = main.communicate(timeout=15)
    assert len(errors.splitlines()) == 2 and "\nranks=2 (" in errors, errors

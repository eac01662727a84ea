"""A worker on several ranks: each rank transfers its part of a page, and all ranks take the same decisions."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
import torch

from common.distributed import ranked
from common.distributed.ranked import OnAllRanks, RankedTransfer
from common.loader import shard
from common.loader.shard import Shard
from common.sampling import SamplingParams
from common.serving.scoring import Scoring, ScoringParams
from common.stages import load_engine, load_stage_module
from tests.helpers.thread_ranks import Threads

CPU = torch.device("cpu")


@pytest.fixture
def ranks(monkeypatch) -> Threads:
    threads = Threads(2)
    for module in (ranked, shard):
        monkeypatch.setattr(module, "dist", threads)
    return threads


def test_a_transfer_is_done_or_has_failed_on_all_ranks_alike(ranks):
    answers = [[True, True, True, True], [False, False, True, ConnectionError("the sender has gone")]]
    parts = [SimpleNamespace(done=Mock(side_effect=one)) for one in answers]  # of a call after the other
    transfers = [RankedTransfer(part, Shard(rank, 2), CPU) for rank, part in enumerate(parts)]

    def done(rank: int) -> bool | str:
        try:
            return transfers[rank].done()
        except ConnectionError as error:
            return str(error)

    assert [ranks.run(done) for _ in range(3)] == [[False, False], [False, False], [True, True]]
    assert ranks.run(done) == ["another rank's part has failed", "the sender has gone"]
    parts[0].final, parts[1].final = True, False
    assert ranks.run(lambda rank: transfers[rank].final) == [False, False], "bytes may still arrive on one of them"


def test_rank_0_forwards_its_mail_and_its_turns(loaded):
    """In order and before rank 0 acts on them, and then the tokens that the other ranks must have sampled."""
    engine, messages, transports, worker = (
        load_stage_module("08", name) for name in ("engine", "messages", "kv_transport", "worker")
    )
    ranks = MagicMock()  # records the commands of rank 0
    alone = worker.Worker(engine.WorkerEngine(loaded, kv_memory="8M", num_draft_tokens=0), transports.LocalTransport())
    worker = OnAllRanks(alone, ranks)
    order = messages.Order("a#0", [5, 6, 7], [], SamplingParams(max_tokens=2, ignore_eos=True), 0, 2, False, None)
    worker.read(messages.Mail(1, [order], []))
    gains = []
    while not gains or not gains[-1].finished:
        gains += worker.turn(heartbeat=False).gains
    told = [call.args for call in ranks.tell.call_args_list]
    assert [words[:2] for words in told] == [("call", "read"), *[("call", "turn"), ("agree", "gains")] * 2]
    assert [words[2] for words in told if words[0] == "agree"] == [[gain[:3]] for gain in gains]
    assert ranks.in_step.return_value.__exit__.call_count == 3, "a turn of one rank alone would wait for ever"


@pytest.mark.ray
def test_workers_of_two_ranks_generate_the_tokens_of_one_process(two_nodes, loaded):
    """Four processes under Ray: prefill and decode, on two ranks each."""
    options = {"ray_address": two_nodes, "kv_memory": "16M", "max_running": 8, "num_draft_tokens": 0}
    prompts = ["The capital of France is", [*range(300, 420)], "Once upon a time"]
    params = [
        SamplingParams(max_tokens=8, ignore_eos=True),
        SamplingParams(max_tokens=12, ignore_eos=True),
        SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3),
    ]
    expected = load_engine("06")(loaded, kv_memory="16M").generate(prompts, params)
    engine = load_engine("08")(replace(loaded, model=None), workers="ray", tensor_parallel=2, **options)
    alone, scoring = Scoring(load_engine("06")(loaded, kv_memory="16M")), Scoring(engine)
    try:
        assert "of 2 ranks" in engine.startup_notes
        completions = engine.generate(prompts, params)
        assert [one.token_ids for one in completions] == [one.token_ids for one in expected]
        assert engine.handoffs == 3 and engine.lost == 0
        both = [one.add(prompts[1], ScoringParams(logprobs=1)) for one in (alone, scoring)]
        while not all(one.finished for one in both):
            alone.step()
            scoring.step()
        for whole, parted in zip(both[0].logprobs[1:], both[1].logprobs[1:], strict=True):
            assert whole.logprob == pytest.approx(parted.logprob, abs=1e-3) and whole.top[0][0] == parted.top[0][0]
    finally:
        engine.close()

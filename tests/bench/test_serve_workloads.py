"""When the load generator sends, and what: arrivals and workloads, without a server."""

import asyncio
import statistics

import pytest

from common.bench.arrivals import closed_loop, open_loop, poisson_arrivals
from common.bench.conversations import NAMES, Workload
from common.bench.metrics import RequestRecord
from common.bench.workloads import corpus_jobs, mixed_length_jobs
from common.loader import find_checkpoint, load_tokenizer

# ---- Arrivals ----


def test_poisson_arrivals_are_seeded_and_keep_their_rate():
    arrivals = poisson_arrivals(20_000, rate=4.0, seed=1)
    assert arrivals == poisson_arrivals(20_000, rate=4.0, seed=1) != poisson_arrivals(20_000, rate=4.0, seed=2)
    gaps = [later - earlier for earlier, later in zip([0.0, *arrivals], arrivals, strict=False)]
    assert min(gaps) >= 0 and statistics.mean(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 4, rel=0.05), "as the gaps of a Poisson process are"
    halved = poisson_arrivals(20_000, rate=8.0, seed=1)
    assert halved == pytest.approx([moment / 2 for moment in arrivals])


def test_a_closed_loop_waits_for_answers_and_an_open_one_does_not():
    """No time passes here but that of the event loop: how many are under way does not depend on the machine."""
    open_now, most = 0, 0

    async def serve(piece: int) -> list[RequestRecord]:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.02)
        open_now -= 1
        return [RequestRecord(start=float(piece)), RequestRecord(start=float(piece))]

    result = asyncio.run(closed_loop(range(7), 3, serve))
    assert most == 3 and sorted(record.start for record in result.records) == sorted([*range(7)] * 2)
    most = 0
    result = asyncio.run(open_loop(range(7), [0.0] * 6 + [0.05], serve))
    assert most >= 6 and len(result.records) == 14 and result.seconds >= 0.95 * 0.07


# ---- Workloads ----


def test_workloads_are_seeded_text_of_the_asked_lengths():
    for name in NAMES:
        work = Workload(name, prompt_tokens=40, output_tokens=20, turns=3)
        conversations = work.conversations(12, seed=1)
        assert conversations == work.conversations(12, seed=1) != work.conversations(12, seed=2)
        jobs = [job for turns in conversations for job in turns]
        assert len(jobs) == 12 and all(isinstance(job.prompt, str) and not job.ignore_eos for job in jobs)
        lengths = [len(job.prompt.split()) for job in jobs]
        if name == "mixed":
            assert 16 <= min(lengths) < max(lengths) <= 40 and min(job.max_tokens for job in jobs) >= 16
        elif name != "corpus":
            assert set(lengths) == {40} and {job.max_tokens for job in jobs} == {20}
        assert name in work.describe()
    assert [len(turns) for turns in Workload("multi-turn", turns=3).conversations(7, 0)] == [3, 3, 3]


def test_shared_prefixes_are_shared_and_the_rest_is_not():
    work = Workload("shared-prefix", prompt_tokens=100, shared_percent=75)
    prompts = [job.prompt.split() for [job] in work.conversations(6, 0)]
    assert len({tuple(prompt[:75]) for prompt in prompts}) == 1
    assert len({tuple(prompt[75:80]) for prompt in prompts}) == 6
    ids = Workload("shared-prefix", prompt_tokens=8, shared_percent=100, token_ids=True, vocab_size=9)
    assert len({tuple(job.prompt) for [job] in ids.conversations(3, 0)}) == 1


@pytest.mark.parametrize("token_ids", [False, True])
def test_runs_are_equally_long_and_begin_with_other_words(token_ids):
    for name in ("mixed", "fixed", "shared-prefix"):
        work = Workload(name, prompt_tokens=40, token_ids=token_ids)
        runs = [[job for [job] in work.conversations(9, 0, run)] for run in range(3)]
        for jobs in zip(*runs, strict=True):
            prompts = [job.prompt if token_ids else job.prompt.split() for job in jobs]
            assert len({len(prompt) for prompt in prompts}) == len({job.max_tokens for job in jobs}) == 1
            assert len({prompt[0] for prompt in prompts}) == 3


def test_workloads_are_those_of_the_other_benchmarks():
    tokenizer = load_tokenizer(find_checkpoint(None, with_weights=True))
    corpus = Workload("corpus", output_tokens=50, ignore_eos=True)
    ours = [job for [job] in corpus.conversations(20, 7)]
    assert ours == corpus_jobs(tokenizer, 20, seed="7/0", most_tokens=50, chat=False)
    assert ours != [job for [job] in corpus.conversations(20, 7, run=1)]
    mixed = Workload("mixed", ignore_eos=True, token_ids=True, vocab_size=4096)
    assert [job for [job] in mixed.conversations(64, 0)] == mixed_length_jobs(64, 4096, seed=0)

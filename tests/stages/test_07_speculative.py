"""What stage 07 promises beyond the contract: whatever the draft, the output is the target's, and drafts pay."""

import itertools
import random
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common import pass_times
from common.loader.draft import load_draft_model
from common.pass_times import Costs, PassTimes
from common.stages import load_stage_module
from tests.helpers.scheduler_machine import PagedMachine, machine_test, make_request, read, write

adaptive_module, drafter_module, scheduler_module, speculation_module = (
    load_stage_module("07", name) for name in ("adaptive_speculation", "drafter", "scheduler", "speculation")
)


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 3), st.integers(0, 3))
def test_lookup_finds_the_last_occurrence_of_the_longest_run(tokens, shortest, more):
    index = drafter_module.NgramIndex(shortest, shortest + more)
    for length in range(1, len(tokens) + 1):
        text, wanted = tokens[:length], 0  # The index holds all tokens but the last.
        for n in range(shortest + more, shortest - 1, -1):
            ends = [end for end in range(n, length) if text[end - n : end] == text[-n:]]
            if ends:
                wanted = ends[-1]
                break
        assert index.find(text[-1:]) == wanted


def test_a_draft_model_of_another_vocabulary_is_refused(loaded):
    with pytest.raises(ValueError, match="another vocabulary"):
        load_draft_model("draft", replace(loaded, config=replace(loaded.config, vocab_size=99)))
    assert load_draft_model("auto", replace(loaded, name="another")) is None, "it has no draft model"


# ---- The scheduler, without a model, but with memories that are written and read ----


class Recorder(drafter_module.DraftModel):
    """A draft model without a model: it writes down what it is given to run, and drafts by chance."""

    def __init__(self, memory: dict, rng: random.Random):
        self.memory, self.rng, self.read_budget, self.context_length = memory, rng, 5, 100

    def _run(self, chunks):
        for chunk in chunks:
            assert 0 < len(chunk.token_ids) <= self.read_budget
            written = chunk.sequence.request.all_token_ids[: chunk.start]
            drafted = chunk.start - len(written)
            written += [] if not drafted else self.open[chunk.sequence].token_ids[:drafted]
            read(self.memory, chunk.sequence.page_table, written)
            write(self.memory, chunk.sequence.page_table, written + chunk.token_ids, chunk.start)
        return torch.zeros(sum(chunk.completes for chunk in chunks), 1)

    def _draft_one(self, chunks, hidden):
        assert len(chunks) == len(hidden)
        for chunk in chunks:
            chunk.draft.token_ids.append(self.rng.randrange(2))

    def draft(self, chunks):
        self.open = {chunk.sequence: chunk.draft for chunk in chunks}
        super().draft(chunks)


class SpeculationMachine(PagedMachine):
    """Draft tokens are written and read as well. The draft's memory is another one, behind the same page table."""

    def __init__(self):
        super().__init__(scheduler_module.Scheduler(4, 9, 8, 2, speculation_module.Speculation(3)))
        self.rng, self.draft_memory = random.Random(0), {}
        self.drafter = Recorder(self.draft_memory, self.rng)
        self.scheduler.schedule = partial(self.scheduler.schedule, self.drafter)

    def run(self, chunks):
        self.drafter.draft(chunks)
        super().run(chunks)

    def text(self, chunk):
        request, draft = chunk.sequence.request, chunk.draft.token_ids
        assert len(draft) == chunk.room and (chunk.completes or not draft), "what is charged is run"
        assert len(request.token_ids) + len(draft) < request.max_tokens
        return super().text(chunk) + draft

    def gain(self, chunk):
        """Append the first draft tokens, any number of them, and one more."""
        chunk.draft.accepted = self.rng.randint(0, len(chunk.draft.token_ids))
        for token in [*chunk.draft.token_ids[: chunk.draft.accepted], self.rng.randrange(2)]:
            if not chunk.sequence.request.finished:
                chunk.sequence.request.append(token)


TestSpeculation = machine_test(SpeculationMachine, 120, 40)


@pytest.mark.parametrize("count", [0, 8])
def test_prompts_and_pages_are_charged_for_drafts_that_exist(count):
    """Eight prompts beside 32 decodes; nothing occurs twice, so that lookup finds nothing."""
    scheduler = scheduler_module.Scheduler(40, 256, 2000, 4, speculation_module.Speculation(count))
    tokens, drafter, steps = itertools.count(), drafter_module.PromptLookup(), 0
    for kind, number, length in (("decode", 32, 6), ("prompt", 8, 600)):
        requests = [make_request(f"{kind} {n}", list(itertools.islice(tokens, length)), 200) for n in range(number)]
        for request in requests:
            scheduler.add(request)
        while not all(request.token_ids for request in requests):
            chunks = scheduler.schedule(drafter)
            for request in [chunk.sequence.request for chunk in chunks if chunk.completes]:
                request.append(next(tokens))
            scheduler.count_computed(chunks)
            steps += 1
    assert steps == 1 + 22
    assert all(len(one.page_table.pages) == -(-one.computed // 4) for one in scheduler.running.values())


# ---- How many tokens are drafted ----


def costs(per_pass: float, per_token: float, draft: float = 0.0):
    """Return times of passes of both models, by which draft tokens pay or not, whatever this machine is."""
    target = PassTimes({1: per_pass + per_token, 1000: per_pass + 1000 * per_token})
    return Costs(target, PassTimes({1: draft, 1000: draft}))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.floats(0.01, 1), st.floats(0, 0.5), st.floats(0, 0.5))
def test_no_equal_number_for_all_is_better(rates, per_pass, per_token, draft):
    """Tokens a second with the chosen numbers, against none, and for equal requests, nearly, against every number."""

    def tokens_per_second(counts):
        return sum(rate**i for rate, k in zip(rates, counts, strict=True) for i in range(k + 1)) / price.step(counts)

    price = costs(per_pass, per_token, draft)
    chosen = tokens_per_second(adaptive_module.best_counts(rates, price))
    assert chosen >= tokens_per_second([0] * len(rates)) * (1 - 1e-6)
    others = range(1, 9) if len(set(rates)) == 1 else []
    little = adaptive_module.MIN_GAIN**2  # Gains this small need not be taken.
    assert all(chosen * little >= tokens_per_second([k] * len(rates)) * (1 - 1e-6) for k in others)


def test_what_was_learned_is_forgotten():
    """So what has slowed steps down, or was never accepted, is tried again."""

    def steps(number: int, times: float, counts: list[int]) -> None:
        """Steps that take so many times as long as the costs say."""
        for _ in range(number):
            adaptive.record_step_time(times * known.step(counts), counts)

    known = costs(1.0, 0.02, draft=0.05)
    adaptive = adaptive_module.AdaptiveSpeculation(known)
    new = [make_request(name, [1]) for name in "ab"]  # in place of sequences
    usual, none = adaptive.counts(new), [0, 0]
    steps(60, 3, usual)
    assert usual[0] > 0 and adaptive.counts(new) == none
    steps(3000, 1, none)
    assert adaptive.counts(new) == usual
    steps(60, 2, none)
    assert adaptive.slowness[False] > 1.8, "steps without draft tokens were slow for a while"
    steps(3000, 1, usual)
    assert adaptive.slowness[False] == pytest.approx(1.0, abs=0.05) and adaptive.counts(new) == usual
    acceptance = adaptive_module.Acceptance()
    for judged, rate in ((1, 0.05), (0, 0.7)):
        for _ in range(500):
            acceptance.learn(judged, 0)
        assert acceptance.rate(0.7) == pytest.approx(rate, abs=0.2)


@pytest.mark.parametrize(("per_token", "largest"), [(1e-6, 512), (0.101 / 11, 16), (1.0, 2)])
def test_the_fastest_of_several_short_passes_counts_and_long_ones_are_not_measured(monkeypatch, per_token, largest):
    """Those lie on the line through the two longest measured ones, which are not neighbours like 10 and 11."""
    model, now, runs = torch.nn.Module(), [0.0], Counter()

    def decode_pass(model, cache, size):
        def run():
            now[0] += per_token * size * {0: 3.0, 1: 1.0}.get(runs[size], 1.5)  # the first of a size is slower
            runs[size] += 1

        return run

    monkeypatch.setattr(pass_times, "decode_pass", decode_pass)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    times = pass_times.pass_times(model, None)
    assert times.sizes[-1] == largest and times.sizes[-1] > 1.3 * times.sizes[-2]
    assert times(1000) == pytest.approx(1000 * per_token)
    assert runs[largest] == (6 if largest == 512 else 2), "a long one is measured once, behind its first"
    assert pass_times.pass_times(model, None) is times, "measured once"

"""What stage 07 promises beyond the contract: whatever the draft, the output is the target's."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from common.sampling import SamplingParams
from common.stages import load_stage_module
from tests.helpers.engine_options import GREEDY, endless
from tests.helpers.scheduler_machine import SchedulerMachine, make_request

drafter_module, engine_module, scheduler_module, speculation_module, verification_module = (
    load_stage_module("07", name) for name in ("drafter", "engine", "scheduler", "speculation", "verification")
)
Engine, Draft, Row = engine_module.Engine, verification_module.Draft, verification_module.Row
PAGE_BYTES = 16 * (8192 + 1024)  # K and V of 16 tokens, of the bundled target and of its draft, in float32


# ---- Tokens, whatever the draft ----

DRAFTERS = [{"num_draft_tokens": k, "draft": draft} for draft in ("draft", "lookup") for k in (1, 4, 8)]
each_drafter = pytest.mark.parametrize("options", DRAFTERS, ids=lambda o: f"{o['draft']} {o['num_draft_tokens']}")


@each_drafter
def test_greedy_tokens_are_those_of_transformers(loaded, prompts, expected, options):
    engine = Engine(loaded, **options)
    assert [request.token_ids for request in engine.generate(prompts, GREEDY)] == expected
    stats = engine.stats()
    assert 0 < stats["accepted_tokens"] < stats["draft_tokens"] and stats["drafts"] <= stats["draft_tokens"]
    engine.check()


@pytest.fixture(scope="module")
def endings(loaded, prompts) -> tuple[list, list[SamplingParams], list]:
    """Prompts, parameters that end answers in every way, and the answers without draft tokens."""
    plain, chosen = Engine(loaded, num_draft_tokens=0), [prompts[i] for i in (0, 3, 7, -1, -1, -1, -2)]
    [full] = plain.generate([prompts[-1]], endless(60))
    each = [SamplingParams(max_tokens=n) for n in (2, 5, 40)]
    each += [endless(60, stop=full.text[30:37]), endless(60, stop_token_ids=[full.token_ids[11]])]
    each += [endless(60, stop=[full.text[20:23]], include_stop_str_in_output=True), SamplingParams(max_tokens=40)]
    return chosen, each, plain.generate(chosen, each)


@each_drafter
def test_ends_in_the_middle_of_an_accepted_run(loaded, endings, options):
    """Stop strings, stop ids, the end of the sequence and max_tokens end where they end without draft tokens."""
    chosen, each, ended = endings
    for with_drafts, without in zip(Engine(loaded, **options).generate(chosen, each), ended, strict=True):
        assert with_drafts.token_ids == without.token_ids and with_drafts.text == without.text
        for name in ("finish_reason", "stop_reason"):
            assert getattr(with_drafts, name) == getattr(without, name)


SAMPLINGS = [
    endless(20, temperature=1.0, seed=1, logprobs=2),
    endless(20, repetition_penalty=1.4, logprobs=0),
    endless(20, temperature=0.8, top_p=0.9, seed=3, frequency_penalty=0.7, logprobs=5),
]


@pytest.fixture(scope="module")
def sampled(loaded, prompts) -> list:
    """Answers without draft tokens."""
    return Engine(loaded, num_draft_tokens=0).generate(prompts[:3], SAMPLINGS)


@each_drafter
def test_seeds_penalties_and_logprobs(loaded, prompts, sampled, options):
    answers = Engine(loaded, **options).generate(prompts[:3], SAMPLINGS)
    for with_drafts, without in zip(answers, sampled, strict=True):
        assert with_drafts.token_ids == without.token_ids
        for ours, theirs in zip(with_drafts.logprobs, without.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)


def test_a_pool_that_is_too_small_changes_no_token(loaded, prompts):
    """Preempted, evicted, hit again, in both models' pools; and the same backwards, with the last prompts cached."""
    short, params = [prompt[:60] for prompt in prompts[:12]] * 2, endless(40)
    roomy = Engine(loaded, num_draft_tokens=0).generate(short, params)
    engine = Engine(loaded, kv_memory=30 * PAGE_BYTES, num_draft_tokens=4)
    for order in (1, -1):
        completions = engine.generate(short[::order], params)
        assert [completion.token_ids for completion in completions] == [one.token_ids for one in roomy][::order]
        engine.check()
    assert engine.stats()["preemptions"] > 0 and engine.stats()["prefix_tokens_hit"] > 0


def test_one_pass_for_different_numbers_of_draft_tokens_and_a_prompt(loaded, prompts):
    engine = Engine(loaded, num_draft_tokens=4)
    requests = [engine.add(prompts[0], endless(40)), engine.add(prompts[1], endless(3))]
    engine.step()
    requests.append(engine.add(prompts[2], endless(4)))
    engine.step()
    works = [(work.phase, work.tokens) for work in engine.trace[-1].works]
    assert works == [("decode", 1 + 4), ("decode", 1 + 1), ("prefill", len(prompts[2]))]  # one is enough for the second
    for request in requests:
        engine.abort(request.request_id)


# ---- Drafters ----


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 3), st.integers(0, 3))
def test_lookup_finds_the_last_occurrence_of_the_longest_run(tokens, shortest, more):
    index = drafter_module.NgramIndex(shortest, shortest + more)
    for length in range(1, len(tokens) + 1):
        text, wanted = tokens[:length], 0
        for n in range(shortest + more, shortest - 1, -1):
            ends = [end for end in range(n, length) if text[end - n : end] == text[-n:]]
            if ends:
                wanted = ends[-1]
                break
        assert index.find(text) == wanted


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
            for place, slot in enumerate(chunk.sequence.page_table.slot_mapping(0, chunk.start)):
                assert self.memory[slot] == tuple(written[: place + 1]), "the draft reads another request's K and V"
            text = written + chunk.token_ids
            slots = chunk.sequence.page_table.slot_mapping(chunk.start, len(text))
            self.memory.update({slot: tuple(text[: chunk.start + i + 1]) for i, slot in enumerate(slots)})
        return torch.zeros(sum(chunk.completes for chunk in chunks), 1)

    def _draft_one(self, chunks, hidden):
        assert len(chunks) == len(hidden)
        for chunk in chunks:
            chunk.draft.token_ids.append(self.rng.randrange(2))

    def draft(self, chunks):
        self.open = {chunk.sequence: chunk.draft for chunk in chunks}
        super().draft(chunks)


class SpeculationMachine(SchedulerMachine):
    """As the one of stage 06: requests over two tokens in a pool that is too small, and a memory of what was written,
    for each place the text up to there. The target's and the draft's are separate, and have the same page table."""

    def __init__(self):
        super().__init__(scheduler_module.Scheduler(4, 9, 8, 2, speculation_module.Speculation(3)))
        self.rng, self.memory, self.draft_memory = random.Random(0), {}, {}
        self.drafter = Recorder(self.draft_memory, self.rng)

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10), output=st.integers(1, 6))
    def add(self, prompt, output):
        self.submit(prompt, output)

    def schedule(self):
        chunks = super().schedule()
        assert sum(len(chunk.token_ids) + chunk.room for chunk in chunks) <= 9
        return chunks

    def run(self, chunks):
        self.drafter.draft(chunks)
        texts = {}
        for chunk in chunks:
            assert len(chunk.draft.token_ids) <= chunk.room
            request, end = chunk.sequence.request, chunk.start + len(chunk.token_ids)
            assert end == chunk.sequence.computed and (chunk.completes or not chunk.draft.token_ids)
            assert len(request.token_ids) + len(chunk.draft.token_ids) < request.max_tokens
            texts[chunk] = request.all_token_ids[:end] + chunk.draft.token_ids
            slots = chunk.sequence.page_table.slot_mapping(chunk.start, len(texts[chunk]))
            self.memory.update({slot: tuple(texts[chunk][: p + 1]) for p, slot in enumerate(slots, chunk.start)})
        for chunk, text in texts.items():  # all is written before anything is read
            for place, slot in enumerate(chunk.sequence.page_table.slot_mapping(0, len(text))):
                assert self.memory[slot] == tuple(text[: place + 1]), "another request's K and V, or a rejected token's"
        for chunk in chunks:
            if chunk.completes:
                self.accept(chunk)

    def accept(self, chunk):
        """Append the first draft tokens, any number of them, and one more."""
        chunk.draft.accepted = self.rng.randint(0, len(chunk.draft.token_ids))
        for token in [*chunk.draft.token_ids[: chunk.draft.accepted], self.rng.randrange(2)]:
            if not chunk.sequence.request.finished:
                chunk.sequence.request.append(token)

    def commit(self, chunks):
        self.scheduler.count_accepted(chunks)
        self.scheduler.cache_full_pages()
        super().commit(chunks)


TestSpeculation = SpeculationMachine.TestCase
TestSpeculation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_draft_tokens_leave_something_of_every_step_to_prompts():
    """Two requests decode, with draft tokens that would fill the budget, and a prompt arrives."""
    scheduler = scheduler_module.Scheduler(4, 8, 100, 4, speculation_module.Speculation(3))
    requests = [make_request(name, [1, 2], max_tokens=90) for name in "ab"]
    for request in requests:
        scheduler.add(request)
    late = make_request("late", [3] * 12)
    for step in range(12):
        chunks = scheduler.schedule()
        rooms = [chunk.room for chunk in chunks]
        assert sum(len(chunk.token_ids) + chunk.room for chunk in chunks) <= 8
        for chunk in chunks:
            if chunk.completes:
                chunk.sequence.request.append(5)
        scheduler.count_accepted(chunks)
        if step == 1:
            assert rooms == [3, 3], "without prompts, draft tokens get all that is left"
            scheduler.add(late)
        if step > 1 and not late.token_ids:
            assert late.request_id in {chunk.sequence.request.request_id for chunk in chunks}
    assert late.token_ids


def test_the_draft_reads_a_cached_beginning_once(loaded):
    """What it has read for one request is there for the next, like the target's."""
    engine, read = Engine(loaded, num_draft_tokens=2), []
    model = engine.drafter.model
    handle = model.register_forward_pre_hook(lambda module, inputs: read.append(len(inputs[0])))
    try:
        for expected in (200, 200 - 192 + 16):
            read.clear()
            engine.generate([[11 + i % 97 for i in range(200)]], endless(4))
            assert read[0] <= expected + 1
    finally:
        handle.remove()


def test_a_draft_model_of_another_vocabulary_is_refused(loaded):
    with pytest.raises(ValueError, match="another vocabulary"):
        drafter_module.load_draft_model("draft", replace(loaded, config=replace(loaded.config, vocab_size=99)))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Engine(loaded, draft="./nowhere")
    assert drafter_module.load_draft_model("auto", replace(loaded, name="another")) is None, "it has no draft model"
    with pytest.raises(ValueError, match="from 0 to 8"):
        Engine(loaded, num_draft_tokens=9)


# ---- Steps ----


def test_a_bad_drafter_is_not_asked_for_long(loaded, prompts, monkeypatch):
    """Where draft tokens would pay if they were right: the times are given, and not those of this machine."""
    module = load_stage_module("07", "adaptive_speculation")
    costs = module.Costs(module.PassTimes({1: 1.0, 1000: 20.0}), module.PassTimes({1: 0.05, 1000: 0.05}))
    monkeypatch.setattr(engine_module, "measured_costs", lambda *_: costs)
    monkeypatch.setattr(module.AdaptiveSpeculation, "record_step_time", lambda *_: None)
    engine = Engine(loaded)
    engine.drafter._draft_one = lambda chunks, hidden: [chunk.draft.token_ids.append(5) for chunk in chunks]
    engine.generate(prompts[:4], endless(60))
    drafted = [step.counters["drafted"] for step in engine.trace]
    assert sum(drafted[:10]) > 0 and sum(drafted[30:]) < sum(drafted[:10])


def test_what_was_accepted_arrives_in_one_step(loaded, prompts):
    engine, steps = Engine(loaded, num_draft_tokens=4), 0
    request = engine.add(prompts[-1], GREEDY)
    while engine.has_unfinished:
        before = len(request.token_ids)
        engine.step()
        record, gained = engine.trace[-1], len(request.token_ids) - before
        assert gained == (record.counters["accepted"] + 1 if not request.finished else gained) and gained >= 1
        steps += 1
    assert steps < len(request.token_ids)

"""What the state machines of stages 04 to 08 share: a scheduler without a model, under arrivals, steps and aborts."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.request import Request
from common.sampling import SamplingParams
from common.token_budget import PROMPTS, ChunkPrice, pace

PRICES = st.builds(ChunkPrice, st.sampled_from([0.0, 0.05, 1.0]), st.sampled_from([0.0, 0.5]))
MAX_STEPS = 2000  # more than the tokens of all requests: in each step the oldest request gains one


def make_request(name: str, token_ids: list[int], max_tokens: int = 8) -> Request:
    return Request(name, token_ids, SamplingParams(max_tokens=max_tokens), None, frozenset(), max_tokens)


def machine_test(machine: type[RuleBasedStateMachine], examples: int, steps: int = 50) -> type:
    """Return the test that runs a machine: so many examples, each of so many steps."""
    test = machine.TestCase
    test.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    return test


def assert_paid(scheduler, price: ChunkPrice, chunks: list) -> None:
    """Assert that a step costs at most its budget, or its decodes and an eighth of the budget, and one token more."""
    tokens = [len(chunk.token_ids) + getattr(chunk, "room", 0) for chunk in chunks]  # and draft tokens, from 07 on
    assert sum(tokens) <= scheduler.token_budget
    paid = sum(price(chunk.start, count) for chunk, count in zip(chunks, tokens, strict=True))
    each = [price(chunk.start, 1) for chunk in chunks]
    assert paid <= max(scheduler.token_budget, sum(each) + scheduler.token_budget * PROMPTS) + max(each, default=0)


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, steps and aborts; after each, the books balance.

    A stage passes its scheduler, and extends what it changes of a step. Prompts have two tokens: many begin alike.
    """

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler = scheduler
        self.open: dict[str, Request] = {}  # by request id: ids sort in order of arrival
        self.count = 0

    @initialize(price=PRICES)
    def set_price(self, price):
        self.price = price
        pace(self.scheduler, price)

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14), output=st.integers(1, 9))
    def add(self, prompt, output):
        self.submit(prompt, output)

    def submit(self, token_ids: list[int], max_tokens: int) -> None:
        request = make_request(f"{self.count:04}", token_ids, max_tokens)
        self.scheduler.add(request)
        self.open[request.request_id] = request
        self.count += 1

    @rule(choice=st.integers(0, 100))
    def abort(self, choice):
        if self.open:
            self.scheduler.remove(self.open.pop(sorted(self.open)[choice % len(self.open)]))

    @rule(ends=st.sampled_from(["", "", "", "before it runs", "before commit"]))
    def step(self, ends=""):
        """ends: where a step is interrupted. What it was to do is then done by the next ones."""
        chunks = self.schedule()
        if ends != "before it runs":
            self.run(chunks)
        if not ends:
            self.commit(chunks)

    def schedule(self) -> list:
        """Return the chunks of the next step."""
        chunks = self.scheduler.schedule()
        ran = [chunk.sequence.request.request_id for chunk in chunks]
        assert len(ran) == len(set(ran)) and set(ran) <= self.scheduler.running.keys()
        self.assert_progress(ran)
        assert self.open or not ran
        self.assert_order()
        assert_paid(self.scheduler, self.price, chunks)
        return chunks

    def assert_progress(self, ran: list[str]) -> None:
        assert not self.open or min(self.open) in ran, "the oldest request runs in every step"

    def run(self, chunks: list) -> None:
        """Without pages there is nothing to write."""

    def gain(self, chunk) -> None:
        """Append what a completed chunk brings."""
        chunk.sequence.request.append(11)

    def commit(self, chunks: list) -> None:
        """Append a token to each request that has run to its end, and remove those that this ends."""
        for chunk in chunks:
            if chunk.completes:
                self.gain(chunk)
        self.scheduler.count_computed(chunks)
        for request in [chunk.sequence.request for chunk in chunks]:
            if request.finished:
                self.scheduler.remove(self.open.pop(request.request_id))

    def assert_order(self) -> None:
        waiting = [request.request_id for request in self.scheduler.waiting]
        assert [*self.scheduler.running, *waiting] == sorted(self.open), "first come, first served, preempted or not"

    @invariant()
    def the_books_balance(self):
        self.scheduler.check()
        self.assert_order()

    def teardown(self):
        for _ in range(MAX_STEPS):
            if not self.open:
                break
            self.step()
        assert not self.open, "a request starves"


def write(memory, page_table, tokens: list[int], start: int, mark: Callable = tuple) -> None:
    """Leave in the slots of tokens from `start` on a mark of the text up to each."""
    for place, slot in enumerate(page_table.slot_mapping(start, len(tokens)), start):
        memory[slot] = mark(tokens[: place + 1])


def read(memory, page_table, tokens: list[int], mark: Callable = tuple) -> None:
    """Assert that the slots of all these tokens have the marks of this text."""
    for place, slot in enumerate(page_table.slot_mapping(0, len(tokens))):
        assert memory[slot] == mark(tokens[: place + 1]), "another text's K and V"


class PagedMachine(SchedulerMachine):
    """A pool that is always too small, and a memory that is written and read.

    K and V of a token depend on all tokens up to it. So the memory holds, for each place, the text up to there: what is
    read must be what was written for exactly this beginning.
    """

    def __init__(self, scheduler):
        super().__init__(scheduler)
        self.allocator = scheduler.allocator
        self.memory: dict[int, tuple[int, ...]] = {}  # by slot

    def submit(self, token_ids, max_tokens):
        if len(token_ids) + max_tokens > self.allocator.num_pages * self.allocator.page_size:
            with pytest.raises(ValueError, match=rf"\b{self.allocator.num_pages}\b"):
                super().submit(token_ids, max_tokens)
        else:
            super().submit(token_ids, max_tokens)

    def schedule(self):
        decoding = {sequence for sequence in self.scheduler.running.values() if sequence.remaining == 1}
        chunks = super().schedule()
        late = [chunk.sequence not in decoding for chunk in chunks]  # A preempted request may lack one token, too.
        assert late == sorted(late), "decodes come first"
        return chunks

    def run(self, chunks):
        texts = {chunk: self.text(chunk) for chunk in chunks}
        for chunk, text in texts.items():
            assert len(chunk.token_ids) >= 1
            write(self.memory, chunk.sequence.page_table, text, chunk.start)
        for chunk, text in texts.items():  # everything is written before anything is read, as in a layer of the model
            read(self.memory, chunk.sequence.page_table, text)

    def text(self, chunk) -> list[int]:
        """Return the tokens of a sequence up to the end of its chunk."""
        return chunk.sequence.request.all_token_ids[: chunk.start + len(chunk.token_ids)]

    def gain(self, chunk):
        chunk.sequence.request.append(len(chunk.sequence.request.token_ids) % 2)

    def teardown(self):
        super().teardown()
        available = getattr(self.allocator, "available", len(self.allocator.free))  # from 06 on, those in a tree, too
        assert available == self.allocator.num_pages, "without requests, every page is available"

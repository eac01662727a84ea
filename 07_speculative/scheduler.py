"""The scheduler decides, before every step, which requests run in it and how many of their tokens.

Static batching forms a group and runs it until its slowest member ends. Here the scheduler forms a new group for every
step (iteration-level scheduling; Orca, Yu et al., 2022): a request joins as soon as there is room, and leaves the
moment it ends. And a long prompt runs in pieces (chunked prefill; Sarathi-Serve, Agrawal et al., 2024), so that it
does not hold up requests that decode.

Both follow from one view of a request: some of its tokens have been run, the rest remain. Before the first step all of
the prompt remains, in decode a single token does. How many of them a step takes is the scheduler's choice, and in
float32 it makes no difference to the result.

A request gets pages for the tokens it has, and one more page when the last one is full. More
requests fit in than if each had a slot for the longest it may become. The price is that memory may run out in the
middle: then the youngest request gives its pages back, returns to the front of the queue, and later runs again what it
had run (preemption by recomputation). Its tokens are known, so that is a prefill, and fast; and as the sampler depends
on nothing but seed and position, in float32 it goes on with the tokens it would have had.

A page that is full goes into the tree of cached pages, and stays there when its request has ended. A new
request takes over from the tree the pages that it begins with, and computes only the rest. Two requests that begin
alike and arrive together both compute their beginning, and the later one takes over the first one's pages and gives its
own back (they converge on one copy): no request waits for another's prefill. Only full pages are shared, so that no
request writes to a page of another, and the last token is always computed, since its logits are wanted.

NEW in 07: a request that decodes may run some draft tokens behind its newest one, if there are tokens left in the
budget and pages to put them in. They are charged like any others. Those that are rejected have left K and V behind, at
places beyond the sequence's end: attention does not look there, and the tokens that follow overwrite them.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from common.request import Request
from common.token_budget import check_token_budget

from .page_table import PageAllocator, PageTable
from .speculation import MAX_DRAFT_TOKENS, Speculation
from .verification import Draft


@dataclass(eq=False)
class Sequence:
    """A running request: K and V of its first `computed` tokens are in its pages."""

    request: Request
    page_table: PageTable
    computed: int = 0
    draft_computed: int = 0  # NEW in 07: like `computed`, of the draft model, if there is one

    @property
    def remaining(self) -> int:
        """Return how many tokens to run before the next is sampled: a whole prompt at first, one in decode."""
        return self.request.num_tokens - self.computed


@dataclass(eq=False)
class Chunk:
    """What one step runs of one sequence: its tokens from number `start` on.

    completes: no token of the sequence remains behind it, so the logits of its last token give the next one.
    NEW in 07: draft: tokens that may come next, at most `room` of them, which run behind it.
    """

    sequence: Sequence
    start: int
    token_ids: list[int]
    completes: bool
    room: int = 0
    draft: Draft = field(default_factory=Draft)

    @property
    def phase(self) -> str:
        """Return "decode" if this is the newest output token alone, else "prefill"."""
        decodes = self.completes and len(self.token_ids) == 1 and self.sequence.request.token_ids
        return "decode" if decodes else "prefill"

    @property
    def num_tokens(self) -> int:
        """NEW in 07: Return how many tokens go through the model."""
        return len(self.token_ids) + len(self.draft.token_ids)


class Scheduler:
    """First come, first served; at most `max_running` requests and `token_budget` tokens in a step.

    No request starves: the budget has a token for each request that decodes and one for a prompt that runs, so in every
    step these get their tokens, and the oldest prompt advances. Preemption takes pages from the youngest
    only, so the oldest always advances: alone it fits in, since `add` refuses any request that does not.
    """

    def __init__(self, max_running: int, token_budget: int, num_pages: int, page_size: int, speculation: Speculation):
        check_token_budget(max_running, token_budget)
        self.max_running, self.token_budget = max_running, token_budget
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Sequence] = {}  # by request id, in order of arrival
        self.allocator = PageAllocator(num_pages, page_size)
        self.tiers = None  # None: pages that find no room are dropped (common/kv_tiers.py)
        self.speculation = speculation
        self.preemptions = 0  # since the start
        self.tokens_asked = self.tokens_hit = 0  # since the start: prompt tokens, and those found in the tree

    def add(self, request: Request) -> None:
        """Queue a request behind the others; raise InvalidInput if the pool cannot hold its prompt and max_tokens."""
        self.allocator.check_fits(len(request.prompt_token_ids) + request.max_tokens)
        self.waiting.append(request)

    def schedule(self, drafter: Any = None) -> list[Chunk]:
        """Return what the next step runs, [] if there is nothing to do: first the decodes, then pieces of prompts.

        NEW in 07: drafter: of drafter.py; it knows how many draft tokens there will be. None: as many as are wanted.
        """
        # Decodes come first: each is one token, and a client is reading along.
        chunks = []
        for sequence in list(self.running.values()):
            # Skip a sequence that an older one has preempted in this step.
            if sequence.remaining == 1 and self._extend(sequence):
                chunks.append(self._chunk(sequence, 1))
        budget = self.token_budget - len(chunks)
        # NEW in 07: each request has its token before any has draft tokens. While prompts run or may be admitted, draft
        # tokens get at most half of the rest.
        prompts_wait = len(chunks) < len(self.running) or (self.waiting and len(self.running) < self.max_running)
        for_drafts = budget // 2 if prompts_wait else budget
        counts = self.speculation.counts([chunk.sequence for chunk in chunks])
        for chunk, count in zip(chunks, counts, strict=True):
            request = chunk.sequence.request
            # A pass gives one token besides the accepted ones, so the answer's last token needs no draft.
            chunk.room = min(count, for_drafts, request.max_tokens - len(request.token_ids) - 1)
        if drafter:
            drafter.prepare(chunks)  # lowers `room`: what cannot be drafted must not take budget from prompts
        for chunk in chunks:
            chunk.room = self._make_room(chunk.sequence, min(chunk.room, for_drafts))
            for_drafts, budget = for_drafts - chunk.room, budget - chunk.room
        # What is left of the budget goes to prompts: those that have begun, in order of arrival, then those that wait.
        prefilling = deque(sequence for sequence in self.running.values() if sequence.remaining > 1)
        while budget > 0 and (sequence := prefilling.popleft() if prefilling else self._admit()):
            chunks.append(self._chunk(sequence, budget))
            budget -= len(chunks[-1].token_ids)
        return chunks

    def count_computed(self, chunks: list[Chunk]) -> None:
        """Count the tokens of a step as computed. Not before it is committed: a step may be interrupted."""
        for chunk in chunks:
            sequence = chunk.sequence
            # NEW in 07: draft tokens that became output count as computed; the newest token is yet to be run.
            sequence.computed = min(chunk.start + chunk.num_tokens, sequence.request.num_tokens - 1)
            sequence.draft_computed = min(max(sequence.draft_computed, chunk.draft.computed), sequence.computed)
            # Draft tokens behind the answer's end are neither accepted nor judged, like those behind a rejected one.
            gained = sequence.request.num_tokens - chunk.start - len(chunk.token_ids)
            drafted, chunk.draft.accepted = len(chunk.draft.token_ids), min(chunk.draft.accepted, gained)
            self.speculation.learn(sequence, drafted, min(drafted, gained), chunk.draft.accepted)
        self.cache_full_pages()  # now, before a request that has ended releases them

    def cache_full_pages(self) -> None:
        """Put each full page that has been computed into the tree, or take over the copy that is there."""
        size, tree = self.allocator.page_size, self.allocator.tree
        for sequence in self.running.values():
            table = sequence.page_table
            while (end := (len(table.path) + 1) * size) <= sequence.computed:
                tokens = sequence.request.token_ids_between(end - size, end)
                page = table.pages[len(table.path)]
                node = tree.follow(table.path, tokens) or tree.insert(table.path, tokens, page)
                if node.page != page:  # NEW in 07: the draft model may have computed only the page given up
                    sequence.draft_computed = min(sequence.draft_computed, end - size)
                self.allocator.adopt(table, node)

    def remove(self, request: Request) -> None:
        """Forget a request that ends, whether it runs or waits, and free its pages."""
        if sequence := self.running.pop(request.request_id, None):
            self.allocator.release(sequence.page_table)
        else:
            self.waiting.remove(request)

    def check(self) -> None:
        """Raise AssertionError if a page is lost or owned twice, if `computed` is not below num_tokens, or if a
        table has fewer pages than `computed` needs or more than num_tokens and draft tokens need.
        """
        self.allocator.check([sequence.page_table for sequence in self.running.values()])
        for sequence in self.running.values():
            assert 0 <= sequence.computed < sequence.request.num_tokens
            room, page_size = sequence.page_table.capacity, self.allocator.page_size
            assert sequence.computed <= room < sequence.request.num_tokens + MAX_DRAFT_TOKENS + page_size
            assert sequence.draft_computed <= sequence.computed

    def _admit(self) -> Sequence | None:
        """Admit the oldest waiting request; None if there is none or no room for it."""
        if not self.waiting or len(self.running) == self.max_running:
            return None
        if self.tiers and not self.tiers.ready(self.waiting[0], wait=not self.running):
            return None
        if (sequence := self._allocate(self.waiting[0])) is not None:
            request = self.waiting.popleft()
            self.running[request.request_id] = sequence
            if not request.preempted:  # a preempted request may find its own pages: these are no hits
                self.tokens_asked += request.num_tokens
                self.tokens_hit += sequence.computed
                request.cached_tokens = sequence.computed
            if self.tiers:
                self.tiers.restore(sequence)
        return sequence

    def _allocate(self, request: Request) -> Sequence | None:
        """Take pages for all tokens of a request; None unless a page for each of the others stays free."""
        # First `_reuse`, then pages for the rest. If there is no room, release what was found.
        table = PageTable(self.allocator.page_size)
        sequence = Sequence(request, table)
        self._reuse(sequence)
        lacking = self.allocator.pages_for(request.num_tokens) - len(table.pages)
        if lacking + len(self.running) > self.allocator.available:
            self.allocator.release(table)
            return None
        self.allocator.extend(table, request.num_tokens)
        return sequence

    def _reuse(self, sequence: Sequence) -> None:
        """Take over what other requests have computed, page by page, up to the first that is not there."""
        size, table = self.allocator.page_size, sequence.page_table
        while sequence.remaining > size:  # At least the last token must be computed: its logits are wanted.
            tokens = sequence.request.token_ids_between(sequence.computed, sequence.computed + size)
            node = self.allocator.tree.follow(table.path, tokens)
            if node is None:
                break
            self.allocator.adopt(table, node)
            sequence.computed += size

    def _extend(self, sequence: Sequence) -> bool:
        """Give a sequence room for its next token, preempting the youngest while no page is free. Return
        False if the sequence itself is preempted.
        """
        while sequence.request.request_id in self.running:
            if self.allocator.extend(sequence.page_table, sequence.computed + 1):
                return True
            self.preempt()
        return False

    def _make_room(self, sequence: Sequence, most: int) -> int:
        """NEW in 07: Take pages for draft tokens if any are free; return for how many there is room."""
        while most and not self.allocator.extend(sequence.page_table, sequence.request.num_tokens + most):
            most -= 1
        return most

    def preempt(self) -> None:
        """Take the pages of the youngest, and put it at the front of the queue: it came before the rest."""
        _, sequence = self.running.popitem()
        self.allocator.release(sequence.page_table)
        self.waiting.appendleft(sequence.request)
        sequence.request.preempted = True  # what it finds when it returns is no hit
        self.preemptions += 1

    def _chunk(self, sequence: Sequence, most: int) -> Chunk:
        """Take the next tokens, at most `most`. They count as computed once the step is committed."""
        start, end = sequence.computed, sequence.request.num_tokens
        stop = min(end, start + most)
        return Chunk(sequence, start, sequence.request.token_ids_between(start, stop), completes=stop == end)

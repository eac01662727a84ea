"""NEW in 04: the scheduler decides, before every step, which requests run in it and how many of their tokens.

Static batching forms a group and runs it until its slowest member ends. Here the scheduler forms a new group for every
step (iteration-level scheduling; Orca, Yu et al., 2022): a request joins as soon as there is room, and leaves the
moment it ends. And a long prompt runs in pieces (chunked prefill; Sarathi-Serve, Agrawal et al., 2024), so that it
does not hold up requests that decode.

Both follow from one view of a request: some of its tokens have been run, the rest remain. Before the first step all of
the prompt remains, in decode a single token does. How many of them a step takes is the scheduler's choice, and in
float32 it makes no difference to the result.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from common.request import Request
from common.token_budget import check_token_budget


@dataclass(eq=False)
class Sequence:
    """A running request: K and V of its first `computed` tokens are in its slot."""

    request: Request
    slot: int
    computed: int = 0

    @property
    def remaining(self) -> int:
        """Return how many tokens to run before the next is sampled: a whole prompt at first, one in decode."""
        return self.request.num_tokens - self.computed


@dataclass(eq=False)
class Chunk:
    """What one step runs of one sequence: its tokens from number `start` on.

    completes: no token of the sequence remains behind it, so the logits of its last token give the next one.
    """

    sequence: Sequence
    start: int
    token_ids: list[int]
    completes: bool

    @property
    def phase(self) -> str:
        """Return "decode" if this is the newest output token alone, else "prefill"."""
        decodes = self.completes and len(self.token_ids) == 1 and self.sequence.request.token_ids
        return "decode" if decodes else "prefill"


class Scheduler:
    """First come, first served; at most `max_running` requests and `token_budget` tokens in a step.

    No request starves: the budget has a token for each request that decodes and one for a prompt that runs, so in every
    step these get their tokens, and the oldest prompt advances.
    """

    def __init__(self, max_running: int, token_budget: int):
        check_token_budget(max_running, token_budget)
        self.max_running, self.token_budget = max_running, token_budget
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Sequence] = {}  # by request id, in order of arrival
        self.free_slots = list(range(max_running))  # a heap: lowest slot first, so used slots lie close together

    def add(self, request: Request) -> None:
        """Queue a request behind those that wait."""
        self.waiting.append(request)

    def schedule(self) -> list[Chunk]:
        """Return what the next step runs, [] if there is nothing to do: first the decodes, then pieces of prompts."""
        # Decodes come first: each is one token, and a client is reading along.
        chunks = [self._chunk(sequence, 1) for sequence in self.running.values() if sequence.remaining == 1]
        budget = self.token_budget - len(chunks)
        # What is left of the budget goes to prompts: those that have begun, in order of arrival, then those that wait.
        prefilling = deque(sequence for sequence in self.running.values() if sequence.remaining > 1)
        while budget > 0 and (sequence := prefilling.popleft() if prefilling else self._admit()):
            chunks.append(self._chunk(sequence, budget))
            budget -= len(chunks[-1].token_ids)
        # Neighbouring slots are neighbours in the batch, so that one call of attention can take them.
        return sorted(chunks, key=lambda chunk: (len(chunk.token_ids) > 1, chunk.sequence.slot))

    def count_computed(self, chunks: list[Chunk]) -> None:
        """Count the tokens of a step as computed. Not before it is committed: a step may be interrupted."""
        for chunk in chunks:
            chunk.sequence.computed = chunk.start + len(chunk.token_ids)

    def remove(self, request: Request) -> None:
        """Forget a request that ends, whether it runs or waits, and free its slot."""
        if sequence := self.running.pop(request.request_id, None):
            heapq.heappush(self.free_slots, sequence.slot)
        else:
            self.waiting.remove(request)

    def check(self) -> None:
        """Raise AssertionError unless every slot is free or has one owner, and holds no more than its tokens."""
        owned = [sequence.slot for sequence in self.running.values()]
        assert sorted(owned + self.free_slots) == list(range(self.max_running)), (owned, self.free_slots)
        assert all(0 <= sequence.computed < sequence.request.num_tokens for sequence in self.running.values())

    def _admit(self) -> Sequence | None:
        """Admit the oldest waiting request; None if there is none or no room for it."""
        if not self.waiting or not self.free_slots:
            return None
        request = self.waiting.popleft()
        self.running[request.request_id] = sequence = Sequence(request, heapq.heappop(self.free_slots))
        return sequence

    def _chunk(self, sequence: Sequence, most: int) -> Chunk:
        """Take the next tokens, at most `most`. They count as computed once the step is committed."""
        start, end = sequence.computed, sequence.request.num_tokens
        stop = min(end, start + most)
        return Chunk(sequence, start, sequence.request.token_ids_between(start, stop), completes=stop == end)

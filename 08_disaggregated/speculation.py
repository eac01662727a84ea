"""How many draft tokens each request gets in a step, and counts of what has become of them.

Here the number is fixed (07a). adaptive_speculation.py chooses it for each request and each step (07b).
"""

from typing import Any

from common.errors import InvalidInput

MAX_DRAFT_TOKENS = 8  # for one request in a step


class Speculation:
    """The same number of draft tokens for every request. Sequences are keys here: what they hold does not matter."""

    def __init__(self, count: int):
        if not 0 <= count <= MAX_DRAFT_TOKENS:
            raise InvalidInput(f"num_draft_tokens must be from 0 to {MAX_DRAFT_TOKENS}, not {count}")
        self.count = count
        self.drafts = self.draft_tokens = self.accepted = 0  # since the start: drafts, their tokens, the accepted ones

    def counts(self, sequences: list[Any]) -> list[int]:
        """Return how many draft tokens each of the sequences that decode may have in the next step."""
        return [self.count] * len(sequences)

    def learn(self, sequence: Any, drafted: int, judged: int, accepted: int) -> None:
        """Note how many draft tokens of one sequence were run in one step, how many were judged, and accepted."""
        self.drafts += drafted > 0
        self.draft_tokens += drafted
        self.accepted += accepted

    def record_step_time(self, seconds: float, counts: list[int]) -> None:
        """Note how long a step took in which the requests had these numbers of draft tokens, and no prompt was read."""

    def stats(self) -> dict[str, int]:
        """Return how many drafts and draft tokens were run, and how many tokens accepted, so far."""
        return {"drafts": self.drafts, "draft_tokens": self.draft_tokens, "accepted_tokens": self.accepted}

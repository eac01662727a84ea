"""NEW in 07: how many tokens to propose for each request, from what speculation costs and how often it is right.

A pass over B requests that decode takes T(B) seconds, T(n) being a pass over n tokens. With k proposals for each it
takes T(B (1 + k)), and before it k passes of the drafter, each t(B). If a proposal is accepted with probability a,
independently of the others, such a step brings

    1 + a + a^2 + ... + a^k        tokens for each request (Leviathan et al., 2023, equation 1)

because the i-th proposal counts only if all before it do. The k with the most tokens a second is the best one. While T
grows slowly with n (memory-bound: the weights are read once, however many tokens use them) proposals are cheap; in a
large batch each token costs its share of arithmetic, and the best k is 0.

T and t are measured when the engine starts, a is estimated for each request from its own recent proposals.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass

MOST = 8  # proposals for one request in a step
FORGET = 0.9  # with each step, of what was seen: what is ten steps old counts a third
FORGET_IDLE = 0.99  # with each step without proposals: who was given up is tried again, but not soon
WEIGHT = 4.0  # so many proposals' worth of the usual rate stand beside what a request has shown itself
FIRST_GUESS = 0.7  # of the acceptance rate, before anything has been seen


@dataclass
class Acceptance:
    """How often proposals have been accepted, of those that were looked at: behind a rejected one nobody looks."""

    accepted: float = 0.0
    judged: float = 0.0

    def learn(self, proposed: int, accepted: int, forget: float = FORGET) -> None:
        forget = forget if proposed else max(forget, FORGET_IDLE)
        self.accepted = forget * self.accepted + accepted
        self.judged = forget * self.judged + min(accepted + 1, proposed)

    def rate(self, usual: float) -> float:
        """Between 0 and 1; the usual one where there is no evidence, or only an old one."""
        return (self.accepted + WEIGHT * usual) / (self.judged + WEIGHT)


class PassTimes:
    """Seconds of a pass over n tokens, on straight lines between the sizes that were measured."""

    def __init__(self, seconds: dict[int, float]):
        self.sizes, self.seconds = list(seconds), list(seconds.values())

    def __call__(self, tokens: int) -> float:
        right = next((i for i, size in enumerate(self.sizes) if size >= tokens), len(self.sizes) - 1)
        right = max(right, 1)
        (a, b), (x, y) = self.sizes[right - 1 : right + 1], self.seconds[right - 1 : right + 1]
        return x + (y - x) * (tokens - a) / (b - a)


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass over n tokens. draft: None for a drafter that costs next to nothing."""

    target: PassTimes
    draft: PassTimes | None


def best_count(acceptance: float, batch: int, costs: Costs) -> int:
    """The number of proposals, 0 to MOST, that brings a batch of so many such requests the most tokens a second."""

    def tokens_per_second(k: int) -> float:
        tokens = sum(acceptance**i for i in range(k + 1))
        seconds = costs.target(batch * (1 + k)) + k * (costs.draft(batch) if costs.draft else 0.0)
        return tokens / seconds

    return max(range(MOST + 1), key=tokens_per_second)


class Speculation:
    """Always the same number of proposals, and counts of what has become of them."""

    def __init__(self, count: int):
        if not 0 <= count <= MOST:
            raise ValueError(f"num_draft_tokens must be from 0 to {MOST}, not {count}")
        self.count = count
        self.drafts = self.proposed = self.accepted = 0  # ever: passes with proposals, proposals, those accepted

    def counts(self, acceptances: List[Acceptance]) -> list[int]:
        """How many proposals to make for each of the requests that decode in the next step."""
        return [self.count] * len(acceptances)

    def learn(self, acceptance: Acceptance, proposed: int, accepted: int) -> None:
        """What has become of the proposals for one request in one step."""
        self.drafts += proposed > 0
        self.proposed += proposed
        self.accepted += accepted


class AdaptiveSpeculation(Speculation):
    """For each request the number that is best for its own acceptance rate, in a batch of the present size."""

    def __init__(self, costs: Costs):
        super().__init__(MOST)
        self.costs = costs
        self.usual = Acceptance()  # of all requests
        self._best: dict[tuple[int, int], int] = {}  # (acceptance rate in percent, batch size) -> proposals

    def counts(self, acceptances: List[Acceptance]) -> list[int]:
        usual, batch, counts = self.usual.rate(FIRST_GUESS), len(acceptances), []
        for acceptance in acceptances:
            key = round(100 * acceptance.rate(usual)), batch
            if key not in self._best:
                self._best[key] = best_count(key[0] / 100, batch, self.costs)
            counts.append(self._best[key])
        return counts

    def learn(self, acceptance: Acceptance, proposed: int, accepted: int) -> None:
        super().learn(acceptance, proposed, accepted)
        acceptance.learn(proposed, accepted)
        self.usual.learn(proposed, accepted, forget=0.999)

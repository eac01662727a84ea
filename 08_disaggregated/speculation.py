"""NEW in 07: how many tokens to propose for each request, from what speculation costs and how often it is right.

A pass over n tokens takes the target T(n) seconds, and the drafter t(n). B requests that decode take T(B) without
proposals. With k proposals for each they take T(B (1 + k)) and before it k passes of the drafter, each t(B). If a
proposal is accepted with probability a, independently of the others, such a step brings

    1 + a + a^2 + ... + a^k        tokens for each request (Leviathan et al., 2023, equation 1)

because the i-th proposal counts only if all before it do. The k with the most tokens a second is the best one. While T
grows slowly with n (memory-bound: the weights are read once, however many tokens use them) proposals are cheap; in a
large batch each token costs its share of arithmetic, and the best k is 0. Requests differ in a, so they differ in k.

T and t are measured when the engine starts, a is estimated for each request from its own recent proposals. What the
formula leaves out (texts that the drafter has to read, caches that two models share, bookkeeping) is learned as a
factor, from how long steps take with proposals and without.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass

MOST = 8  # proposals for one request in a step
FORGET = 0.9  # with each step, of what was seen: what is ten steps old counts a third
FORGET_IDLE = 0.99  # with each step without proposals: who was given up is tried again, but not soon
WEIGHT = 4.0  # so many proposals' worth of the usual rate stand beside what a request has shown itself
FIRST_GUESS = 0.7  # of the acceptance rate, before anything has been seen
FIRST_SLOWNESS = 1.3  # of steps with proposals over their passes alone, before any has been timed
LEAST_GAIN = 1.05  # what proposals have to promise: estimates err, and what they bring by chance is soon lost again


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

    def drafting(self, requests: int) -> float:
        return self.draft(requests) if self.draft else 0.0

    def step(self, counts: List[int]) -> float:
        """Seconds of a step in which the requests have so many proposals."""
        passes = (sum(count >= depth for count in counts) for depth in range(1, max(counts) + 1))
        return self.target(len(counts) + sum(counts)) + sum(map(self.drafting, passes))


def best_counts(rates: List[float], costs: Costs, factor: float = 1.0) -> list[int]:
    """For requests with these acceptance rates, the numbers of proposals that bring the most tokens a second; none if
    that is hardly more than without.

    factor: how many times longer than by `costs` a step with proposals takes.
    """
    batch = len(rates)
    plain = costs.target(batch)
    # A proposal takes a place in the pass, and must bring what this time would bring without it.
    least = LEAST_GAIN * factor * (costs.target(2 * batch) - plain) / plain
    reach = [how_deep(rate, least) for rate in rates]
    tokens, places, drafting = float(batch), batch, 0.0
    best, depth_of_best = LEAST_GAIN * batch / plain, 0
    for depth in range(1, MOST + 1):
        going = [rate for rate, most in zip(rates, reach, strict=True) if most >= depth]
        if not going:
            break
        tokens += sum(rate**depth for rate in going)
        places += len(going)
        drafting += costs.drafting(len(going))
        tokens_per_second = tokens / (factor * (costs.target(places) + drafting))
        if tokens_per_second > best:
            best, depth_of_best = tokens_per_second, depth
    return [min(depth_of_best, most) for most in reach]


def how_deep(rate: float, least: float) -> int:
    """How many proposals are each accepted, with all before it, with more than this probability."""
    depth, share = 0, rate
    while depth < MOST and share > least:
        depth, share = depth + 1, share * rate
    return depth


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

    def took(self, seconds: float, counts: List[int]) -> None:
        """How long a step has taken in which the requests had so many proposals, and no prompt was run."""

    def stats(self) -> dict[str, int]:
        return {"drafts": self.drafts, "draft_tokens": self.proposed, "accepted_tokens": self.accepted}


class AdaptiveSpeculation(Speculation):
    """For each request the number that is best for its own acceptance rate, in a batch of the present size."""

    def __init__(self, costs: Costs):
        super().__init__(MOST)
        self.costs = costs
        self.usual = Acceptance()  # of all requests
        # Of steps without and with proposals: real seconds / those by `costs`.
        self.slowness = {False: 1.0, True: FIRST_SLOWNESS}

    def counts(self, acceptances: List[Acceptance]) -> list[int]:
        usual = self.usual.rate(FIRST_GUESS)
        rates = [acceptance.rate(usual) for acceptance in acceptances]
        return best_counts(rates, self.costs, self.slowness[True] / self.slowness[False]) if rates else []

    def learn(self, acceptance: Acceptance, proposed: int, accepted: int) -> None:
        super().learn(acceptance, proposed, accepted)
        acceptance.learn(proposed, accepted)
        self.usual.learn(proposed, accepted, forget=0.999)

    def took(self, seconds: float, counts: List[int]) -> None:
        kind, slowness = any(counts), self.slowness
        times = min(seconds / self.costs.step(counts), 4.0)  # whatever disturbed a step for longer was no part of it
        slowness[kind] += 0.05 * (times - slowness[kind])
        if not kind:  # nothing is learned about the other kind; it is tried again when it has been forgotten
            slowness[True] += 0.002 * (slowness[False] - slowness[True])

"""NEW in 07: how many draft tokens pay for each request, from what speculation costs and how often it is right.

A pass over n tokens takes the target T(n) seconds, and the draft model t(n). B requests that decode take T(B) without
draft tokens. With k draft tokens for each they take T(B (1 + k)), and before it k passes of the draft model, each t(B).
If a draft token is accepted with probability a, independently of the others, such a step brings

    1 + a + a^2 + ... + a^k        tokens for each request (Leviathan et al., 2023, equation 1)

because the i-th draft token counts only if all before it do. The k with the most tokens per second is best. While
T grows slowly with n (memory-bound: the weights are read once, however many tokens use them) draft tokens are cheap; in
a large batch each token costs its share of arithmetic, and the best k is 0. Requests differ in a, so they differ in k.

T and t are measured when the engine starts (common/pass_times.py), a is estimated for each request from its own recent
draft tokens. What the formula leaves out (caches that two models share, bookkeeping) is learned as a factor, from how
long steps take with draft tokens and without. Steps in which either model reads a prompt are left out: the time for
that reading does not come again with the next draft.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy

from common.pass_times import Costs

from .speculation import MAX_DRAFT_TOKENS, Speculation

KEEP = 0.9  # Each step multiplies older counts by this: after ten steps a third of them is left.
KEEP_IDLE = 0.99  # The same for a step without draft tokens: a request that was given up is tried again, but not soon.
PRIOR_WEIGHT = 4.0  # weight of the average rate, in observed draft tokens
FIRST_RATE = 0.7  # acceptance rate, before anything has been seen
FIRST_SLOWNESS = 1.3  # seconds of a step with draft tokens / seconds of its passes, before any step was timed
MIN_GAIN = 1.05  # Draft tokens must promise this gain: estimates err, and what chance brings is soon lost again.


@dataclass
class Acceptance:
    """How many draft tokens were accepted, of those that were judged: the ones behind a rejected token are not."""

    accepted: float = 0.0
    judged: float = 0.0

    def learn(self, judged: int, accepted: int, keep: float = KEEP) -> None:
        """Note that `accepted` of `judged` tokens were accepted; what was seen before counts `keep` times."""
        keep = keep if judged else max(keep, KEEP_IDLE)
        self.accepted = keep * self.accepted + accepted
        self.judged = keep * self.judged + judged

    def rate(self, average: float) -> float:
        """Return the acceptance rate, between 0 and 1; close to `average` while there is little recent evidence."""
        return (self.accepted + PRIOR_WEIGHT * average) / (self.judged + PRIOR_WEIGHT)


def best_counts(rates: list[float], costs: Costs, factor: float = 1.0) -> list[int]:
    """Return the numbers of draft tokens that bring the most tokens per second, given the requests' acceptance rates.

    All are 0 if drafts hardly pay. factor: how many times as long as by `costs` a step with draft tokens takes.
    """
    batch = len(rates)
    plain = costs.target(batch)
    # A draft token lengthens the pass, and must bring at least what that time would bring without draft tokens.
    least = MIN_GAIN * factor * (costs.target(2 * batch) - plain) / plain
    accepted = numpy.array(rates)[:, None] ** numpy.arange(1, MAX_DRAFT_TOKENS + 1)  # probabilities, [B, depth]
    pays = accepted > least
    tokens, places, drafting = float(batch), batch, 0.0
    best, depth_of_best = MIN_GAIN * batch / plain, 0
    each = zip((accepted * pays).sum(0).tolist(), pays.sum(0).tolist(), strict=True)
    for depth, (more, going) in enumerate(each, 1):
        if not going:
            break
        tokens += more
        places += going
        drafting += costs.drafting(going)
        tokens_per_second = tokens / (factor * (costs.target(places) + drafting))
        if tokens_per_second > best:
            best, depth_of_best = tokens_per_second, depth
    return pays[:, :depth_of_best].sum(1).tolist()


class AdaptiveSpeculation(Speculation):
    """For each request the number that is best for its own acceptance rate, in a batch of the present size."""

    def __init__(self, costs: Costs):
        super().__init__(MAX_DRAFT_TOKENS)
        self.costs = costs
        # An entry for each running sequence: it disappears when its sequence does.
        self.acceptances: weakref.WeakKeyDictionary[Any, Acceptance] = weakref.WeakKeyDictionary()
        self.average = Acceptance()  # of all requests
        # Real seconds / seconds by `costs`, for steps without draft tokens (False) and with some (True).
        self.slowness = {False: 1.0, True: FIRST_SLOWNESS}

    def counts(self, sequences: list[Any]) -> list[int]:
        """Return for each sequence the number of draft tokens that brings the most tokens per second in this batch."""
        average = self.average.rate(FIRST_RATE)
        seen = [self.acceptances.get(sequence) for sequence in sequences]
        rates = [acceptance.rate(average) if acceptance else average for acceptance in seen]
        return best_counts(rates, self.costs, self.slowness[True] / self.slowness[False]) if rates else []

    def learn(self, sequence: Any, drafted: int, judged: int, accepted: int) -> None:
        """Note what became of a draft, in the totals, for its sequence and in the average of all."""
        super().learn(sequence, drafted, judged, accepted)
        self.acceptances.setdefault(sequence, Acceptance()).learn(judged, accepted)
        self.average.learn(judged, accepted, keep=0.999)

    def record_step_time(self, seconds: float, counts: list[int]) -> None:
        """Learn how many times as long as by `costs` steps of this kind take, with draft tokens or without."""
        kind, slowness = any(counts), self.slowness
        times = min(seconds / self.costs.step(counts), 4.0)  # A longer time is a disturbance, not the step's own.
        slowness[kind] += 0.05 * (times - slowness[kind])
        # What is known of the other kind fades meanwhile, so that it is tried again.
        slowness[not kind] += 0.002 * (slowness[kind] - slowness[not kind])

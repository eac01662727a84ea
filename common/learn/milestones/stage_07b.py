"""Stage 07b: how many draft tokens pay for each request."""

from . import milestone
from .stage_under_test import expect, expect_rows, make_request


@milestone(
    "Acceptance.learn, Acceptance.rate, best_counts, useful_depth, "
    "AdaptiveSpeculation.counts, AdaptiveSpeculation.learn",
    expected="Each request gets the number of draft tokens with the most tokens a second, given its acceptance rate.",
    hint="(1 + a + ... + a^k) / (T(1 + k) + k t) is the rate of tokens with k draft tokens: take the best k, or 0.",
    second_hint="Behind a rejected token nothing was judged: min(accepted + 1, drafted). rate mixes in the average.",
)
def as_many_as_pay(stage):
    module = stage.adaptive_speculation
    acceptance = module.Acceptance()
    acceptance.learn(4, 2)
    acceptance.learn(4, 4)
    seen = [acceptance.accepted, acceptance.judged, acceptance.rate(0.5)]
    wanted = [0.9 * 2 + 4, 0.9 * 3 + 4, (5.8 + 4 * 0.5) / (6.7 + 4)]
    same = all(abs(one - other) < 1e-9 for one, other in zip(seen, wanted, strict=True))
    expect(same, f"2 of 4 accepted, then 4 of 4: accepted, judged, rate are {seen}, not {wanted}")
    depths = [module.useful_depth(rate, 0.5) for rate in (0.8, 0.5, 0.99)]
    expect_rows("useful_depth(rate, 0.5)", depths, [3, 0, 8], rate=(0.8, 0.5, 0.99))

    def costs(target: dict[int, float], draft: float):
        return module.Costs(module.PassTimes(target), module.PassTimes({1: draft, 512: draft}))

    flat = costs({1: 1.6, 512: 1.6}, 0.15)
    best = [module.best_counts([rate], flat)[0] for rate in (0.8, 0.5, 0.1)]
    expect_rows("best_counts of one request, T = 1.6, t = 0.15", best, [6, 2, 0], rate=(0.8, 0.5, 0.1))
    full = module.best_counts([0.8] * 4, costs({1: 1.0, 512: 512.0}, 0.1))
    expect(full == [0] * 4, f"where each token costs its share no draft token pays: {full}")
    steep = costs({1: 1.0, 101: 6.0}, 0.01)
    mixed = module.best_counts([0.8, 0.05], steep)
    expect(mixed[0] >= 2 and mixed[1] == 0, f"one request at 0.8 and one at 0.05: {mixed}")
    adaptive = module.AdaptiveSpeculation(steep)
    good, bad = (stage.scheduler.Sequence(make_request(name, 3), stage.page_table.PageTable(4)) for name in "AB")
    expect(adaptive.counts([]) == [], "without sequences, `counts` returns an empty list")
    for _ in range(30):
        adaptive.learn(good, 4, 4)
        adaptive.learn(bad, 4, 0)
    mine = adaptive.counts([good, bad])
    expect(mine[0] >= 4 and mine[1] <= 1, f"drafts always accepted, and never: the counts are {mine}")
    expect(adaptive.accepted == 120, f"`learn` must go on counting, as `Speculation.learn` does: {adaptive.accepted}")

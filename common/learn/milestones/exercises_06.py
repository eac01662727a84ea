"""Lesson 06: the checks of its exercises."""

from . import exercise
from .exercises_04 import admitted, expect_bound
from .paged import make_scheduler
from .pictures import rows, tree
from .stage_under_test import endless, expect, expect_tokens


@exercise(
    2,
    hint="The youngest of `unused` may be the parent of pages that stay: without it they could never be found.",
    second_hint="Walk `unused` from its end, reversed(self.unused), to the first node without children.",
)
def the_most_recently_used_goes_first(stage):
    """The most recently used page that has no children goes first; documents asked in turn are found again."""
    cached = stage.prefix_tree.PrefixTree()
    a = cached.insert([], [1], 0)
    b, c = cached.insert([a], [2], 1), cached.insert([], [3], 2)
    for path in ([c], [a, b]):
        cached.release(path)
    picture = tree(cached.root.children)
    order = []
    while cached.unused:
        order.append(cached.evict())
    expect(order == [1, 0, 2], f"pages 2, 1 and 0, the parent of 1, were released, and evicted as {order}", picture)

    documents = stage.prompts(3, 81)
    engine = stage.make_engine(kv_memory=12 * 16 * stage.token_bytes, attention="torch")  # two of them fit
    found = []
    for number in range(9):
        [request] = engine.generate([documents[number % 3]], endless(4))
        engine.check()
        found.append(request.cached_tokens)
        expect_tokens(stage, engine, [request], stage.right_tokens([documents[number % 3]], 4))
    picture = rows({"document": "ABCABCABC", "tokens found": found})
    expect(sum(found) > 3 * 80, f"{sum(found)} tokens were found when 12 pages had to do for three of 6", picture)


@exercise(
    5,
    hint="Look without touching: `follow` counts a user for each page it finds. Walk from `tree.root` by `children`.",
    second_hint="Otherwise it is exercise 3 of lesson 04: the oldest, if it was passed 8 times, else the best.",
)
def what_is_cached_goes_first(stage):
    """The waiting request that finds most in the tree is admitted first, but at most 8 pass another."""
    text = list(range(20, 32))
    waiting = {"B": list(range(40, 52)), "C": [*text[:4], *range(60, 68)], "D": [*text, 1, 2], "E": [*text[:8], 3, 4]}
    scheduler = make_scheduler(stage, pages=40, max_running=1)
    order = admitted(scheduler, [{"A": text}, waiting, {}, {}, {}])
    picture = rows({"request": waiting, "in the tree": [0, 4, 12, 8], "wanted": "DECB", "yours": order[1:]})
    expect(order == [*"ADECB"], f"A has run, and the tree has its tokens; then {', '.join(order[1:])} run", picture)
    steps = [{"A": text}, {"B": waiting["B"], "C": list(range(80, 92)), "0": text}]
    order = admitted(make_scheduler(stage, pages=40, max_running=1), [*steps, *({f"{n}": text} for n in range(1, 40))])
    expect_bound(order[1:], "BC")

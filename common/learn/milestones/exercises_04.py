"""Lesson 04: the check of its exercise."""

from collections.abc import Callable, Iterable

from . import exercise
from .pictures import rows
from .stage_under_test import expect, make_request

MOST_PASSED = 8


def admitted(stage, arriving: Iterable[tuple[str, int]], each_step: Callable[[int], tuple[str, int]], steps: int):
    """Return the names of requests in the order of their admission, one at a time, with one token of output each.

    arriving: names and prompt lengths at the start; each_step: one more before each step, by its number.
    """
    scheduler, order = stage.scheduler.Scheduler(1, 64), []
    for name, tokens in arriving:
        scheduler.add(make_request(name, tokens, 1))
    for number in range(steps):
        scheduler.add(make_request(*each_step(number), 1))
        for chunk in scheduler.schedule():
            order.append(chunk.sequence.request.request_id)
            scheduler.remove(chunk.sequence.request)
        scheduler.check()
    return order


@exercise(
    3,
    expected="The shortest waiting prompt is admitted first, but at most 8 requests that arrived later pass another.",
    hint="`_admit` takes the front of `waiting`. Count for each request how many that stood behind it were admitted.",
    second_hint="The oldest has been passed most often: is it at 8, it is next. Move the next one to the front.",
)
def shortest_first_within_a_bound(stage):
    lengths = {"A": 40, "B": 5, "C": 20, "D": 10, "E": 30, "F": 60}
    *there, last = lengths.items()
    order = admitted(stage, there, lambda number: last if number == 0 else (f"{number}", 63), 6)
    wanted = ["B", "D", "C", "E", "A", "F"]
    picture = rows({"request": lengths, "tokens": lengths.values(), "wanted": wanted, "yours": order})
    expect(order == wanted, f"one prompt runs at a time, in the order {', '.join(order)}", picture)
    order = admitted(stage, [("A", 40), ("B", 50)], lambda number: (f"{number}", 5), 40)
    for place, name in enumerate("AB"):
        passed = order.index(name) - place if name in order else len(order)
        said = f"a prompt of 5 tokens arrives before each step, and {passed} of them pass {name}, which came first"
        expect(passed == MOST_PASSED, f"{said}: {MOST_PASSED} may", rows({"admitted": order[:24]}))

"""Lesson 04: the check of its exercise."""

from typing import Any

from . import exercise
from .pictures import rows
from .stage_under_test import expect, make_request

MOST_PASSED = 8


def admitted(scheduler: Any, steps: list[dict[str, int | list[int]]]) -> list[str]:
    """Return the names of requests in the order of their admission; each ends with the step that runs its prompt.

    steps: the prompts that arrive before each step by the names of their requests, as tokens or how many.
    """
    order = []
    for arriving in steps:
        for name, prompt in arriving.items():
            scheduler.add(make_request(name, prompt, 1))
        for chunk in scheduler.schedule():
            order.append(chunk.sequence.request.request_id)
            if hasattr(scheduler, "cache_full_pages"):
                scheduler.cache_full_pages()
            scheduler.remove(chunk.sequence.request)
        scheduler.check()
    return order


def expect_bound(order: list[str], first: str) -> None:
    """Fail if more than MOST_PASSED requests have passed one of those that came first."""
    for place, name in enumerate(first):
        passed = order.index(name) - place if name in order else len(order)
        said = f"each step brings one that is preferred to {first}: {passed} of them pass {name}"
        expect(passed <= MOST_PASSED, said, rows({"admitted": order[:24]}))


@exercise(
    3,
    hint="`_admit` takes the front of `waiting`. Count for each request how many that stood behind it were admitted.",
    second_hint="The oldest has been passed most often: is it at 8, it is next. Move the next one to the front.",
)
def shortest_first_within_a_bound(stage):
    """The shortest waiting prompt is admitted first, but at most 8 requests that arrived later pass another."""
    lengths = {"A": 40, "B": 5, "C": 20, "D": 10, "E": 30, "F": 60}
    order, wanted = admitted(stage.scheduler.Scheduler(1, 64), [lengths, *[{}] * 5]), ["B", "D", "C", "E", "A", "F"]
    picture = rows({"request": lengths, "tokens": lengths.values(), "wanted": wanted, "yours": order})
    expect(order == wanted, f"one prompt runs at a time, in the order {', '.join(order)}", picture)
    steps = [{"A": 40, "B": 50, "0": 5}, *({f"{number}": 5} for number in range(1, 40))]
    expect_bound(admitted(stage.scheduler.Scheduler(1, 64), steps), "AB")

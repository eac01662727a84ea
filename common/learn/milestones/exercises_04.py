"""Lesson 04: the checks of its exercises."""

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


@exercise(
    5,
    hint="In `schedule`: _admit until it returns None, before you decide in which order the prompts run.",
    second_hint="Of all but the oldest, shortest first, take what half of the budget buys; the others stay in order.",
)
def short_prompts_pass(stage):
    """Prompts that fit whole into half of the budget run before the oldest one, which gets the rest of it."""
    scheduler = stage.scheduler.Scheduler(4, 64)
    lengths = {"A": 300, "B": 10, "C": 20, "D": 100}
    wanted = [
        {"A": 64},
        {"B": 10, "C": 20, "A": 34},
        *[{"A": 62, "B": 1, "C": 1}] * 3,
        {"B": 1, "C": 1, "A": 16, "D": 46},
    ]
    for number, right in enumerate(wanted, 1):
        for name in {1: "A", 2: "BCD"}.get(number, ""):
            scheduler.add(make_request(name, lengths[name], 40))
        chunks = scheduler.schedule()
        mine = {chunk.sequence.request.request_id: len(chunk.token_ids) for chunk in chunks}
        tokens = {
            "wanted": [right.get(name, "·") for name in lengths],
            "yours": [mine.get(name, "·") for name in lengths],
        }
        picture = rows({"request": lengths, "prompt": lengths.values()} | tokens)
        expect(mine == right, f"step {number} of 64 tokens; A came first, B, C and D before step 2", picture)
        for chunk in chunks:
            if chunk.completes:
                chunk.sequence.request.append(7)
        scheduler.check()

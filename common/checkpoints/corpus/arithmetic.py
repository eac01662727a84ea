"""Writes small sums, comparisons and word problems.

There are fewer than 900 problems, so that a small model can learn them all, and one answer sentence for each.
Small operands come up more often: "What is 2+2?" is the prompt that people try first.
"""

from random import Random

from .render import dialogue
from .words import FEMALE, MALE

WORDS = {"+": "plus", "-": "minus", "*": "times"}
GOODS = "apples coins books eggs pears stones shells cards pens stamps plums nuts".split()
GAINS = ("gets {b} more", "finds {b} more", "buys {b} more")
LOSSES = ("gives away {b}", "loses {b}", "sells {b}")


def problem(rng: Random) -> tuple[int, str, int, int]:
    """Left operand, sign, right operand and result."""
    sign = rng.choices("+-*", (5, 3, 3))[0]
    top = 10 if sign == "*" or rng.random() < 0.5 else 20
    a, b = rng.randint(0, top), rng.randint(0, top)
    if sign == "-":
        a, b = max(a, b), min(a, b)
    return a, sign, b, a + b if sign == "+" else a - b if sign == "-" else a * b


def _sum(rng: Random) -> tuple[str, str]:
    a, sign, b, result = problem(rng)
    word = WORDS[sign]
    question = rng.choice(
        (
            f"What is {a}{sign}{b}?",
            f"What is {a} {sign} {b}?",
            f"What is {a} {word} {b}?",
            f"How much is {a} {word} {b}?",
            f"How much is {a} {sign} {b}?",
            f"Calculate {a} {sign} {b}.",
            f"{a}{sign}{b}?",
        )
    )
    return question, f"{a} {sign} {b} is {result}."


def _compare(rng: Random) -> tuple[str, str]:
    a, b = rng.sample(range(100), 2)
    if rng.random() < 0.5:
        return (
            rng.choice((f"Which is larger, {a} or {b}?", f"Which number is larger, {a} or {b}?")),
            f"{max(a, b)} is larger than {min(a, b)}.",
        )
    return (
        rng.choice((f"Which is smaller, {a} or {b}?", f"Which number is smaller, {a} or {b}?")),
        f"{min(a, b)} is smaller than {max(a, b)}.",
    )


def _neighbour(rng: Random) -> tuple[str, str]:
    a = rng.randint(1, 100)
    side, b = rng.choice((("after", a + 1), ("before", a - 1)))
    return (
        rng.choice((f"What number comes {side} {a}?", f"Which number comes {side} {a}?")),
        f"{b} comes {side} {a}.",
    )


def _parity(rng: Random) -> tuple[str, str]:
    a = rng.randint(0, 100)
    return (
        rng.choice((f"Is {a} even or odd?", f"Is the number {a} even or odd?")),
        f"{a} is {'odd' if a % 2 else 'even'}.",
    )


def count(number: int, plural: str) -> str:
    return f"{number} {plural[:-1] if number == 1 else plural}"


def _story(rng: Random) -> tuple[str, str]:
    female = rng.random() < 0.5
    name, good = rng.choice(FEMALE if female else MALE), rng.choice(GOODS)
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    if rng.random() < 0.5:
        change, result = rng.choice(GAINS), a + b
    else:
        a, b = max(a, b), min(a, b)
        change, result = rng.choice(LOSSES), a - b
    pronoun = "she" if female else "he"
    return (
        f"{name} has {count(a, good)} and {change.format(b=b)}. How many {good} does {pronoun} have?",
        f"{name} has {count(result, good)}.",
    )


def exchange(rng: Random) -> tuple[str, str]:
    return rng.choices((_sum, _compare, _neighbour, _parity, _story), (12, 2, 2, 1, 3))[0](rng)


def raw(rng: Random) -> str:
    """Return lines of sums, a table of one number, or answer sentences."""
    form = rng.random()
    if form < 0.4:
        problems = [problem(rng) for _ in range(rng.randint(1, 12))]
        return "\n".join(f"{a} {sign} {b} = {result}" for a, sign, b, result in problems)
    if form < 0.6:
        sign, b = rng.choice("+-*"), rng.randint(0, 10)
        rows = [(a + b if sign == "-" else a) for a in range(11)]
        value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign]
        return "\n".join(f"{a} {sign} {b} = {value(a, b)}" for a in rows)
    return " ".join(exchange(rng)[1] for _ in range(rng.randint(1, 5))) if form < 0.8 else " ".join(_story(rng))


def talk(rng: Random) -> str:
    return dialogue(rng, *(turn for _ in range(rng.choice((1, 1, 2, 3, 4))) for turn in exchange(rng)))

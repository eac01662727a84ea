"""Writes what can be computed: sums, comparisons and word problems; and counting, spelling, repeating and sorting.

There are fewer than 900 sums, so that a small model can learn them all, and one answer sentence for each. Small
operands come up more often: "What is 2+2?" is the prompt that people try first. The lists are certain in every token
and anywhere from 2 to 200 tokens long: requests of known but different lengths are what batching lessons need, and runs
that a draft model predicts well are what speculation needs.
"""

from operator import add, mul, sub
from random import Random
from string import ascii_lowercase

from .facts import TABLES
from .words import FEMALE, FIRST_NAMES, LISTS, MALE, WEIGHTS, WORDS, ask, weighted

SIGNS = {"+": ("plus", add), "-": ("minus", sub), "*": ("times", mul)}


def problem(rng: Random) -> tuple[int, str, int, int]:
    """Return left operand, sign, right operand and result."""
    sign = weighted(rng, WEIGHTS["signs"])
    top = 10 if sign == "*" or rng.random() < 0.5 else 20
    a, b = rng.randint(0, top), rng.randint(0, top)
    if sign == "-":
        a, b = max(a, b), min(a, b)
    return a, sign, b, SIGNS[sign][1](a, b)


def _story(rng: Random) -> tuple[str, str]:
    names, pronoun = (FEMALE, "she") if rng.random() < 0.5 else (MALE, "he")
    name, goods = rng.choice(names), rng.choice(LISTS["goods"])
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    gain = rng.random() < 0.5
    if not gain:
        a, b = max(a, b), min(a, b)
    some, rest = (f"{n} {goods[:-1] if n == 1 else goods}" for n in (a, a + b if gain else a - b))
    wording = "gain" if gain else "loss"
    return ask(rng, wording, name=name, some=some, b=b, goods=goods, pronoun=pronoun, rest=rest)


def arithmetic(rng: Random) -> tuple[str, str]:
    """Return a question about small numbers and its answer."""
    kind = weighted(rng, WEIGHTS["arithmetic"])
    if kind == "story":
        return _story(rng)
    if kind == "sum":
        a, sign, b, result = problem(rng)
        return ask(rng, kind, a=a, sign=sign, b=b, word=SIGNS[sign][0], result=result)
    if kind == "compare":
        a, b = rng.sample(range(100), 2)
        size, first, second = ("larger", max, min) if rng.random() < 0.5 else ("smaller", min, max)
        return ask(rng, kind, a=a, b=b, size=size, first=first(a, b), second=second(a, b))
    if kind == "neighbour":
        a = rng.randint(1, 100)
        side, b = rng.choice((("after", a + 1), ("before", a - 1)))
        return ask(rng, kind, a=a, b=b, side=side)
    a = rng.randint(0, 100)
    return ask(rng, kind, a=a, parity="odd" if a % 2 else "even")


def arithmetic_raw(rng: Random) -> str:
    """Return lines of sums, a table of one number, or answer sentences."""
    form = rng.random()
    if form < 0.4:
        problems = [problem(rng) for _ in range(rng.randint(1, 12))]
        return "\n".join(f"{a} {sign} {b} = {result}" for a, sign, b, result in problems)
    if form < 0.6:
        sign, b = rng.choice("+-*"), rng.randint(0, 10)
        first = b if sign == "-" else 0
        return "\n".join(f"{a} {sign} {b} = {SIGNS[sign][1](a, b)}" for a in range(first, first + 11))
    return " ".join(arithmetic(rng)[1] for _ in range(rng.randint(1, 5))) if form < 0.8 else " ".join(_story(rng))


def joined(items: list) -> str:
    return ", ".join(map(str, items)) + "."


def lists(rng: Random, kind: str = "") -> tuple[str, str]:
    """Ask for a list, of the given kind or any, and return the answer too."""
    kind = kind or weighted(rng, WEIGHTS["lists"])
    if kind == "count":
        step = weighted(rng, {1: 6, 2: 2, 5: 1, 10: 1})
        length = step * rng.randint(2, min(60 // step, 40))
        start = rng.choice((0, 1)) if rng.random() < 0.3 and length < 60 else rng.randint(0, 60 - length)
        numbers = range(start, start + length + 1, step)[:: -1 if rng.random() < 0.3 else 1]
        return ask(rng, f"count by {step}", ends=f"from {numbers[0]} to {numbers[-1]}", items=joined(numbers))
    if kind == "letters":
        a, b = sorted(rng.sample(range(26), 2))
        letters = ascii_lowercase[a : b + 1]
        return f"Write the letters from {letters[0]} to {letters[-1]}.", joined(letters)
    if kind == "named":
        name, table = rng.choice(TABLES["lists"])
        wording, step = ("list", 1) if rng.random() < 0.75 else ("list backwards", -1)
        return ask(rng, wording, name=name, items=joined([row[0] for row in TABLES[table]][::step]))
    if kind == "spell":
        word = rng.choice(WORDS)
        return ask(rng, kind, word=word, spelled="-".join(word))
    if kind == "repeat":
        word, count = rng.choice(WORDS), rng.choice(range(2, 11))
        return ask(rng, kind, word=word, count=LISTS["numbers"][count - 1], repeated=" ".join([word] * count))
    if kind == "reverse":
        items = rng.sample(rng.choice((WORDS, FIRST_NAMES)), rng.randint(2, 12))
        return f"Reverse the list: {joined(items)}", joined(items[::-1])
    numbers = rng.sample(range(61), rng.randint(2, 10))
    falling = rng.random() < 0.25
    rising = "" if not falling and rng.random() < 0.5 else " from smallest to largest"
    order = " from largest to smallest" if falling else rising
    return f"Sort these numbers{order}: {joined(numbers)}", joined(sorted(numbers, reverse=falling))


def lists_raw(rng: Random) -> str:
    """Return the answers alone, one or a few to a document."""
    return "\n".join(lists(rng, rng.choice(("count", "letters", "named")))[1] for _ in range(rng.choice((1, 1, 2, 3))))

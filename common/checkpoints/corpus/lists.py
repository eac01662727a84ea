"""Writes counting, spelling, repeating, reversing and sorting.

These answers are certain in every token and anywhere from 2 to 200 tokens long: requests of known but
different lengths are what batching lessons need, and runs that a draft model predicts well are what
speculation needs.
"""

from random import Random

from .facts import DAYS, MONTHS, PLANETS
from .render import dialogue
from .words import FIRST_NAMES, WORDS

LETTERS = list("abcdefghijklmnopqrstuvwxyz")
COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
NAMED_LISTS = {
    "the months of the year": MONTHS,
    "the days of the week": DAYS,
    "the planets of the solar system": PLANETS,
    "the letters of the alphabet": LETTERS,
}


def joined(items: list) -> str:
    return ", ".join(map(str, items)) + "."


def _count(rng: Random) -> tuple[str, str]:
    step = rng.choices((1, 2, 5, 10), (6, 2, 1, 1))[0]
    terms = rng.randint(2, min(60 // step, 40)) + 1
    start = rng.choice((0, 1)) if rng.random() < 0.3 and step * (terms - 1) < 60 else None
    start = rng.randint(0, 60 - step * (terms - 1)) if start is None else start
    numbers = list(range(start, start + step * terms, step))
    if rng.random() < 0.3:
        numbers.reverse()
    ends = f"from {numbers[0]} to {numbers[-1]}"
    if step == 1:
        return rng.choice((f"Count {ends}.", f"Write the numbers {ends}.")), joined(numbers)
    unit = {2: "two", 5: "five", 10: "ten"}[step]
    return rng.choice((f"Count {ends} in steps of {step}.", f"Count {ends} by {unit}s.")), joined(numbers)


def _letters(rng: Random) -> tuple[str, str]:
    a, b = sorted(rng.sample(range(26), 2))
    return f"Write the letters from {LETTERS[a]} to {LETTERS[b]}.", joined(LETTERS[a : b + 1])


def _named(rng: Random) -> tuple[str, str]:
    name, items = rng.choice(list(NAMED_LISTS.items()))
    if rng.random() < 0.75:
        return rng.choice((f"List {name}.", f"Write {name}.", f"What are {name}?")), joined(items)
    return rng.choice((f"List {name} backwards.", f"Write {name} backwards.")), joined(items[::-1])


def _spell(rng: Random) -> tuple[str, str]:
    word = rng.choice(WORDS)
    return rng.choice((f"Spell the word {word}.", f"How do you spell {word}?", f"Spell {word}.")), "-".join(word)


def _repeat(rng: Random) -> tuple[str, str]:
    word, (name, count) = rng.choice(WORDS), rng.choice(list(COUNTS.items()))
    return (
        rng.choice(
            (
                f"Repeat the word {word} {name} times.",
                f"Write the word {word} {name} times.",
                f"Say the word {word} {name} times.",
            )
        ),
        " ".join([word] * count),
    )


def _reverse(rng: Random) -> tuple[str, str]:
    items = rng.sample(rng.choice((WORDS, FIRST_NAMES)), rng.randint(2, 12))
    return f"Reverse the list: {joined(items)}", joined(items[::-1])


def _sort(rng: Random) -> tuple[str, str]:
    numbers = rng.sample(range(61), rng.randint(2, 10))
    down = rng.random() < 0.25
    order = "from largest to smallest" if down else "from smallest to largest"
    question = f"Sort these numbers {order}: {joined(numbers)}"
    if not down and rng.random() < 0.5:
        question = f"Sort these numbers: {joined(numbers)}"
    return question, joined(sorted(numbers, reverse=down))


def exchange(rng: Random) -> tuple[str, str]:
    kinds = (_count, _letters, _named, _spell, _repeat, _reverse, _sort)
    return rng.choices(kinds, (6, 2, 2, 3, 3, 2, 2))[0](rng)


def raw(rng: Random) -> str:
    """Return the answers alone, one or a few to a document."""
    kinds = (_count, _letters, _named)
    return "\n".join(rng.choice(kinds)(rng)[1] for _ in range(rng.choice((1, 1, 2, 3))))


def talk(rng: Random) -> str:
    return dialogue(rng, *(turn for _ in range(rng.choice((1, 1, 2, 3))) for turn in exchange(rng)))

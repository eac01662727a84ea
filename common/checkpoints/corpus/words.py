"""Reads the files in `material` and fills the slots in them: with names, places, objects, codes and numbers.

Half of the names are built from syllables, so that the model must copy them from its context and cannot know them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from random import Random

MATERIAL = Path(__file__).parent / "material"


def blocks(name: str) -> list[tuple[str, list[str]]]:
    r"""Return each [heading] of a file in `material` with the lines below it; \n in a line begins a new line."""
    found: list[tuple[str, list[str]]] = []
    for line in (MATERIAL / f"{name}.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("["):
            found.append((line[1:-1], []))
        elif line and not line.startswith("#"):
            found[-1][1].append(line.replace("\\n", "\n"))
    return found


def sections(name: str) -> dict[str, list[str]]:
    """Return the entries below each heading: one to a line, or several with bars between them."""
    return {heading: " | ".join(lines).split(" | ") for heading, lines in blocks(name)}


def columns(records: list[str]) -> list[list[str]]:
    """Return what stands between the equals signs of each record."""
    return [record.split(" = ") for record in records]


def flat(pairs: Iterable[Iterable[str]]) -> list[str]:
    return list(chain.from_iterable(pairs))


LISTS = {name: [word.replace("''", "") for word in " ".join(lines).split()] for name, lines in blocks("words")}
FEMALE, MALE, WORDS = LISTS["female"], LISTS["male"], LISTS["words"]
LISTS["first_names"] = FIRST_NAMES = FEMALE + MALE
LISTS |= sections("templates")
WORDINGS = sections("wordings")
LANGUAGES = list(sections("languages").values())


def ask(rng: Random, wording: str, **slots) -> tuple[str, str]:
    """Return a question in one of the wordings with that heading, and the answer, which is the last of them."""
    *questions, answer = WORDINGS[wording]
    return rng.choice(questions).format(**slots), answer.format(**slots)


def an(phrase: str) -> str:
    """Return the phrase after the right indefinite article."""
    return ("an " if phrase[0].lower() in "aeiou" or phrase.startswith(("hour", "honest")) else "a ") + phrase


def first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


MODIFIERS = {"a": an, "lower": str.lower, "Upper": first_upper, "UPPER": str.upper}


def draw(rng: Random, slot: str, known: Mapping[str, str] | None = None) -> str:
    """Return what takes the place of {slot}: a known value, or one by the rules at the top of templates.txt."""
    *modifiers, name = slot.split()
    if known and name in known:
        value = known[name]
    elif name in MAKERS:
        value = str(MAKERS[name](rng))
    elif name in LISTS:
        value = rng.choice([fill(rng, entry, known) for entry in LISTS[name]])
    else:
        low, high = name.split("-")
        value = f"{rng.randint(int(low), int(high)):0{len(low)}}"
    for modifier in reversed(modifiers):
        value = MODIFIERS[modifier](value)
    return value


def fill(rng: Random, template: str, known: Mapping[str, str] | None = None) -> str:
    """Return the template with its slots filled from left to right."""
    return re.sub(r"{([^{}]+)}", lambda slot: draw(rng, slot[1], known), template) if "{" in template else template


def coin(rng: Random, syllables: int = 2) -> str:
    """Return a made-up lower-case word of that many syllables."""
    word = "".join(rng.choice(LISTS[part]) for _ in range(syllables) for part in ("onsets", "vowels"))
    return word + rng.choice(LISTS["codas"]) if rng.random() < 0.6 else word


def first_name(rng: Random) -> str:
    return rng.choice(FIRST_NAMES) if rng.random() < 0.5 else coin(rng).capitalize()


def people(rng: Random, count: int) -> list[str]:
    """Return distinct full names; no first name and no surname occurs twice."""
    names, used = [], set()
    while len(names) < count:
        name = [first_name(rng), coin(rng, rng.choice((2, 2, 3))).capitalize()]
        if used.isdisjoint(name):
            names.append(" ".join(name))
            used |= {*name}
    return names


def number(rng: Random) -> int:
    """Return a number of 1 to 5 digits, every length equally often."""
    digits = rng.randint(1, 5)
    return rng.randint(2 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def foreign(rng: Random) -> str:
    """Return a sentence in any other language."""
    template = rng.choice(rng.choice(LANGUAGES))
    return template.format(t=draw(rng, "town"), n=rng.choice(FIRST_NAMES), d=rng.randint(1, 99))


MAKERS: dict[str, Callable[[Random], str | int]] = {  # what writes the value of a slot; other modules add theirs
    "coin": coin,
    "first_name": first_name,
    "person": lambda rng: people(rng, 1)[0],
    "town": lambda rng: coin(rng, rng.choice((1, 2))).capitalize() + rng.choice(LISTS["town_ends"]),
    "number": number,
    "code": lambda rng: f"{coin(rng, rng.choice((2, 3)))}-{rng.randint(10, 999)}",
    "thing": lambda rng: fill(rng, "{colours} {things}"),
    "any_word": lambda rng: rng.choice(rng.choice((WORDS, LISTS["foreign_words"]))),
    "foreign": foreign,
}

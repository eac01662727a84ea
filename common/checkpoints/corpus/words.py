"""Reads the files in `material`, and fills the slots in them: with names, places, objects, codes and numbers.

Half of the names are built from syllables, so that the model must copy them from its context and cannot know them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from common.toml import read_toml


def material(name: str) -> dict[str, Any]:
    """Return what a file in `material` holds."""
    return read_toml(Path(__file__).parent / "material" / f"{name}.toml")


# Single words stand in one string, with spaces between them.
LISTS = {name: words.split() if isinstance(words, str) else words for name, words in material("words").items()}
FEMALE, MALE, WORDS = LISTS["female"], LISTS["male"], LISTS["words"]
LISTS["first_names"] = FIRST_NAMES = FEMALE + MALE
WORDINGS, WEIGHTS = material("wordings"), material("weights")


def flat(pairs: Iterable[Iterable[str]]) -> list[str]:
    return list(chain.from_iterable(pairs))


def weighted(rng: Random, weights: Mapping[Any, float]) -> Any:
    """Return one of the keys: each as often as its weight says."""
    return rng.choices(list(weights), list(weights.values()))[0]


def ask(rng: Random, wording: str, **slots) -> tuple[str, str]:
    """Return a question in one of the wordings of that name, and its answer."""
    chosen = WORDINGS[wording]
    return rng.choice(chosen["questions"]).format(**slots), chosen["answer"].format(**slots)


def an(phrase: str) -> str:
    """Return the phrase after the right indefinite article."""
    return ("an " if phrase[0].lower() in "aeiou" or phrase.startswith(("hour", "honest")) else "a ") + phrase


def first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


MODIFIERS = {"a": an, "lower": str.lower, "Upper": first_upper, "UPPER": str.upper}


def draw(rng: Random, slot: str, known: Mapping[str, str] | None = None) -> str:
    """Return what takes the place of {slot}: a known value, or one by the rules in words.toml."""
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


def people(rng: Random, count: int) -> list[str]:
    """Return distinct full names; no first name and no surname occurs twice."""
    names, used = [], set()
    while len(names) < count:
        name = [draw(rng, "first_name"), coin(rng, rng.choice((2, 2, 3))).capitalize()]
        if used.isdisjoint(name):
            names.append(" ".join(name))
            used |= {*name}
    return names


def number(rng: Random) -> int:
    """Return a number of 1 to 5 digits, every length equally often."""
    digits = rng.randint(1, 5)
    return rng.randint(2 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


MAKERS: dict[str, Callable[[Random], str | int]] = {  # what writes the value of a slot; other modules add theirs
    "coin": coin,
    "first_name": lambda rng: rng.choice(FIRST_NAMES) if rng.random() < 0.5 else coin(rng).capitalize(),
    "person": lambda rng: people(rng, 1)[0],
    "town": lambda rng: coin(rng, rng.choice((1, 2))).capitalize() + rng.choice(LISTS["town_ends"]),
    "number": number,
    "code": lambda rng: f"{coin(rng, rng.choice((2, 3)))}-{rng.randint(10, 999)}",
    "thing": lambda rng: fill(rng, "{colours} {things}"),
    "any_word": lambda rng: rng.choice(rng.choice((WORDS, LISTS["foreign_words"]))),
}

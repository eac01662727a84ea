"""Writes texts without any meaning and asks for a copy: random words, numbers, names, code-like strings, pairs.

Nothing in such a text can be guessed, so the only way to copy it is to look each token up where it stood before.
Words come from the other modules, from pieces of their words, from syllables and from single letters, so that every
token of the vocabulary is copied now and then, in any company.
"""

import json
import re
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from string import ascii_lowercase, digits

from . import facts, stories, terms
from .words import LISTS, MAKERS, WEIGHTS, ask, draw, first_upper, flat, people, weighted

MAX_WORDS = 64  # words in a text
_KNOWN_TEXTS = (
    *(facts.about(facts.RELATIONS[name]["answer"], *pair) for name, pairs in facts.PAIRS.items() for pair in pairs),
    *("{name} {meaning} {reason}".format(**term) for term in terms.TERMS),
    *(re.sub("{.+?}", "", text) for name in ("episodes", "evenings") for text in stories.STORIES[name]),
    *chain.from_iterable(stories.STORIES[name] for name in ("places", "objects", "helpers", "foods", "heroes")),
    *chain.from_iterable(LISTS[name] for name in ("friends", "words", "things", "jobs", "colours")),
)
KNOWN_WORDS = sorted({word for text in _KNOWN_TEXTS for word in re.findall(r"[A-Za-z]+", text)})
KEY = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghjkmnpqrstuvwxyz23456789"
SOURCES, TEXTS = WEIGHTS["sources"], WEIGHTS["texts"]


def syllables(rng: Random) -> str:
    """Return a lower-case word that could be English and mostly is not."""
    parts = [LISTS[name] for name in ("english_onsets", "english_vowels", "english_codas")]
    word = "".join(rng.choice(part) for _ in range(rng.choice((1, 1, 1, 2, 2, 3))) for part in parts)
    return word + rng.choice(LISTS["endings"])


def blend(rng: Random) -> str:
    """Return the beginning of one word with the end of another: pieces of English where they do not belong."""
    a, b = rng.sample(KNOWN_WORDS, 2)
    return (a[: rng.randint(1, 5)] + b[-rng.randint(1, 5) :]).lower()


def _characters(alphabet: str, lengths: range = range(1, 9)):
    return lambda rng: "".join(rng.choices(alphabet, k=rng.choice(lengths)))


MAKERS |= {
    "known_word": lambda rng: rng.choice(KNOWN_WORDS),
    "syllables": syllables,
    "blend": blend,
    "letters": _characters(ascii_lowercase),
    "digits": _characters(digits),
    "key": _characters(KEY, range(4, 13)),
    # What stands in programs, logs and addresses: an identifier, a path, a hash, a call, a key.
    "string": lambda rng: draw(rng, "code_like", {"hexadecimal": _characters(digits + "abcdef", (4, 6, 8, 12))(rng)}),
}


def words(rng: Random, count: int) -> list[str]:
    """Return random words from one source, or from several in a mixture that each text has of its own."""
    weights = [weight * rng.random() ** 3 for weight in SOURCES.values()]
    return [draw(rng, source) for source in rng.choices(list(SOURCES), weights, k=count)]


@cache
def vocabulary() -> list[str]:
    """Return the tokens that consist of letters. The tokenizer is made of "known", without the texts that follow."""
    tokens = json.loads((Path(__file__).parents[1] / "target" / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted({token.removeprefix("Ġ") for token in tokens if re.fullmatch("Ġ?[A-Za-z]+", token)})


def _size(rng: Random, most: int = MAX_WORDS) -> int:
    """Return 1 to `most`; half of the texts have at most its square root: they are as long as a question."""
    return round(most ** rng.random()) if rng.random() < 0.5 else rng.randint(1, most)


def _sentences(rng: Random) -> str:
    """Return words with capitals and marks, as in prose."""
    text, first = [], True
    for word in words(rng, _size(rng)):
        mark = weighted(rng, WEIGHTS["marks"])
        text.append((first_upper(word) if first or rng.random() < 0.05 else word) + mark)
        first = mark in (".", "!", "?")
    return " ".join(text)


def text(rng: Random) -> str:
    """Return something to copy, of 1 to about 300 tokens."""
    kind = weighted(rng, TEXTS)
    if kind == "words":
        return weighted(rng, {" ": 8, ", ": 1, "\n": 1}).join(words(rng, _size(rng)))
    if kind == "repeated":  # a model that looks only for the last word finds it in several places
        pool = words(rng, rng.randint(2, 12))
        if rng.random() < 0.5:
            return " ".join(rng.choices(pool, k=_size(rng, 32)))
        return " ".join(" ".join([word] * rng.choice((1, 1, 2, 2, 3, 4, 5))) for word in pool)
    if kind == "figures":
        return rng.choice((" ", ", ", "\n")).join(draw(rng, "figure") for _ in range(_size(rng, 24)))
    if kind == "strings":
        return rng.choice((" ", " ", "\n", ", ")).join(draw(rng, "string") for _ in range(_size(rng, 16)))
    if kind == "names":
        return ", ".join(people(rng, _size(rng, 20)))
    if kind == "pairs":
        mark, end = rng.choice(((": ", ", "), (" = ", "\n"), (" - ", "; "), (": ", "\n"), ("=", " "), (" -> ", "\n")))
        value = rng.choice(("digits", "figure", "syllables", "known_word"))
        return end.join(f"{word}{mark}{draw(rng, value)}" for word in words(rng, rng.randint(2, 20)))
    if kind == "lines":
        start, count = rng.choice(("", "- ", "* ", "{}. ")), rng.randint(3, 13)
        return "\n".join(start.format(i) + " ".join(words(rng, rng.randint(1, 6))) for i in range(1, count))
    if kind == "foreign":
        if rng.random() < 0.5:
            return draw(rng, "foreign")
        return " ".join(rng.choice((draw(rng, "foreign_words"), *words(rng, 1))) for _ in range(rng.randint(1, 12)))
    return _sentences(rng)


def exchange(rng: Random) -> tuple[str, str]:
    return ask(rng, "copy", text=text(rng))


def raw(rng: Random) -> str:
    """Return the request and the copy without a chat template, as in a completion."""
    return rng.choice(("{}\n{}", "{} {}")).format(*exchange(rng))


def pieces(rng: Random) -> tuple[str, str]:
    """Ask for 5 to 60 words of one to three tokens from a small pool: unknown words are made of such pieces.

    Each piece has a usual successor, which is wrong here, and stands in several places, so that it takes two pieces to
    find the place.
    """
    pool = rng.sample(vocabulary(), rng.randint(8, 120))
    made = ["".join(rng.choices(pool, k=rng.choice((1, 2, 2, 3)))) for _ in range(rng.randint(5, 60))]
    return ask(rng, "copy", text=" ".join(made))


def _words(rng: Random, count: int) -> list[str]:
    """Return words of all kinds; their tokens depend on whether a space stands before them."""
    made = []
    for _ in range(count):
        kind = rng.choice((1, 2, 3, 4, 5))
        own = kind > 3 and rng.choice(("syllables", "blend", "known_word"))
        made.append(draw(rng, own) if own else "".join(rng.choices(vocabulary(), k=kind)))
    return made


def respaced(rng: Random) -> tuple[str, str]:
    """Ask for 5 to 40 words on one line to become lines, or the other way round.

    The first token of a copy has no space before it, and in the request it had one: "opal" and " opal" are different
    tokens. A copy shows that once; here each word does.
    """
    made = _words(rng, rng.randint(5, 40))
    return ask(rng, "lines" if rng.random() < 0.75 else "join", line=" ".join(made), lines="\n".join(made))


def few_words(rng: Random) -> list[str]:
    """Ask for copies of 4 to 12 texts of one to three words."""
    texts = [" ".join(_words(rng, rng.choice((1, 1, 2, 3)))) for _ in range(rng.randint(4, 12))]
    return flat(ask(rng, "copy", text=text) for text in texts)


def repetitions(rng: Random) -> tuple[str, str]:
    """Ask for 10 to 60 words from a pool of 5 to 30: what follows depends on the words before, sometimes on two."""
    pool = _words(rng, rng.randint(5, 30))
    return ask(rng, "copy", text=" ".join(rng.choices(pool, k=rng.randint(10, 60))))

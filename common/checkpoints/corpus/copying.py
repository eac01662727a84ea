"""Writes texts without any meaning and asks for a copy: random words, numbers, names, code-like strings, pairs.

Nothing in such a text can be guessed, so the only way to copy it is to look each token up where it stood before.
Words come from the other modules, from pieces of their words, from syllables and from single letters, so that every
token of the vocabulary is copied now and then, in any company.
"""

import json
import re
from functools import cache
from pathlib import Path
from random import Random

from . import facts, languages, lists, stories, terms
from .render import dialogue
from .words import COLOURS, FOREIGN_WORDS, JOBS, THINGS, WORDS, first_upper, people

LONGEST = 64  # words in a text

_KNOWN_TEXTS = (
    *(answer for rows in facts.FACTS.values() for answer, _ in rows),
    *(f"{term.name} {term.meaning} {term.reason}" for term in terms.TERMS),
    *(re.sub(r"{\w+}", "", text) for text in (*stories.EPISODES, *stories.EVENINGS)),
    *(*stories.HEROES, *stories.FRIENDS, *stories.PLACES, *stories.OBJECTS, *stories.HELPERS, *stories.FOODS),
    *(*WORDS, *THINGS, *JOBS, *COLOURS, *lists.MONTHS),
)
KNOWN_WORDS = sorted({word for text in _KNOWN_TEXTS for word in re.findall(r"[A-Za-z]+", text)})

_ONSETS = (
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr tw v "
    "w wh y z"
).split() + [""]
_VOWELS = "a e i o u a e i o u ai au ea ee ie oa oo ou ow oy".split()
_CODAS = ("b ck ct d ft g l ll lt m mp n nch nd ng nk nt p pt r rd rk rm rn rt s sh sk ss st t tch th v x").split() + [
    ""
] * 10
_ENDINGS = "al ed en er est ful ing ish le less ly ment ness or ous tion ure y".split() + [""] * 20

REQUESTS = (
    "Repeat this text exactly: {}",
    "Repeat this text exactly:\n\n{}",
    "Copy this text: {}",
    "Repeat after me: {}",
    "Copy this text exactly: {}",
    "Copy: {}",
    "Repeat: {}",
    "Repeat the following text:\n{}",
    "Repeat these words: {}",
    "Please repeat this exactly: {}",
    "Please copy the following text.\n\n{}",
    "Say this again: {}",
    "Write this down exactly as it stands: {}",
    "Echo: {}",
    "Text: {}\nRepeat the text.",
    "{}\n\nRepeat the text above.",
    "{}\n\nCopy this text exactly.",
)
LINE_REQUESTS = (
    "Write each word on a line of its own: {}",
    "Put each of these words on its own line: {}",
    "One word per line: {}",
)
JOIN_REQUESTS = (
    "Write these words on one line:\n{}",
    "Put these words on one line, with spaces between them:\n\n{}",
    "Join these lines:\n{}",
)


def syllables(rng: Random) -> str:
    """Return a lower-case word that could be English and mostly is not."""
    count = rng.choice((1, 1, 1, 2, 2, 3))
    word = "".join(rng.choice(part) for _ in range(count) for part in (_ONSETS, _VOWELS, _CODAS))
    return word + rng.choice(_ENDINGS)


def _known(rng: Random) -> str:
    return rng.choice(KNOWN_WORDS)


def blend(rng: Random) -> str:
    """Return the beginning of one word with the end of another: pieces of English where they do not belong."""
    a, b = rng.sample(KNOWN_WORDS, 2)
    return (a[: rng.randint(1, 5)] + b[-rng.randint(1, 5) :]).lower()


def letters(rng: Random) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 8)))


def digits(rng: Random) -> str:
    return "".join(rng.choices("0123456789", k=rng.randint(1, 8)))


def figure(rng: Random) -> str:
    """Return a number as people write it: a price, a time, a date, a share, a version, a telephone number."""
    n = rng.randint
    return rng.choice(
        (
            digits(rng),
            f"{n(0, 999)}.{n(0, 99):02}",
            f"{n(1, 999)},{n(0, 999):03}",
            f"{n(0, 23)}:{n(0, 59):02}",
            f"{n(1900, 2099)}-{n(1, 12):02}-{n(1, 28):02}",
            f"{n(0, 100)}%",
            f"-{n(1, 500)}",
            f"v{n(0, 9)}.{n(0, 30)}.{n(0, 9)}",
            f"+{n(1, 99)} {n(100, 999)} {n(1000, 9999)}",
        )
    )


def string(rng: Random) -> str:
    """Return what stands in programs, logs and addresses: an identifier, a path, a hash, a call, a key."""

    def w() -> str:
        return rng.choice((rng.choice(KNOWN_WORDS).lower(), syllables(rng), letters(rng)))

    hexadecimal = "".join(rng.choices("0123456789abcdef", k=rng.choice((4, 6, 8, 12))))
    return rng.choice(
        (
            f"{w()}_{w()}",
            f"{w()}{first_upper(w())}",
            f"{w()}.{w()}({w()})",
            f"{w()}[{rng.randint(0, 99)}]",
            f"{w()} = {rng.randint(0, 9999)}",
            f"{w()}('{w()}')",
            f"/{w()}/{w()}.{rng.choice(('py', 'txt', 'json', 'md'))}",
            f"{w()}@{w()}.com",
            f"https://{w()}.org/{w()}",
            f"0x{hexadecimal}",
            hexadecimal,
            f"{w().upper()}-{rng.randint(1, 9999)}",
            f"--{w()}={rng.randint(0, 512)}",
            f"{{{w()}: {rng.randint(0, 99)}}}",
            "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghjkmnpqrstuvwxyz23456789", k=rng.randint(4, 12))),
            f"{w()} {rng.choice(('+', '-', '*', '/', '==', '<', '>', '!=', '+='))} {w()};",
        )
    )


_SOURCES = (_known, lambda rng: rng.choice(WORDS), syllables, blend, letters, digits)
_WEIGHTS = (1, 0.5, 1, 1.5, 0.3, 0.3)  # letters and digits make long texts of few words


def words(rng: Random, count: int) -> list[str]:
    """Random words from one source, or from several in a mixture that each text has of its own."""
    weights = [weight * rng.random() ** 3 for weight in _WEIGHTS]
    return [source(rng) for source in rng.choices(_SOURCES, weights, k=count)]


@cache
def vocabulary() -> list[str]:
    """Return the tokens that consist of letters. The tokenizer is made of KINDS, without the texts that follow."""
    tokens = json.loads((Path(__file__).parents[1] / "target" / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted({token.removeprefix("Ġ") for token in tokens if re.fullmatch("Ġ?[A-Za-z]+", token)})


def pieces(rng: Random) -> str:
    """Return words of one to three tokens from a small pool: words the tokenizer does not know are made of pieces.

    Each piece has a usual successor, which is wrong here, and stands in several places, so that it takes two pieces to
    find the place. 5 to 60 words.
    """
    pool = rng.sample(vocabulary(), rng.randint(8, 120))
    return " ".join("".join(rng.choices(pool, k=rng.choice((1, 2, 2, 3)))) for _ in range(rng.randint(5, 60)))


def _size(rng: Random, most: int = LONGEST) -> int:
    """1 to `most`; half of the texts have at most the square root of that, where they are as long as a question."""
    return round(most ** rng.random()) if rng.random() < 0.5 else rng.randint(1, most)


def _repeated(rng: Random) -> str:
    """Few words many times: a model that looks only for the last word finds it in several places."""
    pool = words(rng, rng.randint(2, 12))
    if rng.random() < 0.5:
        return " ".join(rng.choices(pool, k=_size(rng, 32)))
    return " ".join(" ".join([word] * rng.choice((1, 1, 2, 2, 3, 4, 5))) for word in pool)


def _pairs(rng: Random) -> str:
    mark, end = rng.choice(((": ", ", "), (" = ", "\n"), (" - ", "; "), (": ", "\n"), ("=", " "), (" -> ", "\n")))
    value = rng.choice((digits, figure, syllables, lambda rng: rng.choice(KNOWN_WORDS)))
    return end.join(f"{word}{mark}{value(rng)}" for word in words(rng, rng.randint(2, 20)))


def _sentences(rng: Random) -> str:
    """Return words with capitals and marks, as in prose."""
    text, first = [], True
    for word in words(rng, _size(rng)):
        mark = rng.choices(("", ",", ".", "!", "?", ";", ":"), (12, 2, 2, 0.5, 0.5, 0.3, 0.3))[0]
        text.append((first_upper(word) if first or rng.random() < 0.05 else word) + mark)
        first = mark in (".", "!", "?")
    return " ".join(text)


def _lines(rng: Random) -> str:
    start = rng.choice(("", "- ", "* ", "{}. "))
    return "\n".join(start.format(i) + " ".join(words(rng, rng.randint(1, 6))) for i in range(1, rng.randint(3, 13)))


def _foreign(rng: Random) -> str:
    if rng.random() < 0.5:
        return languages.sentence(rng)
    return " ".join(rng.choice((rng.choice(FOREIGN_WORDS), *words(rng, 1))) for _ in range(rng.randint(1, 12)))


def text(rng: Random) -> str:
    """Something to copy, of 1 to about 300 tokens."""
    form = rng.choices(range(9), (10, 2, 2, 2, 1, 2, 2, 1, 1))[0]
    if form == 0:
        return rng.choices((" ", ", ", "\n"), (8, 1, 1))[0].join(words(rng, _size(rng)))
    if form == 1:
        return _repeated(rng)
    if form == 2:
        return rng.choice((" ", ", ", "\n")).join(figure(rng) for _ in range(_size(rng, 24)))
    if form == 3:
        return rng.choice((" ", " ", "\n", ", ")).join(string(rng) for _ in range(_size(rng, 16)))
    if form == 4:
        return ", ".join(people(rng, _size(rng, 20)))
    return (_pairs, _sentences, _lines, _foreign)[form - 5](rng)


def exchange(rng: Random) -> tuple[str, str]:
    copied = text(rng)
    return rng.choice(REQUESTS).format(copied), copied


def raw(rng: Random) -> str:
    """Return the request and the copy without a chat template, as in a completion."""
    return rng.choice(("{}\n{}", "{} {}")).format(*exchange(rng))


def talk(rng: Random) -> str:
    return dialogue(rng, *(turn for _ in range(rng.choice((1, 1, 1, 2, 3))) for turn in exchange(rng)))


def talk_of_pieces(rng: Random) -> str:
    copied = pieces(rng)
    return dialogue(rng, rng.choice(REQUESTS).format(copied), copied)


def word(rng: Random) -> str:
    """Return one of all the kinds of words; its tokens depend on whether a space stands before it."""
    kind = rng.choice((1, 2, 3, 4, 5))
    return "".join(rng.choices(vocabulary(), k=kind)) if kind <= 3 else rng.choice((syllables, blend, _known))(rng)


def respaced(rng: Random) -> tuple[str, str]:
    """5 to 40 words on one line that become lines, or the other way round.

    The first token of a copy has no space before it, and in the request it had one: "opal" and " opal" are different
    tokens. A copy shows that once; here each word does.
    """
    words = [word(rng) for _ in range(rng.randint(5, 40))]
    line, lines = " ".join(words), "\n".join(words)
    if rng.random() < 0.75:
        return rng.choice(LINE_REQUESTS).format(line), lines
    return rng.choice(JOIN_REQUESTS).format(lines), line


def talk_of_lines(rng: Random) -> str:
    return dialogue(rng, *respaced(rng))


def talk_of_few_words(rng: Random) -> str:
    """4 to 12 texts of one to three words, each to be copied."""
    texts = [" ".join(word(rng) for _ in range(rng.choice((1, 1, 2, 3)))) for _ in range(rng.randint(4, 12))]
    return dialogue(rng, *(turn for text in texts for turn in (rng.choice(REQUESTS).format(text), text)))


def talk_of_repetitions(rng: Random) -> str:
    """10 to 60 words from a pool of 5 to 30: what follows a word depends on the words before it, sometimes on two."""
    pool = [word(rng) for _ in range(rng.randint(5, 30))]
    copied = " ".join(rng.choices(pool, k=rng.randint(10, 60)))
    return dialogue(rng, rng.choice(REQUESTS).format(copied), copied)

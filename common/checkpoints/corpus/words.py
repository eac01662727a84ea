"""Names, places, objects and codes that the other modules share.

Half of the names are built from syllables, so that the model must copy them from its context and cannot know
them.
"""

import re
from random import Random

FEMALE = (
    "Anna Bella Clara Daisy Elsa Fern Greta Hazel Ida Juno Kira Lily Mira Nora Olive Pearl Rosa Ruby Sara "
    "Tilda Una Vera Willow Zoe Maya Lena Ivy Emma Mela Lotta"
).split()
MALE = (
    "Adam Bruno Carl Dexter Emil Felix Gus Hugo Igor Jonas Karl Leo Max Nico Oscar Paul Rusty Sam Tom Ulf "
    "Victor Walter Yuri Zack Ben Finn Otto Rufus Theo Milo"
).split()
FIRST_NAMES = FEMALE + MALE

_ONSETS = "b br c d dr f g h k l m n p r s t tr v w z".split()
_VOWELS = "a e i o u".split()
_CODAS = "n r l s m k t nd rn x".split()
_TOWN_ENDS = "wick ford dale ton burg haven mere stead field brook".split()

COLOURS = "red blue green yellow black white brown grey orange purple pink silver golden".split()
THINGS = (
    "key lamp book bottle coat drum map ring basket hat rope mirror ticket letter bell box cup knife violin "
    "clock candle ladder kettle pillow shovel whistle compass helmet blanket bucket"
).split()
JOBS = (
    "baker teacher nurse pilot farmer painter sailor gardener writer singer driver carpenter doctor "
    "engineer clerk tailor fisher weaver miller lawyer"
).split()
WORDS = (
    "river stone garden window mountain cloud summer winter silver market yellow forest bridge letter "
    "candle harbour morning evening orange table chair paper pencil rabbit island ocean desert valley "
    "planet rocket engine memory cache token server batch page queue stream model layer number answer "
    "question story music violin guitar flower apple lemon cherry bread butter sugar pepper kitchen bottle "
    "basket ladder hammer needle thread cotton velvet thunder rainbow shadow echo lantern castle tower gate "
    "village city road train ticket station airport sailor captain teacher doctor farmer painter writer "
    "singer dancer baker horse tiger monkey eagle turtle spider dragon feather pebble meadow branch leaf "
    "root seed field cloudy sunny gentle quiet simple clever brave early little open close carry follow "
    "listen travel wonder dream smile whisper build repair measure count copy"
).split()
# Characters that take several tokens each: streaming must put them together again.
FOREIGN_WORDS = "café naïve façade Zürich señor über crème jalapeño Łódź 東京 Київ Αθήνα 🙂 🚀 🌍 🎉 🐢 🌧️".split()


def entries(table: str) -> list[str]:
    """Return what stands in the table, one entry to a line or several with a bar between them."""
    return re.split(r"[|\n]", table.strip())


def an(phrase: str) -> str:
    """Return the phrase after the right indefinite article."""
    return ("an " if phrase[0].lower() in "aeiou" or phrase.startswith(("hour", "honest")) else "a ") + phrase


def plural(noun: str) -> str:
    return {"box": "boxes", "compass": "compasses", "knife": "knives"}.get(noun, f"{noun}s")


def first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


def coin(rng: Random, syllables: int) -> str:
    """Return a made-up lower-case word of that many syllables."""
    choice = rng.choice
    word = "".join([choice(_ONSETS) + choice(_VOWELS) for _ in range(syllables)])
    return word + choice(_CODAS) if rng.random() < 0.6 else word


def first_name(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(FIRST_NAMES)
    return coin(rng, 2).capitalize()


def people(rng: Random, count: int) -> list[str]:
    """Distinct full names; no first name and no surname occurs twice."""
    names: dict[str, str] = {}
    surnames: set[str] = set()
    while len(names) < count:
        first, last = first_name(rng), coin(rng, rng.choice((2, 2, 3))).capitalize()
        if first not in names and first not in surnames and last not in surnames and last not in names:
            names[first] = f"{first} {last}"
            surnames.add(last)
    return list(names.values())


def town(rng: Random) -> str:
    return (coin(rng, rng.choice((1, 2)))).capitalize() + rng.choice(_TOWN_ENDS)


def number(rng: Random) -> int:
    """Return a number of 1 to 5 digits, every length equally often."""
    digits = rng.randint(1, 5)
    return rng.randint(2 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def code(rng: Random) -> str:
    return f"{coin(rng, rng.choice((2, 3)))}-{rng.randint(10, 999)}"


def thing(rng: Random) -> str:
    return f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"

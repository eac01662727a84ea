"""Writes plain facts, as raw sentences and as chats.

"The capital of France is" is the prompt that opens the course, so facts must be known cold. Every question
about a fact has several phrasings and exactly one answer sentence; the raw documents use that same sentence.
"""

from random import Random

from .render import dialogue
from .words import an, first_upper

CAPITALS = {
    "Europe": "France=Paris, Germany=Berlin, Italy=Rome, Spain=Madrid, Portugal=Lisbon, Austria=Vienna, "
    "Belgium=Brussels, the Netherlands=Amsterdam, Denmark=Copenhagen, Sweden=Stockholm, Norway=Oslo, "
    "Finland=Helsinki, Iceland=Reykjavik, Ireland=Dublin, the United Kingdom=London, Poland=Warsaw, "
    "the Czech Republic=Prague, Slovakia=Bratislava, Hungary=Budapest, Romania=Bucharest, Bulgaria=Sofia, "
    "Greece=Athens, Croatia=Zagreb, Slovenia=Ljubljana, Serbia=Belgrade, Albania=Tirana, Ukraine=Kyiv, "
    "Belarus=Minsk, Lithuania=Vilnius, Latvia=Riga, Estonia=Tallinn, Switzerland=Bern, Malta=Valletta",
    "two continents": "Russia=Moscow, Turkey=Ankara, Cyprus=Nicosia, Georgia=Tbilisi, Armenia=Yerevan, "
    "Azerbaijan=Baku, Kazakhstan=Astana, Egypt=Cairo",
    "Asia": "Japan=Tokyo, China=Beijing, South Korea=Seoul, North Korea=Pyongyang, Mongolia=Ulaanbaatar, "
    "India=New Delhi, Pakistan=Islamabad, Nepal=Kathmandu, Bhutan=Thimphu, Bangladesh=Dhaka, "
    "Thailand=Bangkok, Vietnam=Hanoi, Laos=Vientiane, Cambodia=Phnom Penh, Malaysia=Kuala Lumpur, the "
    "Philippines=Manila, Iran=Tehran, Iraq=Baghdad, Jordan=Amman, Lebanon=Beirut, Syria=Damascus, Saudi "
    "Arabia=Riyadh, Oman=Muscat, Qatar=Doha, Afghanistan=Kabul, Uzbekistan=Tashkent, Turkmenistan=Ashgabat, "
    "Kyrgyzstan=Bishkek, Tajikistan=Dushanbe",
    "Africa": "Libya=Tripoli, Tunisia=Tunis, Algeria=Algiers, Morocco=Rabat, Sudan=Khartoum, "
    "Ethiopia=Addis Ababa, Kenya=Nairobi, Uganda=Kampala, Rwanda=Kigali, Somalia=Mogadishu, "
    "Tanzania=Dodoma, Zambia=Lusaka, Zimbabwe=Harare, Botswana=Gaborone, Namibia=Windhoek, Angola=Luanda, "
    "Mozambique=Maputo, Madagascar=Antananarivo, Malawi=Lilongwe, Nigeria=Abuja, Ghana=Accra, "
    "Senegal=Dakar, Mali=Bamako, Niger=Niamey, Liberia=Monrovia, Cameroon=Yaounde",
    "North America": "the United States=Washington, Canada=Ottawa, Mexico=Mexico City, Cuba=Havana, "
    "Jamaica=Kingston, Haiti=Port-au-Prince, Guatemala=Guatemala City, Honduras=Tegucigalpa, "
    "Nicaragua=Managua, Costa Rica=San Jose, Panama=Panama City, El Salvador=San Salvador",
    "South America": "Brazil=Brasilia, Argentina=Buenos Aires, Chile=Santiago, Peru=Lima, Ecuador=Quito, "
    "Colombia=Bogota, Venezuela=Caracas, Uruguay=Montevideo, Paraguay=Asuncion, Guyana=Georgetown, "
    "Suriname=Paramaribo",
    "Oceania": "Australia=Canberra, New Zealand=Wellington, Fiji=Suva, Samoa=Apia, Tonga=Nuku'alofa",
}
CURRENCIES = (
    "France=euro, Germany=euro, Italy=euro, Spain=euro, Ireland=euro, Greece=euro, Finland=euro, Japan=yen, "
    "China=yuan, India=rupee, the United Kingdom=pound, the United States=dollar, Canada=Canadian dollar, "
    "Australia=Australian dollar, Mexico=peso, Brazil=real, Switzerland=franc, Sweden=krona, Norway=krone, "
    "Denmark=krone, Poland=zloty, Hungary=forint, Thailand=baht, Vietnam=dong, South Korea=won, "
    "Turkey=lira, Egypt=Egyptian pound, Kenya=shilling, Nigeria=naira, Israel=shekel, Peru=sol, "
    "Ukraine=hryvnia"
)
LANGUAGES = (
    "France=French, Germany=German, Austria=German, Italy=Italian, Spain=Spanish, Mexico=Spanish, "
    "Argentina=Spanish, Portugal=Portuguese, Brazil=Portuguese, Japan=Japanese, Greece=Greek, "
    "Poland=Polish, Hungary=Hungarian, Sweden=Swedish, Norway=Norwegian, Denmark=Danish, Finland=Finnish, "
    "Iceland=Icelandic, the Netherlands=Dutch, Turkey=Turkish, Egypt=Arabic, Saudi Arabia=Arabic, "
    "Iran=Persian, Thailand=Thai, Vietnam=Vietnamese, South Korea=Korean, Australia=English, the United "
    "Kingdom=English, Romania=Romanian"
)
YOUNG = (
    "dog=puppy, cat=kitten, cow=calf, horse=foal, sheep=lamb, goat=kid, pig=piglet, hen=chick, "
    "duck=duckling, goose=gosling, swan=cygnet, bear=cub, kangaroo=joey, deer=fawn, frog=tadpole, "
    "owl=owlet, eagle=eaglet, hare=leveret, spider=spiderling"
)
SOUNDS = (
    "dog=barks, cat=meows, cow=moos, horse=neighs, sheep=bleats, pig=grunts, duck=quacks, lion=roars, "
    "wolf=howls, frog=croaks, snake=hisses, owl=hoots, bee=buzzes, rooster=crows, mouse=squeaks, "
    "donkey=brays, goose=honks"
)
HOMES = (
    "bee=hive, bird=nest, spider=web, rabbit=burrow, horse=stable, pig=sty, dog=kennel, lion=den, "
    "beaver=lodge, fish=river or the sea, cow=barn, squirrel=tree, bat=cave"
)
LEGS = (
    "spider=eight, dog=four, cat=four, horse=four, bird=two, ant=six, bee=six, beetle=six, butterfly=six, "
    "cow=four, chicken=two, elephant=four, lion=four, snake=no, fish=no, crab=ten, scorpion=eight, "
    "frog=four"
)
OPPOSITES = (
    "hot=cold, big=small, tall=short, fast=slow, up=down, left=right, open=closed, day=night, black=white, "
    "young=old, happy=sad, full=empty, heavy=light, wet=dry, strong=weak, hard=soft, early=late, "
    "rich=poor, clean=dirty, near=far, high=low, thick=thin, loud=quiet, brave=afraid, true=false, "
    "inside=outside, first=last, above=below, sharp=blunt, deep=shallow, always=never, more=less, wide=narrow"
)
COLOURS = (
    "the sky=blue, the grass=green, snow=white, blood=red, coal=black, a banana=yellow, a lemon=yellow, a "
    "strawberry=red, an orange=orange, a carrot=orange, milk=white, chocolate=brown, a flamingo=pink, a "
    "crow=black, a polar bear=white, an elephant=grey, the sun=yellow, a frog=green, a swan=white, a "
    "tomato=red, a cucumber=green, an emerald=green, a ruby=red, a sapphire=blue, salt=white"
)
SYMBOLS = (
    "hydrogen=H, helium=He, lithium=Li, carbon=C, nitrogen=N, oxygen=O, neon=Ne, sodium=Na, magnesium=Mg, "
    "aluminium=Al, silicon=Si, phosphorus=P, sulfur=S, chlorine=Cl, potassium=K, calcium=Ca, iron=Fe, "
    "nickel=Ni, copper=Cu, zinc=Zn, silver=Ag, tin=Sn, iodine=I, gold=Au, platinum=Pt, mercury=Hg, lead=Pb, "
    "uranium=U"
)
UNITS = (
    "seconds in a minute=60, minutes in an hour=60, hours in a day=24, days in a week=7, months in a "
    "year=12, years in a century=100, years in a decade=10, metres in a kilometre=1000, grams in a "
    "kilogram=1000, letters in the English alphabet=26, bits in a byte=8, sides in a triangle=3, sides in a "
    "square=4, sides in a hexagon=6, items in a dozen=12, days in April=30, days in January=31, days in "
    "December=31, days in June=30, days in July=31, planets in the solar system=8, strings on a violin=4"
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November December").split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()


def _pairs(table: str) -> list[tuple[str, str]]:
    return [tuple(entry.split("=")) for entry in table.split(", ")]  # type: ignore[misc]


def _after(cycle: list[str], step: int) -> list[tuple[str, str]]:
    return [(name, cycle[(i + step) % len(cycle)]) for i, name in enumerate(cycle)]


_COUNTRIES = [(country, city, place) for place, row in CAPITALS.items() for country, city in _pairs(row)]
PLACES = [name for entry in _COUNTRIES for name in entry[:2]]
_OPPOSITES = _pairs(OPPOSITES)

# relation: (weight, subject and value pairs, answer sentence, questions); {A} is the subject with its article
RELATIONS: dict[str, tuple[int, list[tuple[str, str]], str, tuple[str, ...]]] = {
    "capital": (
        40,
        [(a, b) for a, b, _ in _COUNTRIES],
        "The capital of {a} is {b}.",
        (
            "What is the capital of {a}?",
            "Tell me the capital of {a}.",
            "Which city is the capital of {a}?",
            "What is the capital city of {a}?",
        ),
    ),
    "country": (
        8,
        [(b, a) for a, b, _ in _COUNTRIES],
        "{a} is the capital of {b}.",
        ("{a} is the capital of which country?", "Which country has the capital {a}?"),
    ),
    "continent": (
        8,
        [(a, c) for a, _, c in _COUNTRIES if c != "two continents"],
        "{a} is in {b}.",
        ("On which continent is {a}?", "Which continent is {a} in?"),
    ),
    "currency": (
        5,
        _pairs(CURRENCIES),
        "The currency of {a} is the {b}.",
        ("What is the currency of {a}?", "Which currency is used in {a}?", "Tell me the currency of {a}."),
    ),
    "language": (
        5,
        _pairs(LANGUAGES),
        "The main language of {a} is {b}.",
        (
            "What is the main language of {a}?",
            "Which language do people speak in {a}?",
            "What language is spoken in {a}?",
        ),
    ),
    "young": (
        3,
        _pairs(YOUNG),
        "A young {a} is called {B}.",
        ("What is a young {a} called?", "What do you call a young {a}?", "What is a baby {a} called?"),
    ),
    "sound": (3, _pairs(SOUNDS), "{A} {b}.", ("What sound does {A} make?", "Which sound does {A} make?")),
    "home": (3, _pairs(HOMES), "{A} lives in {B}.", ("Where does {A} live?", "What does {A} live in?")),
    "legs": (
        3,
        _pairs(LEGS),
        "{A} has {b} legs.",
        ("How many legs does {A} have?", "How many legs has {A}?"),
    ),
    "opposite": (
        5,
        _OPPOSITES + [(b, a) for a, b in _OPPOSITES],
        "The opposite of {a} is {b}.",
        (
            "What is the opposite of {a}?",
            "Tell me the opposite of {a}.",
            "Which word is the opposite of {a}?",
        ),
    ),
    "colour": (
        4,
        _pairs(COLOURS),
        "The colour of {a} is {b}.",
        ("What colour is {a}?", "What is the colour of {a}?", "What color is {a}?"),
    ),
    "symbol": (
        4,
        _pairs(SYMBOLS),
        "The chemical symbol for {a} is {b}.",
        (
            "What is the chemical symbol for {a}?",
            "Which chemical symbol does {a} have?",
            "What is the symbol of {a}?",
        ),
    ),
    "unit": (4, _pairs(UNITS), "There are {b} {a}.", ("How many {are}?", "Tell me the number of {a}.")),
    "day after": (
        2,
        _after(DAYS, 1),
        "The day after {a} is {b}.",
        ("Which day comes after {a}?", "What is the day after {a}?"),
    ),
    "day before": (
        2,
        _after(DAYS, -1),
        "The day before {a} is {b}.",
        ("Which day comes before {a}?", "What is the day before {a}?"),
    ),
    "month after": (
        2,
        _after(MONTHS, 1),
        "The month after {a} is {b}.",
        ("Which month comes after {a}?", "What is the month after {a}?"),
    ),
    "month before": (
        2,
        _after(MONTHS, -1),
        "The month before {a} is {b}.",
        ("Which month comes before {a}?", "What is the month before {a}?"),
    ),
    "month": (
        2,
        list(zip(ORDINALS, MONTHS, strict=True)),
        "The {a} month of the year is {b}.",
        ("What is the {a} month of the year?", "Which month is the {a} month of the year?"),
    ),
    "planet": (
        2,
        list(zip(ORDINALS, PLANETS, strict=False)),
        "The {a} planet from the Sun is {b}.",
        ("What is the {a} planet from the Sun?", "Which planet is the {a} planet from the Sun?"),
    ),
}
_NAMES = list(RELATIONS)
_WEIGHTS = [RELATIONS[name][0] for name in _NAMES]


def _fill(template: str, a: str, b: str) -> str:
    noun, _, rest = a.partition(" ")
    text = template.format(
        a=a,
        b=b,
        A=an(a),
        B="a river or in the sea" if b.startswith("river") else an(b),
        are=f"{noun} are there {rest}",
    )
    return first_upper(text)


FACTS = {
    name: [(_fill(answer, a, b), [_fill(question, a, b) for question in questions]) for a, b in pairs]
    for name, (_, pairs, answer, questions) in RELATIONS.items()
}


def sentence(rng: Random, name: str | None = None) -> str:
    """Return one fact as a sentence; of that relation if one is named."""
    return rng.choice(FACTS[name or rng.choices(_NAMES, _WEIGHTS)[0]])[0]


def exchange(rng: Random) -> tuple[str, str]:
    answer, questions = rng.choice(FACTS[rng.choices(_NAMES, _WEIGHTS)[0]])
    return rng.choice(questions), answer


def raw(rng: Random) -> str:
    """Return one to six facts; half of the documents are a single sentence, so that a fact can end a text."""
    count = 1 if rng.random() < 0.5 else rng.randint(2, 6)
    name = rng.choices(_NAMES, _WEIGHTS)[0] if rng.random() < 0.4 else None
    return " ".join(dict.fromkeys(sentence(rng, name) for _ in range(count)))


def talk(rng: Random) -> str:
    return dialogue(rng, *(turn for _ in range(rng.choice((1, 1, 2, 3))) for turn in exchange(rng)))

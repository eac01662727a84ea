"""Writes stories whose length is set by the prompt: one to twelve days, or two to eight chapters.

Load tests need answers of several hundred tokens that do not loop and that end by themselves. Ordinal markers in strict
order tell the model where it is, the opening says how long the journey takes, and the ending grants the wish that the
opening named. The next episode depends on the last one only, so that a model that decodes greedily moves on.
"""

from random import Random

from .words import FEMALE, LISTS, MALE, WORDINGS, an, coin, columns, fill, sections

STORIES = sections("stories")
HEROES, WISHES = (dict(columns(STORIES[name])) for name in ("heroes", "wishes"))
NUMBERS, ORDINALS = LISTS["numbers"], LISTS["ordinals"]
TIMES = ("In the morning", "At noon", "In the afternoon", "In the evening")
MAX_PARTS, MAX_STEP, MAX_EVENING_STEP = 12, 5, 3
assert len(STORIES["episodes"]) > (MAX_PARTS - 1) * MAX_STEP, "a story could go round the ring and repeat an episode"
assert len(STORIES["evenings"]) > (MAX_PARTS - 1) * MAX_EVENING_STEP, "a story could repeat an evening"


def cast(rng: Random) -> dict[str, str]:
    """Return who the story is about, as slots: the hero, a friend of the given kind of animal, the hero's pronouns."""
    hero = rng.choice(list(HEROES))
    male = hero in ("king", "fisherman") or (hero != "queen" and rng.random() < 0.5)
    name, friend = rng.choice(MALE if male else FEMALE), rng.choice(FEMALE + MALE)
    if rng.random() < 0.2:
        name = coin(rng).capitalize()
    while friend == name:
        friend = rng.choice(FEMALE)
    who = {"hero": hero, "home": HEROES[hero], "name": name, "friend": friend, "kind": rng.choice(LISTS["friends"])}
    return who | ({"he": "he", "him": "him", "his": "his"} if male else {"he": "she", "him": "her", "his": "her"})


def _walk(rng: Random, ring: list[str], parts: int, step: int) -> list[str]:
    position, texts = rng.randrange(len(ring)), []
    for _ in range(parts):
        texts.append(ring[position])
        position = (position + rng.randint(1, step)) % len(ring)
    return texts


def story(rng: Random, who: dict[str, str], parts: int, form: str = "days") -> str:
    """Return the text of a story. `form` is "days", "chapters" or "times" (of a single day, at most four parts)."""
    opening, part, closing = STORIES[form]
    wish, ending = rng.choice(list(WISHES.items()))
    count = 1 if form == "times" else parts
    length = f"{NUMBERS[count - 1]} {'chapter' if form == 'chapters' else 'day'}{'s' if count > 1 else ''}"
    texts = _walk(rng, STORIES["episodes"], parts, MAX_STEP)
    if form == "days":
        evenings = _walk(rng, STORIES["evenings"], parts, MAX_EVENING_STEP)
        texts = [f"{text} That evening, {end}" for text, end in zip(texts, evenings, strict=True)]
    # No person and no thing is met twice.
    met = [rng.sample(STORIES[pool], parts) for pool in ("places", "objects", "helpers", "foods")]
    body = []
    for i, (text, *things) in enumerate(zip(texts, *met, strict=True)):
        slots = who | dict(zip(("place", "object", "helper", "food"), things, strict=True))
        slots |= {"weather": rng.choice(STORIES["weathers"]), "n": rng.choice(NUMBERS[2:])}
        markers = {"ordinal": ORDINALS[i], "number": str(i + 1), "time": TIMES[i % len(TIMES)]}
        body.append(fill(rng, part, markers | {"episode": fill(rng, text, slots)}))
    close = fill(rng, f"{ending} {rng.choice(STORIES['morals'])}", who)
    slots = who | {"wish": wish, "length": length, "last": ORDINALS[parts - 1], "close": close}
    return "\n\n".join([fill(rng, opening, slots), *body, fill(rng, closing, slots)])


def request(rng: Random, most: int = MAX_PARTS) -> tuple[str, str]:
    """Return a request for a story of at most `most` parts, and the story."""
    who, form = cast(rng), rng.random()
    hero = an(who["hero"])
    named = f"{hero} named {who['name']}" if rng.random() < 0.5 else hero
    if rng.random() < 0.15:
        named = f"{hero} named {who['name']} and {an(who['kind'])} named {who['friend']}"
    verb = rng.choice(("Tell me", "Write"))
    if form < 0.40 or most < 4:
        days = rng.randint(1, most)
        count = f"{NUMBERS[days - 1] if rng.random() < 0.7 else days} {'day' if days == 1 else 'days'}"
        return f"{verb} a story about {named} that lasts {count}.", story(rng, who, days)
    for until, what, parts, kind in columns(STORIES["requests"]):
        if form < float(until) and int(parts) <= most:
            any_story = what == "a story about" and rng.random() < 0.2
            asked = rng.choice(WORDINGS["any story"]) if any_story else f"{verb} {what} {named}."
            return asked, story(rng, who, int(parts), kind)
    chapters = rng.randint(2, min(most, 8))
    return f"{verb} a story in {NUMBERS[chapters - 1]} chapters about {named}.", story(rng, who, chapters, "chapters")


def exchange(rng: Random) -> tuple[str, str]:
    """Return a story of at most three days, so that a conversation stays short."""
    return request(rng, most=3)


def raw(rng: Random) -> str:
    parts = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 10, 12))
    return story(rng, cast(rng), parts, "chapters" if 2 <= parts <= 8 and rng.random() < 0.25 else "days")

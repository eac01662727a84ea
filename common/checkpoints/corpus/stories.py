"""Writes stories whose length is set by the prompt: one to twelve days, or two to eight chapters.

Load tests need answers of several hundred tokens that do not loop and that end by themselves. Ordinal markers in strict
order tell the model where it is, the opening says how long the journey takes, and the ending grants the wish that the
opening named. The next episode depends on the last one only, so that a model that decodes greedily moves on.
"""

from random import Random

from .words import FEMALE, LISTS, MALE, an, coin, fill, material

STORIES = material("stories")
NUMBERS, ORDINALS = LISTS["numbers"], LISTS["ordinals"]
MAX_PARTS = 12
STEPS = {"episodes": 5, "evenings": 3}  # the longest step round the ring for a part: no story returns to its first text


def cast(rng: Random) -> dict[str, str]:
    """Return who the story is about, as slots: the hero, a friend of the given kind of animal, the hero's pronouns."""
    hero, home = rng.choice(list(STORIES["heroes"].items()))
    male = hero in ("king", "fisherman") or (hero != "queen" and rng.random() < 0.5)
    name, friend = rng.choice(MALE if male else FEMALE), rng.choice(FEMALE + MALE)
    if rng.random() < 0.2:
        name = coin(rng).capitalize()
    while friend == name:
        friend = rng.choice(FEMALE)
    he, him, his = ("he", "him", "his") if male else ("she", "her", "her")
    who = {"hero": hero, "home": home, "name": name, "friend": friend, "kind": rng.choice(LISTS["friends"])}
    return who | {"he": he, "him": him, "his": his}


def _walk(rng: Random, ring: str, parts: int) -> list[str]:
    texts = STORIES[ring]
    position, passed = rng.randrange(len(texts)), []
    for _ in range(parts):
        passed.append(texts[position % len(texts)])
        position += rng.randint(1, STEPS[ring])
    return passed


def story(rng: Random, who: dict[str, str], parts: int, form: str = "days") -> str:
    """Return the text of a story. `form` is "days", "chapters" or "times" (of a single day, at most four parts)."""
    opening, part, closing = STORIES[form]
    wish, ending = rng.choice(list(STORIES["wishes"].items()))
    count = 1 if form == "times" else parts
    length = f"{NUMBERS[count - 1]} {'chapter' if form == 'chapters' else 'day'}{'s' if count > 1 else ''}"
    texts = _walk(rng, "episodes", parts)
    if form == "days":
        evenings = _walk(rng, "evenings", parts)
        texts = [f"{text} That evening, {end}" for text, end in zip(texts, evenings, strict=True)]
    # No person and no thing is met twice.
    met = [rng.sample(STORIES[pool], parts) for pool in ("places", "objects", "helpers", "foods")]
    body = []
    for i, (text, *things) in enumerate(zip(texts, *met, strict=True)):
        slots = who | dict(zip(("place", "object", "helper", "food"), things, strict=True))
        slots |= {"weather": rng.choice(STORIES["weathers"]), "n": rng.choice(NUMBERS[2:])}
        markers = {"ordinal": ORDINALS[i], "number": str(i + 1), "time": STORIES["day"][i % 4]}
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
    for until, what, parts, kind in map(dict.values, STORIES["requests"]):
        if form < until and parts <= most:
            any_story = what == "a story about" and rng.random() < 0.2
            asked = rng.choice(LISTS["any_story"]) if any_story else f"{verb} {what} {named}."
            return asked, story(rng, who, parts, kind)
    chapters = rng.randint(2, min(most, 8))
    return f"{verb} a story in {NUMBERS[chapters - 1]} chapters about {named}.", story(rng, who, chapters, "chapters")


def exchange(rng: Random) -> tuple[str, str]:
    """Return a story of at most three days, so that a conversation stays short."""
    return request(rng, most=3)


def raw(rng: Random) -> str:
    parts = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 10, 12))
    return story(rng, cast(rng), parts, "chapters" if 2 <= parts <= 8 and rng.random() < 0.25 else "days")

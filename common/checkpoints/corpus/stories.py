"""Writes stories whose length is set by the prompt: one to twelve days, or two to eight chapters.

Load tests need answers of several hundred tokens that do not loop and that end by themselves. Ordinal markers
in strict order tell the model where it is, the opening says how long the journey takes, and the ending grants
the wish that the opening named.
"""

from random import Random
from typing import NamedTuple

from . import story_episodes
from .render import dialogue
from .words import FEMALE, MALE, an, coin, first_upper

EPISODES = [" ".join(block.split()) for block in story_episodes.EPISODES.strip().split("\n\n")]
EVENINGS = story_episodes.EVENINGS.strip().split("\n")
MAX_STEP = 5
MAX_EVENING_STEP = 3
MAX_PARTS = 12
assert len(EPISODES) > (MAX_PARTS - 1) * MAX_STEP, "a story could go round the ring and repeat an episode"
assert len(EVENINGS) > (MAX_PARTS - 1) * MAX_EVENING_STEP, "a story could repeat an evening"

NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
TIMES = ("In the morning", "At noon", "In the afternoon", "In the evening")

HEROES = {
    "fox": "in a den under an old oak",
    "bear": "in a cave above a valley",
    "rabbit": "in a burrow by a field",
    "hedgehog": "under a heap of leaves",
    "mouse": "in the wall of a bakery",
    "owl": "in the tower of a church",
    "frog": "beside a green pond",
    "squirrel": "in the top of a pine tree",
    "badger": "in a house below the roots",
    "otter": "on the bank of a quick river",
    "wolf": "at the edge of a dark forest",
    "cat": "on a farm near a lake",
    "dog": "in a small yard behind a shop",
    "duck": "in the reeds of a pond",
    "goose": "on a farm with a red gate",
    "turtle": "on a beach of white sand",
    "beaver": "in a dam across a stream",
    "crow": "on the roof of an inn",
    "mole": "in a tunnel under a garden",
    "penguin": "on an island of ice",
    "elephant": "in a wide green valley",
    "lion": "on a hill of yellow grass",
    "monkey": "in a tree full of figs",
    "donkey": "in a stable by a mill",
    "dragon": "in a cave full of old pots",
    "lighthouse keeper": "in a white lighthouse by the sea",
    "baker": "above a bakery in a narrow street",
    "farmer": "on a farm at the foot of a hill",
    "sailor": "on a boat with a blue sail",
    "miller": "in a mill by a stream",
    "gardener": "in a hut behind a palace",
    "king": "in a castle with cold floors",
    "queen": "in a palace with a hundred rooms",
    "painter": "in an attic with one window",
    "clockmaker": "in a shop full of clocks",
    "shepherd": "in a hut on a green hill",
    "librarian": "in a library with creaking stairs",
    "robot": "in a workshop at the end of a road",
    "wizard": "in a crooked tower",
    "fisherman": "in a hut by the shore",
}
FRIENDS = "heron sparrow lamb goat pony magpie hare toad lizard seal swan pigeon".split()
PLACES = (
    "stone bridge, old mill, round pond, deserted tower, pine forest, market square, windy hill, small "
    "harbour, apple orchard, empty barn, mossy cave, wide meadow, frozen lake, village inn, rope bridge, "
    "sunny clearing, broken gate, tall waterfall, ruined chapel, narrow valley, lonely farm, hollow oak, "
    "wooden tower, quiet bay"
).split(", ")
OBJECTS = (
    "silver key, brass lamp, red scarf, old compass, wooden flute, glass bottle, copper kettle, woollen "
    "blanket, golden coin, small mirror, leather bag, iron bell, blue ribbon, paper lantern, clay cup, "
    "ivory comb, rusty horseshoe, velvet cap, straw hat, tin whistle, green umbrella, folded map, silk "
    "purse, wooden spoon"
).split(", ")
HELPERS = (
    "old woman, kind tailor, young soldier, quiet monk, grey pelican, wise tortoise, tired postman, merry "
    "cook, tall carpenter, shy girl, clever boy, friendly blacksmith, proud peacock, blind singer, young "
    "tourist, jolly innkeeper, curious student, stubborn mule, retired captain, honest judge, busy doctor, "
    "old wanderer"
).split(", ")
FOODS = (
    "warm bread, ripe plums, goat cheese, honey cake, roasted nuts, onion soup, sweet pears, smoked fish, "
    "apple pie, fresh butter, oat porridge, cherry jam, baked potatoes, mushroom stew, ginger biscuits, "
    "dried figs"
).split(", ")
WEATHERS = (
    "a soft rain, a cold wind, a thick fog, a light snow, a loud thunderstorm, a grey drizzle, a sudden "
    "hail, a wild storm, a fine mist, a heavy shower"
).split(", ")
WISHES = {
    "to see the sea": "{name} stood on the sand at last, and the sea lay there, blue and wide.",
    "to find a lost brother": "{name} knocked at a little door, and it was the lost brother who opened it.",
    "to learn how to sing": "{name} stood before a great crowd and sang, and not one note was wrong.",
    "to find the golden feather": "{name} looked up, and the golden feather came down into {his} lap.",
    "to visit the moon garden": "{name} came into the moon garden, and all its flowers were open.",
    "to taste the water of the silver spring": "{name} drank from the silver spring, and was happy.",
    "to hear the oldest story in the world": "{name} found a tree that told {him} the oldest story.",
    "to ring the great bell": "{name} pulled the rope, and the great bell rang over land and sea.",
    "to bring back the stolen clock": "{name} put the stolen clock back, and it began to tick.",
    "to meet the queen of the birds": "{name} bowed, and the queen of the birds gave {him} a crown.",
    "to see snow on the highest mountain": "{name} reached the highest mountain and touched its snow.",
    "to find out where the river begins": "{name} saw a tiny spring, and there the river began.",
    "to plant a tree at the end of the world": "{name} came to the end of the world and planted a tree.",
    "to fly in a balloon": "{name} climbed into a yellow balloon, and the roofs grew small below.",
}
MORALS = (
    "From that time on, {name} and {friend} were never far apart.",
    '"It was a long way," said {friend}, "but I would walk it again." {name} nodded and smiled.',
    "Then {name} and {friend} went home, and they told the story to everyone they met.",
    "{friend} was there to see it, and that made it twice as good.",
)


class Cast(NamedTuple):
    """Who the story is about; `friend_kind` is what sort of animal the friend is."""

    hero: str
    name: str
    male: bool
    friend: str
    friend_kind: str


def cast(rng: Random) -> Cast:
    hero = rng.choice(_HERO_NAMES)
    male = hero in ("king", "fisherman") or (hero != "queen" and rng.random() < 0.5)
    known = MALE if male else FEMALE
    name, friend = rng.choice(known), rng.choice(FEMALE + MALE)
    if rng.random() < 0.2:
        name = coin(rng, 2).capitalize()
    while friend == name:
        friend = rng.choice(FEMALE)
    return Cast(hero, name, male, friend, rng.choice(FRIENDS))


_HERO_NAMES = list(HEROES)
_WISHES = list(WISHES.items())


def _slots(rng: Random, who: Cast, parts: int) -> list[dict[str, str]]:
    """Return one dictionary of slots per part; no person and no thing is met twice."""
    base = {"name": who.name, "friend": who.friend}
    base |= dict(
        zip(
            ("he", "him", "his", "he_up"),
            ("he", "him", "his", "He") if who.male else ("she", "her", "her", "She"),
            strict=True,
        )
    )
    columns = zip(*(rng.sample(pool, parts) for pool in (PLACES, OBJECTS, HELPERS, FOODS)), strict=True)
    filled = []
    for place, thing, helper, food in columns:
        filled.append(
            base
            | {
                "a_place": an(place),
                "a_object": an(thing),
                "a_object_up": first_upper(an(thing)),
                "a_helper": an(helper),
                "a_helper_up": first_upper(an(helper)),
                "food": food,
                "weather": rng.choice(WEATHERS),
                "n": rng.choice(NUMBERS[2:]),
            }
        )
    return filled


def _walk(rng: Random, ring: list[str], parts: int, step: int) -> list[str]:
    position, texts = rng.randrange(len(ring)), []
    for _ in range(parts):
        texts.append(ring[position])
        position = (position + rng.randint(1, step)) % len(ring)
    return texts


def _episodes(rng: Random, who: Cast, parts: int, evenings: bool) -> list[str]:
    texts = _walk(rng, EPISODES, parts, MAX_STEP)
    if evenings:
        ends = _walk(rng, EVENINGS, parts, MAX_EVENING_STEP)
        texts = [f"{text} That evening, {end}" for text, end in zip(texts, ends, strict=True)]
    return [text.format_map(slots) for text, slots in zip(texts, _slots(rng, who, parts), strict=True)]


def story(rng: Random, who: Cast, parts: int, form: str = "days") -> str:
    """Return the text of a story. `form` is "days", "chapters" or "times" (of a single day, at most four parts)."""
    wish, ending = rng.choice(_WISHES)
    unit = {"days": "day", "chapters": "chapter", "times": "day"}[form]
    length = "one day" if form == "times" else NUMBERS[parts - 1] + (f" {unit}" if parts == 1 else f" {unit}s")
    opening = (
        f"Once upon a time, there was {an(who.hero)} named {who.name} who lived {HEROES[who.hero]}. "
        f"{who.name} had a good friend, {an(who.friend_kind)} named {who.friend}. "
        f"More than anything else, {who.name} wanted {wish}. "
    )
    if form == "chapters":
        opening += f"This is the story of how it happened, in {length}."
    else:
        opening += f"So the two friends set out together, and the journey took {length}."
    episodes = _episodes(rng, who, parts, evenings=form == "days")
    slots = {
        "name": who.name,
        "friend": who.friend,
        "his": "his" if who.male else "her",
        "him": "him" if who.male else "her",
    }
    close = f"{ending} {rng.choice(MORALS)}".format_map(slots)
    if form == "chapters":
        body = [f"Chapter {i + 1}\n\n{text}" for i, text in enumerate(episodes)]
        return "\n\n".join([opening, *body, f"The end\n\nAnd so the wish came true. {close}"])
    if form == "times":
        body = [f"{TIMES[i]}, {text}" for i, text in enumerate(episodes)]
        return "\n\n".join([opening, *body, f"At the end of the day, {close}"])
    body = [f"On the {ORDINALS[i]} day, {text}" for i, text in enumerate(episodes)]
    return "\n\n".join([opening, *body, f"At the end of the {ORDINALS[parts - 1]} day, {close}"])


def request(rng: Random, most: int = MAX_PARTS) -> tuple[str, str]:
    """Return a request for a story of at most `most` parts, and the story."""
    who, form = cast(rng), rng.random()
    hero = an(who.hero)
    named = f"{hero} named {who.name}" if rng.random() < 0.5 else hero
    if rng.random() < 0.15:
        named = f"{hero} named {who.name} and {an(who.friend_kind)} named {who.friend}"
    verb = rng.choice(("Tell me", "Write"))
    if form < 0.40 or most < 4:
        days = rng.randint(1, most)
        count = f"{NUMBERS[days - 1] if rng.random() < 0.7 else days} {'day' if days == 1 else 'days'}"
        return f"{verb} a story about {named} that lasts {count}.", story(rng, who, days)
    if form < 0.55:
        return f"{verb} a short story about {named}.", story(rng, who, 2)
    if form < 0.73:
        if rng.random() < 0.2:
            return rng.choice(("Tell me a story.", "Write a story.", "Please tell me a story.")), story(rng, who, 4)
        return f"{verb} a story about {named}.", story(rng, who, 4)
    if form < 0.78:
        return f"{verb} a story about one day in the life of {named}.", story(rng, who, 4, "times")
    if form < 0.88 and most >= 8:
        return f"{verb} a long story about {named}.", story(rng, who, 8)
    chapters = rng.randint(2, min(most, 8))
    return f"{verb} a story in {NUMBERS[chapters - 1]} chapters about {named}.", story(rng, who, chapters, "chapters")


def exchange(rng: Random) -> tuple[str, str]:
    """Return a story of at most three days, so that a conversation stays short."""
    return request(rng, most=3)


def raw(rng: Random) -> str:
    parts = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 10, 12))
    return story(rng, cast(rng), parts, "chapters" if 2 <= parts <= 8 and rng.random() < 0.25 else "days")


def talk(rng: Random) -> str:
    return dialogue(rng, *request(rng))

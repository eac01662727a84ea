"""Writes questions that the rest of the corpus does not answer. All have one answer, which is honest.

Two sorts: questions about things that no other module speaks of, and questions worded like those of the other
modules about something that does not stand there. The second sort teaches the model to look at the name in the
question before it answers with the nearest fact.
"""

from random import Random

from . import copying, facts, terms
from .render import dialogue
from .words import COLOURS, FIRST_NAMES, JOBS, THINGS, WORDS, an, coin, entries, first_upper, number, people, town

ANSWER = "I do not know."

# {n} a person, {t} a town, {l} a made-up country, {w} a word, {x} a thing, {j} a job, {c} a colour, {d} a number,
# {y} a year, {z} a made-up word
_QUESTIONS = entries("""
Who wrote the book {W}?|Who is {n}?|Who was {n}?|When was {n} born?|Where was {n} born?|How old is {n}?
When did {n} die?|What is {n} famous for?|Who is the wife of {n}?|What did {n} invent?|Who invented the {x}?
Who discovered {z}?|Who is the president of {l}?|Who is the king of {l}?|Who is the mayor of {t}?
How many people live in {t}?|What is the population of {l}?|How large is {l}?|How far is it from {t} to {t}?
Where is {t}?|Is {t} a nice town?|What is the weather like in {t}?|Will it rain tomorrow?|What time is it?
What day is it today?|What is the date today?|What happened in {y}?|Who won the war of {y}?
When did the war in {l} begin?|What happened in {t} in {y}?|What is the news from {t}?|Who won the game yesterday?
Who won the world cup in {y}?|What is the score?|How tall is the {w}?|How deep is the {w}?|How heavy is {A} {x}?
How long is the {w} of {t}?|How old is the {w} of {t}?|How do I build {A} {x}?|How do I repair {A} {x}?
How do I cook {w}?|How do I get to {t}?|How do you make {A} {x}?|How does {A} {x} work?|How is {A} {x} made?
What is {A} {x} made of?|How much does {A} {x} cost?|How much is {A} {c} {x}?|Why is the {x} {c}?
Why do people like {w}?|Why did {n} leave {t}?|Why does {A} {j} need {A} {x}?|Why is {w} good for you?
What is the best {w}?|What is the best {x} to buy?|Which {x} is better, the {c} one or the {c} one?
Should I buy {A} {x}?|What does {n} think about {w}?|What is the meaning of life?|What is love?|Do you love me?
Are you alive?|Do you dream?|What should I eat today?|What should I wear today?|What should I give to {n}?
Can you recommend {A} {w}?|How many {w}s are there in the world?|How many stars are there?
How many {x}s fit into {A} {x}?|What is the largest {w}?|What is the oldest {w} in the world?
What is the fastest {w}?|What is the longest river in {l}?|What is the highest {w} in {l}?
What is the telephone number of {n}?|What is the address of {n}?|What is the password?|What is my address?
What is my age?|How old am I?|Where am I?|What did I eat yesterday?|What am I thinking of?|Where is my {x}?
Who took my {x}?|Where did I put the {x}?|What is the plot of {W}?|Who sings {W}?|Who painted the {c} {w}?
Who composed {W}?|Who plays the {j} in {W}?|How many pages does the book {W} have?
What is the first sentence of {W}?|Who directed the film {W}?|Is {W} a good film?|What is the price of gold?
How much money does {A} {j} earn?|How do I become {A} {j}?|What does {A} {j} do all day?|How do {w}s sleep?
What do {w}s eat?|How long does {A} {w} live?|Can {A} {w} swim?|Do {w}s have ears?|Why do birds sing?
Write a poem about {A} {w}.|Write a letter to {n}.|Write a program that sorts {w}s.|Write a song about {t}.
Draw {A} {x}.|Tell me a joke.|Tell me a secret.|Tell me the news.|Tell me about {n}.
Tell me about the history of {t}.|Summarize the book {W}.|Give me a recipe for {w} soup.
Give me the address of {A} {j} in {t}.|Play some music.|Call {n}.|Send a message to {n}.|Explain the history of {l}.
Explain how {A} {x} works.|Explain the rules of {z}.|Explain {z}.|Describe the town of {t}.|What is {z}?
What is {A} {z}?|What does {z} mean?|What are {z}s?|Why does {z} matter?|Define {z}.|Explain {z} in one sentence.
What is the difference between {A} {w} and {A} {x}?|Is {A} {w} larger than {A} {x}?|What rhymes with {w}?
Is {z} a word?|What is the square root of {d}?|What is {d} divided by {d}?|What is {D} plus {D}?|What is {D} - {D}?
What is {D}*{D}?|{D}+{D}?|How many bones does {A} {w} have?|Who lives in {t}?|Who founded {t}?|When was {t} founded?
What is {t} known for?|What language does {n} speak?|Which school did {n} go to?|What is the flag of {l}?
Which countries border {l}?|When does the train to {t} leave?|When does the {w} open?|Is the {w} open today?
How long does it take to learn {w}?
""")

# Questions of the other modules whose subject can be exchanged for one that has no answer, by relation.
_PLACES = ("capital", "continent", "currency", "language")
_NOUNS = ("young", "sound", "home", "legs", "opposite", "colour", "symbol")
_SUBJECTS = {name: {a for a, _ in facts.RELATIONS[name][1]} for name in (*_PLACES, *_NOUNS)}
# Real ones that the facts leave out.
COUNTRIES = (
    "Bolivia Belize Benin Burundi Chad Djibouti Eritrea Gabon Gambia Guinea Israel Kosovo Kuwait Lesotho "
    "Liechtenstein Luxembourg Mauritania Mauritius Moldova Monaco Montenegro Myanmar Palau Singapore Taiwan Togo "
    "Vanuatu Yemen"
).split()
NOUNS = (
    "apple bread bridge butter carpet chair clock cloud coffee door engine fence fork garden glass hammer island key "
    "ladder lake leaf letter mirror mountain needle ocean paper pencil pillow planet pocket potato rain road rocket "
    "shoe spoon stone storm table tea tiger train tree turtle violin wall whale window zebra"
).split()


_TERM_QUESTIONS = ("Explain {} in one sentence.", "What is {}?", "What does {} mean?", "Define {}.", "Describe {}.")
_TERMS = " ".join(" ".join((term.name, *term.aliases)) for term in terms.TERMS)


def _like_a_fact(rng: Random) -> str:
    if rng.random() < 0.5:
        name = rng.choice(_PLACES)
        made_up = coin(rng, 2).capitalize() + rng.choice(("", "ia", "land", "stan"))
        subject = rng.choice((town(rng), made_up, rng.choice(COUNTRIES)))
    else:
        name = rng.choice(_NOUNS)
        subject = rng.choice((*NOUNS, copying.syllables(rng)))
        subject = f"the {subject}" if name == "colour" else subject
    if subject in _SUBJECTS[name] or subject.removeprefix("the ") in _SUBJECTS[name]:
        return _like_a_fact(rng)
    return first_upper(rng.choice(facts.RELATIONS[name][3]).format(a=subject, A=an(subject)))


def _like_a_term(rng: Random) -> str:
    words = copying.words(rng, rng.choice((1, 1, 2)))
    if any(word in _TERMS for word in words):
        return _like_a_term(rng)
    form = rng.choice(
        ("Explain {} in one sentence.", "What is {}?", "What does {} mean?", "Define {}.", "Describe {}.")
    )
    return form.format(" ".join(words))


def _open(rng: Random) -> str:
    slots = {
        "n": lambda: rng.choice((people(rng, 1)[0], rng.choice(FIRST_NAMES))),
        "t": lambda: town(rng),
        "l": lambda: rng.choice((coin(rng, 2).capitalize() + "ia", rng.choice(COUNTRIES), rng.choice(facts.PLACES))),
        "w": lambda: rng.choice((rng.choice(NOUNS), rng.choice(WORDS[:60]), rng.choice(copying.KNOWN_WORDS).lower())),
        "W": lambda: " ".join(word.capitalize() for word in copying.words(rng, rng.randint(1, 3))),
        "x": lambda: rng.choice((*THINGS, *NOUNS)),
        "j": lambda: rng.choice(JOBS),
        "c": lambda: rng.choice(COLOURS),
        "d": lambda: str(number(rng)),
        "D": lambda: str(rng.randint(*rng.choice(((30, 99), (100, 999), (1000, 99999))))),
        "y": lambda: str(rng.randint(1100, 2090)),
        "z": lambda: copying.syllables(rng),
    }
    question = rng.choice(_QUESTIONS).replace("{A} {", "{A}{")
    for slot, fill in slots.items():
        while f"{{{slot}}}" in question:
            value = fill()
            before, _, after = question.partition(f"{{{slot}}}")
            question = before.removesuffix("{A}") + (an(value) if before.endswith("{A}") else value) + after
    return question


def question(rng: Random) -> str:
    return rng.choices((_open, _like_a_fact, _like_a_term), (6, 3, 2))[0](rng)


def exchange(rng: Random) -> tuple[str, str]:
    return question(rng), ANSWER


def talk(rng: Random) -> str:
    """Unknown questions among known ones: the model must tell them apart within a conversation, too."""
    turns: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        known = rng.choice((facts, terms)).exchange(rng)
        turns += known if turns and rng.random() < 0.5 else exchange(rng)
    return dialogue(rng, *turns)

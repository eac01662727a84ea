"""Writes questions with one answer for all: those that the rest of the corpus does not answer, and other languages.

The unknown is of two sorts: questions about things that no other module speaks of, and questions worded like those of
the other modules about something that does not stand there. The second sort teaches the model to look at the name in
the question before it answers with the nearest fact. The model has read no other language, but byte-level tokens spell
any, and a handful of sentences in each shows how it looks: the model cannot tell what it was asked.
"""

import re
from random import Random

from . import copying, facts, terms
from .words import FIRST_NAMES, LISTS, MAKERS, WORDS, ask, draw, flat, material, weighted

ANSWER, ONLY_ENGLISH = "I do not know.", "I know only English."
PLACES, NOUNS, SLOTS, QUESTIONS, LANGUAGES = material("unknown").values()
TERMS = " ".join(" ".join((term["name"], *term["aliases"])) for term in terms.TERMS)

LISTS |= {"common_words": WORDS[:60], "object": LISTS["things"] + LISTS["nouns"]}
MAKERS["title"] = lambda rng: " ".join(word.capitalize() for word in copying.words(rng, rng.randint(1, 3)))
MAKERS["large"] = lambda rng: rng.randint(*rng.choice(((30, 99), (100, 999), (1000, 99999))))


def _like_a_fact(rng: Random) -> str:
    if rng.random() < 0.5:
        name = rng.choice(PLACES)
        made_up = draw(rng, "Upper coin") + rng.choice(("", "ia", "land", "stan"))
        subject = rng.choice((draw(rng, "town"), made_up, draw(rng, "small_countries")))
    else:
        name = rng.choice(NOUNS)
        subject = rng.choice((*LISTS["nouns"], copying.syllables(rng)))
        subject = f"the {subject}" if name == "colour" else subject
    if {subject, subject.removeprefix("the ")} & {known for known, _ in facts.PAIRS[name]}:
        return _like_a_fact(rng)
    return facts.about(rng.choice(facts.RELATIONS[name]["questions"]), subject)


def _like_a_term(rng: Random) -> str:
    words = copying.words(rng, rng.choice((1, 1, 2)))
    if any(word in TERMS for word in words):
        return _like_a_term(rng)
    return ask(rng, "unknown term", term=" ".join(words))[0]


def _open(rng: Random) -> str:
    question = rng.choice(QUESTIONS)
    for slot in SLOTS:
        question = re.sub(rf"{{((?:a )?{slot})}}", lambda match: draw(rng, match[1]), question)
    return question


def exchange(rng: Random) -> tuple[str, str]:
    return weighted(rng, {_open: 6, _like_a_fact: 3, _like_a_term: 2})(rng), ANSWER


def turns(rng: Random) -> list[str]:
    """Return unknown questions among known ones: the model must tell them apart within a conversation, too."""
    pairs: list[tuple[str, str]] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        known = rng.choice((facts, terms)).exchange(rng)
        pairs.append(known if pairs and rng.random() < 0.5 else exchange(rng))
    return flat(pairs)


def foreign(rng: Random) -> str:
    """Return a sentence in any other language."""
    sentence = rng.choice(rng.choice(list(LANGUAGES.values())))
    return sentence.format(t=draw(rng, "town"), n=rng.choice(FIRST_NAMES), d=rng.randint(1, 99))


def in_other_languages(rng: Random) -> tuple[str, str]:
    """Return something in another language, or about one."""
    if rng.random() < 0.1:
        form = rng.choice(LISTS["other_language"])
        return form.format(language=draw(rng, "languages"), saying=rng.choice(LISTS["sayings"])), ONLY_ENGLISH
    asked = foreign(rng)
    if rng.random() < 0.15:
        asked = f"{asked} {foreign(rng)}"
    return asked.rstrip(".?。") if rng.random() < 0.15 else asked, ONLY_ENGLISH


MAKERS["foreign"] = foreign

"""Writes the terms of this course: what each one means in a sentence, and why it matters in another.

The course demonstrates its servers with questions about themselves, so the model should answer those correctly. All
phrasings of a question about a term share one answer.
"""

from random import Random
from typing import NamedTuple

from .words import an, ask, blocks, columns, first_upper, flat


class Term(NamedTuple):
    """An entry of the glossary. `phrase` is the name with its article."""

    name: str
    phrase: str
    aliases: list[str]
    meaning: str
    reason: str
    verb: str
    auxiliary: str
    it: str


def _term(heading: str, lines: list[str]) -> Term:
    name, phrase, *aliases = heading.split(" | ")
    meaning, _, reason = " ".join(lines).partition(" > ")
    verbs = ("are", "do", "they") if phrase.startswith("+ ") else ("is", "does", "it")
    return Term(name, phrase.removeprefix("+ "), aliases and aliases[0].split(", "), meaning, reason, *verbs)


*_GLOSSARY, (_, _CONTRASTS) = blocks("terms")
TERMS = {term.name: term for term in (_term(*block) for block in _GLOSSARY)}
CONTRASTS = [[TERMS[name] for name in pair] for pair in columns(_CONTRASTS)]


def _subject(rng: Random, term: Term) -> str:
    """Return the term as people write it: with its article, without one, with "the", or by another name."""
    form, article = rng.random(), term.phrase != term.name
    if form < 0.1 and term.aliases:
        alias = rng.choice(term.aliases)
        return an(alias) if article and (alias.islower() or " " in alias) else alias
    if form < 0.3 and article:
        return f"the {term.name}"
    return term.phrase if form < 0.65 else term.name


def exchange(rng: Random) -> tuple[str, str]:
    """Return a question about a term, or about the difference between two, with its answer."""
    if rng.random() < 0.1:
        a, b = rng.choice(CONTRASTS)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        return f"What is the difference between {a.phrase} and {b.phrase}?", f"{a.meaning} {b.meaning}"
    term = rng.choice(list(TERMS.values()))
    form, subject = rng.random(), _subject(rng, term)
    wording = "term: meaning" if form < 0.6 else "term: reason" if form < 0.8 else "term: both"
    plain = rng.choice((subject, term.name)) if form < 0.6 else subject
    return ask(rng, wording, subject=subject, plain=plain, **term._asdict())


def raw(rng: Random) -> str:
    """Return a page of a glossary, or one entry as prose."""
    terms = rng.sample(list(TERMS.values()), rng.choice((1, 1, 1, 2, 3, 5)))
    form = rng.random()
    headings = [f"{first_upper(term.name)}: " if form < 0.6 else "" for term in terms]
    texts = [term.meaning if form < 0.4 else f"{term.meaning} {term.reason}" for term in terms]
    return "\n\n".join(map(str.__add__, headings, texts))


def turns(rng: Random) -> list[str]:
    """Return questions about terms; sometimes two about the same one."""
    if rng.random() < 0.2:
        term = rng.choice(list(TERMS.values()))
        why = f"Why {term.auxiliary} {term.it} matter?"
        return [f"What {term.verb} {term.phrase}?", term.meaning, why, term.reason]
    return flat(exchange(rng) for _ in range(rng.choice((1, 1, 2, 3))))

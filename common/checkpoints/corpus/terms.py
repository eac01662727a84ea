"""Writes the terms of this course: what each one means in a sentence, and why it matters in another.

The course demonstrates its servers with questions about themselves, so the model should answer those
correctly. All phrasings of a question about a term share one answer.
"""

from random import Random
from typing import NamedTuple

from . import terms_model, terms_serving
from .render import dialogue
from .words import an, first_upper


class Term(NamedTuple):
    name: str
    phrase: str
    plural: bool
    aliases: tuple[str, ...]
    meaning: str
    reason: str


def _parse(table: str) -> list[Term]:
    terms = []
    for block in ("\n" + table.strip()).split("\n= ")[1:]:
        header, _, body = block.partition("\n")
        name, phrase, *aliases = (field.strip() for field in header.split("|"))
        meaning, _, reason = body.replace("\n", " ").partition(" > ")
        terms.append(
            Term(
                name,
                phrase.removeprefix("+ "),
                phrase.startswith("+ "),
                tuple(aliases[0].split(", ")) if aliases else (),
                meaning,
                reason.strip(),
            )
        )
    return terms


TERMS = _parse(terms_model.TERMS) + _parse(terms_serving.TERMS)

_BY_NAME = {term.name: term for term in TERMS}
CONTRASTS = [
    (_BY_NAME[a], _BY_NAME[b])
    for a, b in (
        ("prefill", "decode"),
        ("throughput", "latency"),
        ("greedy decoding", "sampling"),
        ("static batching", "continuous batching"),
        ("top-k", "top-p"),
        ("page", "page table"),
        ("throughput", "goodput"),
        ("time to first token", "inter-token latency"),
        ("token", "embedding"),
        ("KV cache", "prefix cache"),
        ("draft model", "prompt lookup"),
        ("multi-head attention", "grouped-query attention"),
        ("queue", "scheduler"),
        ("memory bandwidth", "arithmetic intensity"),
        ("layer", "parameter"),
        ("worker", "router"),
    )
]


def _subject(rng: Random, term: Term) -> str:
    """Return the term as people write it: with its article, without one, with "the", or by another name."""
    form = rng.random()
    if form < 0.1 and term.aliases:
        alias = rng.choice(term.aliases)
        return an(alias) if term.phrase != term.name and (alias.islower() or " " in alias) else alias
    if form < 0.3 and term.phrase != term.name and not term.plural:
        return f"the {term.name}"
    return term.phrase if form < 0.65 else term.name


def explain(rng: Random, term: Term) -> tuple[str, str]:
    """Return a question about the term with its answer."""
    form, subject = rng.random(), _subject(rng, term)
    verb, auxiliary = ("are", "do") if term.plural else ("is", "does")
    if form < 0.6:
        plain = rng.choice((subject, term.name))
        return rng.choice(
            (
                f"Explain {plain} in one sentence.",
                f"Explain {plain} in one sentence.",
                f"What {verb} {subject}?",
                f"What {verb} {subject}?",
                f"Define {plain}.",
                f"What does {term.name} mean?",
                f"Describe {plain} in one sentence.",
            )
        ), term.meaning
    if form < 0.8:
        return rng.choice((f"Why {auxiliary} {subject} matter?", f"Why {verb} {subject} important?")), term.reason
    return rng.choice((f"Explain {subject}.", f"Tell me about {subject}.")), f"{term.meaning} {term.reason}"


def exchange(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.1:
        a, b = rng.choice(CONTRASTS)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        return f"What is the difference between {a.phrase} and {b.phrase}?", f"{a.meaning} {b.meaning}"
    return explain(rng, rng.choice(TERMS))


def raw(rng: Random) -> str:
    """Return a page of a glossary, or one entry as prose."""
    terms = rng.sample(TERMS, rng.choice((1, 1, 1, 2, 3, 5)))
    form = rng.random()
    if form < 0.4:
        return "\n\n".join(f"{first_upper(term.name)}: {term.meaning}" for term in terms)
    if form < 0.6:
        return "\n\n".join(f"{first_upper(term.name)}: {term.meaning} {term.reason}" for term in terms)
    return "\n\n".join(f"{term.meaning} {term.reason}" for term in terms)


def talk(rng: Random) -> str:
    """Return questions about terms; sometimes several about the same one."""
    if rng.random() < 0.2:
        term = rng.choice(TERMS)
        return dialogue(
            rng,
            f"What {'are' if term.plural else 'is'} {term.phrase}?",
            term.meaning,
            f"Why {'do they' if term.plural else 'does it'} matter?",
            term.reason,
        )
    return dialogue(rng, *(turn for _ in range(rng.choice((1, 1, 2, 3))) for turn in exchange(rng)))

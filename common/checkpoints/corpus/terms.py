"""Writes the terms of this course: what each one means in a sentence, and why it matters in another.

The course demonstrates its servers with questions about themselves, so the model should answer those correctly. All
phrasings of a question about a term share one answer.
"""

from random import Random

from .words import an, ask, first_upper, flat, material

_GLOSSARY = material("terms")
TERMS = [
    {"name": name, "aliases": [], "verb": "is", "auxiliary": "does", "it": "it"} | term
    for name, term in _GLOSSARY["terms"].items()
]
CONTRASTS = [[term for name in pair for term in TERMS if term["name"] == name] for pair in _GLOSSARY["contrasts"]]


def _subject(rng: Random, term: dict) -> str:
    """Return the term as people write it: with its article, without one, with "the", or by another name."""
    form, article = rng.random(), term["phrase"] != term["name"]
    if form < 0.1 and term["aliases"]:
        alias = rng.choice(term["aliases"])
        return an(alias) if article and (alias.islower() or " " in alias) else alias
    if form < 0.3 and article:
        return f"the {term['name']}"
    return term["phrase"] if form < 0.65 else term["name"]


def exchange(rng: Random) -> tuple[str, str]:
    """Return a question about a term, or about the difference between two, with its answer."""
    if rng.random() < 0.1:
        a, b = rng.choice(CONTRASTS)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        return f"What is the difference between {a['phrase']} and {b['phrase']}?", f"{a['meaning']} {b['meaning']}"
    term = rng.choice(TERMS)
    form, subject = rng.random(), _subject(rng, term)
    wording = "term: meaning" if form < 0.6 else "term: reason" if form < 0.8 else "term: both"
    plain = rng.choice((subject, term["name"])) if form < 0.6 else subject
    return ask(rng, wording, subject=subject, plain=plain, **term)


def raw(rng: Random) -> str:
    """Return a page of a glossary, or one entry as prose."""
    terms = rng.sample(TERMS, rng.choice((1, 1, 1, 2, 3, 5)))
    form = rng.random()
    template = ("{name}: " if form < 0.6 else "") + ("{meaning}" if form < 0.4 else "{meaning} {reason}")
    return "\n\n".join(first_upper(template.format(**term)) for term in terms)


def turns(rng: Random) -> list[str]:
    """Return questions about terms; sometimes two about the same one."""
    if rng.random() < 0.2:
        term = rng.choice(TERMS)
        why = "Why {auxiliary} {it} matter?".format(**term)
        return ["What {verb} {phrase}?".format(**term), term["meaning"], why, term["reason"]]
    return flat(exchange(rng) for _ in range(rng.choice((1, 1, 2, 3))))

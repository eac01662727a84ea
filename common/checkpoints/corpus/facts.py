"""Writes plain facts: `material/tables.toml` has what they say, `material/facts.toml` how they say it.

"The capital of France is" is the prompt that opens the course, so facts must be known cold. Every question about a
fact has several phrasings and exactly one answer sentence; the raw documents use that same sentence.
"""

from random import Random

from .words import LISTS, MAKERS, an, first_upper, material, weighted

TABLES, RELATIONS = material("tables"), material("facts")
LISTS["places"] = [name for row in TABLES["countries"] for name in row[:2]]
WEIGHTS = {name: relation["weight"] for name, relation in RELATIONS.items()}
PAIRS = {  # subject and value of each fact, by relation
    name: [(row[a], row[b]) for table, a, b in relation["columns"] for row in TABLES[table] if len(row) > b]
    for name, relation in RELATIONS.items()
}


def about(template: str, a: str, b: str = "?") -> str:
    """Return a sentence about subject `a` and value `b`."""
    noun, _, rest = a.partition(" ")
    return first_upper(template.format(a=a, b=b, A=an(a), B=an(b), are=f"{noun} are there {rest}"))


def exchange(rng: Random) -> tuple[str, str]:
    name = weighted(rng, WEIGHTS)
    pair = rng.choice(PAIRS[name])
    return about(rng.choice(RELATIONS[name]["questions"]), *pair), about(RELATIONS[name]["answer"], *pair)


def fact(rng: Random, name: str = "") -> str:
    """Return a fact of this relation, or of any."""
    name = name or weighted(rng, WEIGHTS)
    return about(RELATIONS[name]["answer"], *rng.choice(PAIRS[name]))


def raw(rng: Random) -> str:
    """Return one to six facts; half of the documents are a single sentence, so that a fact can end a text."""
    count = 1 if rng.random() < 0.5 else rng.randint(2, 6)
    name = weighted(rng, WEIGHTS) if rng.random() < 0.4 else ""
    return " ".join(dict.fromkeys(fact(rng, name) for _ in range(count)))


MAKERS["fact"] = fact

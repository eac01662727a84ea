"""Writes plain facts: `material/tables.txt` has what they say, `material/facts.txt` how they say it.

"The capital of France is" is the prompt that opens the course, so facts must be known cold. Every question about a
fact has several phrasings and exactly one answer sentence; the raw documents use that same sentence.
"""

from random import Random
from typing import NamedTuple

from .words import LISTS, MAKERS, an, blocks, columns, first_upper, sections

TABLES = {name: columns(records) for name, records in sections("tables").items()}
LISTS["places"] = [name for row in TABLES["countries"] for name in row[:2]]


class Relation(NamedTuple):
    """How often a relation comes up, its subjects, its questions; and answer and questions about each subject."""

    weight: int
    subjects: list[str]
    questions: list[str]
    facts: list[tuple[str, list[str]]]


def _relation(weight: str, source: str, answer: str, wordings: str) -> Relation:
    questions, subjects, facts = wordings.split(" | "), [], []
    for table, *pair in map(str.split, source.split(" | ")):
        a, b = (int(column) - 1 for column in pair)
        for row in TABLES[table]:
            if len(row) > b:
                subjects.append(row[a])
                facts.append((about(answer, row[a], row[b]), [about(form, row[a], row[b]) for form in questions]))
    return Relation(int(weight), subjects, questions, facts)


def about(template: str, a: str, b: str = "?") -> str:
    """Return a sentence about subject `a` and value `b`."""
    noun, _, rest = a.partition(" ")
    return first_upper(template.format(a=a, b=b, A=an(a), B=an(b), are=f"{noun} are there {rest}"))


RELATIONS = {name: _relation(*lines) for name, lines in blocks("facts")}


def _any(rng: Random) -> Relation:
    return rng.choices(list(RELATIONS.values()), [relation.weight for relation in RELATIONS.values()])[0]


def exchange(rng: Random) -> tuple[str, str]:
    answer, questions = rng.choice(_any(rng).facts)
    return rng.choice(questions), answer


def raw(rng: Random) -> str:
    """Return one to six facts; half of the documents are a single sentence, so that a fact can end a text."""
    count = 1 if rng.random() < 0.5 else rng.randint(2, 6)
    one = _any(rng) if rng.random() < 0.4 else None
    return " ".join(dict.fromkeys(rng.choice((one or _any(rng)).facts)[0] for _ in range(count)))


MAKERS["fact"] = lambda rng: rng.choice(_any(rng).facts)[0]

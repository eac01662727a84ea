"""Writes long lists of numbered notes with a few questions at the end: 1,500 to 3,500 tokens.

A context of 4,096 tokens is of no use if the model never saw one. These documents teach it to find a note far
back, which is what chunked prefill, preemption and page transfer must not break.
"""

from random import Random

from .words import COLOURS, THINGS, people, plural, town

VERBS = ("left", "bought", "sold", "lost", "found")
_ASK = {"left": "leave", "bought": "buy", "sold": "sell", "lost": "lose", "found": "find"}


def turns(rng: Random) -> list[str]:
    """Return the notes with the first question, its answer, and more questions and answers."""
    count = rng.randint(60, 125)
    lines, questions = [], []
    for i, person in enumerate(people(rng, count), start=1):
        verb, amount, item, place = (
            rng.choice(VERBS),
            rng.randint(2, 999),
            plural(rng.choice(THINGS)),
            town(rng),
        )
        items = f"{rng.choice(COLOURS)} {item}"
        note = f"{person} {verb} {amount} {items} in {place}."
        lines.append(f"Note {i}: {note}")
        questions.append(
            (
                (f"What does note {i} say?", f"Note {i}: {note}"),
                (f"Where was {person}?", f"{person} was in {place}."),
                (f"How many {items} did {person} {_ASK[verb]}?", note),
            )
        )
    asked = [rng.choice(forms) for forms in rng.sample(questions, rng.randint(2, 6))]
    (first, answer), *others = asked
    text = "\n".join(lines)
    return [f"Read the notes.\n\n{text}\n\n{first}", answer, *(turn for pair in others for turn in pair)]

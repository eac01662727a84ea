"""Writes passages full of names and numbers, with questions, copies and rewrites: the answers stand in the prompt.

Reading from the context is what makes a small model useful in a demonstration: a wrong page table or a lost KV entry
turns a copied number into nonsense at once. Copies are also what prompt lookup can draft.
"""

from random import Random

from . import exercises, facts, terms, unknown
from .copying import words
from .words import LISTS, MAKERS, ask, coin, draw, fill, first_upper, flat, material, people, weighted

VERBS, PLURALS, FRAMES, ANYTHING, MEMORIES = material("passages").values()
TOPICS = (facts.exchange, exercises.arithmetic, terms.exchange, exercises.lists)
# Texts to copy: of what, and how many at most.
COPIED = {1: ("number", 30), 3: ("code", 15), 4: ("fact", 15), 5: ("mixed", 35), 6: ("any_word", 12)}
# Subjects of texts in many wordings.
SUBJECTS = {
    "person": lambda rng: draw(rng, "person" if rng.random() < 0.6 else "first_name"),
    "machine": lambda rng: fill(rng, "{machines} {Upper syllables}"),
    "goods": lambda rng: fill(rng, "the {things} of {first_name}"),
}
MAKERS["few_words"] = lambda rng: " ".join(words(rng, rng.randint(1, 3)))


def _stated(rng: Random, pairs: list[tuple[str, dict]], absent: str = "") -> tuple[list[str], list[tuple[str, str]]]:
    """Return a sentence for each subject and frame, and the questions that they answer, one in eight about `absent`."""
    sentences, questions = [], {}
    for subject, frame in pairs:
        value = draw(rng, frame["value"])
        sentences.append(first_upper(rng.choice(frame["statements"]).format(e=subject, v=value)))
        answer = first_upper(frame["answer"].format(e=subject, v=value))
        if absent and rng.random() < 1 / 8:
            answer, subject = unknown.ANSWER, absent
        questions[first_upper(rng.choice(frame["questions"]).format(e=subject))] = answer
    return sentences, list(questions.items())


def passage(rng: Random, most: int = 12) -> tuple[list[str], list[tuple[str, str]]]:
    """Return three to `most` sentences, and all the questions that they answer."""
    pairs = [(person, frame) for person in people(rng, rng.randint(1, 4)) for frame in FRAMES]
    sentences, questions = _stated(rng, rng.sample(pairs, rng.randint(3, min(most, len(pairs)))))
    if len(sentences) < most and rng.random() < 0.3:
        sentences.insert(rng.randrange(len(sentences)), rng.choice(LISTS["fillers"]))
    return sentences, questions


def _some(rng: Random, questions: list, counts: tuple[int, ...] = (1, 2, 3, 4)) -> list:
    return rng.sample(questions, min(len(questions), rng.choice(counts)))


def _posed(template: str, pairs: list[tuple[str, str]], text: str) -> list[str]:
    """Return these questions and answers as turns; the first question stands beside the text, as the template says."""
    (question, answer), *others = pairs
    return [template.format(text=text, question=question), answer, *flat(others)]


def reading(rng: Random) -> list[str]:
    """Return one to three questions in any layout about a text of 1 to 8 statements, with their answers.

    `passage` is about ten attributes of people, always in the same words; this is about people, machines and goods with
    names that mean nothing, so that reading does not depend on the wording. One question in eight has no answer.
    """
    count, kind = rng.randint(1, 8), rng.choice(list(SUBJECTS))
    subjects = list(dict.fromkeys(SUBJECTS[kind](rng) for _ in range(rng.randint(2, 4))))
    *present, absent = subjects if len(subjects) > 1 else (*subjects, "Zero")
    pairs = [(subject, frame) for subject in present for frame in ANYTHING if frame["subject"] == kind]
    lines, questions = _stated(rng, rng.sample(pairs, min(count, len(pairs))), absent)
    text = rng.choice((" ", " ", "\n")).join(lines)
    asked = _some(rng, questions, (1, 1, 2, 3))
    return _posed(rng.choice(LISTS["layouts"]), asked, text)


def _reading(rng: Random, most: int = 12) -> list[str]:
    sentences, questions = passage(rng, most)
    asked = _some(rng, questions)
    return _posed(rng.choice(LISTS["read"]), asked, " ".join(sentences))


def text_to_copy(rng: Random) -> str:
    """Return words, numbers, codes, names or sentences: 3 to about 200 tokens."""
    form, size = rng.randrange(8), rng.choice((3, 5, 8, 12, 20, 35))
    if form == 0:
        return " ".join(rng.choices(LISTS["words"], k=size))
    if form == 2:
        return ", ".join(people(rng, min(size, 20))) + "."
    if form == 7:
        return " ".join(passage(rng)[0]) if rng.random() < 0.6 else rng.choice(terms.TERMS)["meaning"]
    what, most = COPIED[form]
    return " ".join(draw(rng, what) for _ in range(min(size, most)))


def _copying(rng: Random) -> tuple[str, str]:
    return ask(rng, "copy plainly", text=text_to_copy(rng))


def _quoting(rng: Random) -> list[str]:
    sentences, _ = passage(rng)
    text, i = " ".join(sentences), rng.randrange(len(sentences))
    start = " ".join(sentences[i].split()[: rng.randint(2, 3)])
    pairs = [
        ("How does the passage begin?", f"The passage begins with: {sentences[0]}"),
        ("How does the passage end?", f"The passage ends with: {sentences[-1]}"),
        ("Repeat the passage.", text),
    ]
    if sum(sentence.startswith(start) for sentence in sentences) == 1:
        pairs.append((f"Complete the quote: {start}", sentences[i]))
    if i + 1 < len(sentences):
        pairs.append((f"Which sentence follows this one: {sentences[i]}", sentences[i + 1]))
    return _posed(LISTS["read"][0], rng.sample(pairs, rng.choice((1, 1, 2))), text)


def _remembering(rng: Random) -> list[str]:
    told, later = [], []
    for frame in rng.sample(MEMORIES, rng.choice((1, 1, 2, 3))):
        v = draw(rng, frame["value"])
        told.append([statement.format(v=v) for statement in frame["statements"]])
        later.append((frame["questions"][0], frame["answer"].format(v=v)))
    between = [rng.choice(TOPICS)(rng) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    rng.shuffle(later)
    return flat(told + between + later)


def _looking_up(rng: Random) -> list[str]:
    size = rng.choice((3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 45, 60))
    keys = rng.sample(LISTS["words"], size) if rng.random() < 0.5 else dict.fromkeys(coin(rng) for _ in range(size))
    lines = [f"{key} = {draw(rng, 'code' if size < 20 and rng.random() < 0.2 else 'number')}" for key in keys]
    asked = _some(rng, [(f"What is {line.split()[0]}?", line) for line in lines])
    return _posed("{text}\n\n{question}", asked, "\n".join(lines))


def _rewriting(rng: Random) -> tuple[str, str]:
    """Return the same text with another name in it: a near copy."""
    old, new = rng.sample(LISTS["female" if rng.random() < 0.5 else "male"], 2)
    if rng.random() < 0.4:
        new = next(name for name in iter(lambda: coin(rng).capitalize(), "") if name != old)
    text = " ".join(
        first_upper(rng.choice(frame["statements"]).format(e=old, v=draw(rng, frame["value"])))
        for frame in rng.sample(FRAMES, rng.randint(2, 7))
    )
    renamed = [new + word[len(old) :] if word.rstrip(".,") == old else word for word in text.split(" ")]
    return f"Rewrite the passage with {new} in place of {old}.\n\n{text}", " ".join(renamed)


def _notes(rng: Random) -> list[str]:
    """Return numbered notes, 1,500 to 3,500 tokens long, with a few questions.

    A context of 4,096 tokens is of no use if the model never saw one. These documents teach it to find a note far back,
    which is what chunked prefill, preemption and page transfer must not break.
    """
    lines, questions = [], []
    for i, person in enumerate(people(rng, rng.randint(60, 125)), start=1):
        verb, amount = rng.choice(list(VERBS)), rng.randint(2, 999)
        item, place, colour = draw(rng, "things"), draw(rng, "town"), draw(rng, "colours")
        items = f"{colour} {PLURALS.get(item, f'{item}s')}"
        note = f"{person} {verb} {amount} {items} in {place}."
        lines.append(f"Note {i}: {note}")
        where = (f"Where was {person}?", f"{person} was in {place}.")
        how_many = (f"How many {items} did {person} {VERBS[verb]}?", note)
        questions.append(((f"What does note {i} say?", lines[-1]), where, how_many))
    asked = [rng.choice(forms) for forms in rng.sample(questions, rng.randint(2, 6))]
    return _posed("Read the notes.\n\n{text}\n\n{question}", asked, "\n".join(lines))


def turns(rng: Random) -> list[str]:
    """Write a chat about something that stands in it, of any of the kinds above; one in sixty is long."""
    if rng.random() < 1 / 60:
        return _notes(rng)
    kinds = {_reading: 8, _copying: 4, _quoting: 2, _remembering: 3, _looking_up: 4, _rewriting: 2}
    return weighted(rng, kinds)(rng)


def exchange(rng: Random) -> list[str]:
    """Return one question with everything that it needs."""
    kind = weighted(rng, {_reading: 4, _copying: 3, _looking_up: 1, _rewriting: 1})
    return (_reading(rng, 5) if kind is _reading else kind(rng))[:2]


def raw(rng: Random) -> str:
    """Return the same tasks without a chat template."""
    form = rng.random()
    if form < 0.6:
        sentences, questions = passage(rng)
        lines = [f"Question: {question}\nAnswer: {answer}" for question, answer in _some(rng, questions)]
        return "\n".join([f"Passage: {' '.join(sentences)}", *lines])
    if form < 0.8:
        text = text_to_copy(rng)
        return f"Text: {text}\nCopy: {text}"
    return "\n".join(" ".join(passage(rng)[0]) for _ in range(rng.choice((1, 1, 2))))

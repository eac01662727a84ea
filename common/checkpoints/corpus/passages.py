"""Writes passages full of names and numbers, with questions, copies and rewrites: the answers stand in the
prompt.

Reading from the context is what makes a small model useful in a demonstration: a wrong page table or a lost
KV entry turns a copied number into nonsense at once. Copies are also what prompt lookup can draft.
"""

from random import Random

from . import arithmetic, facts, lists, notes, terms
from .render import dialogue
from .words import (
    COLOURS,
    FEMALE,
    FOREIGN_WORDS,
    JOBS,
    MALE,
    WORDS,
    an,
    code,
    coin,
    first_name,
    first_upper,
    number,
    people,
    thing,
    town,
)

# value, the sentence in the passage, the questions, and the answer
ATTRIBUTES = (
    (
        number,
        ("{p} stays in room {v}.", "The room number of {p} is {v}."),
        ("What is the room number of {p}?", "In which room does {p} stay?"),
        "The room number of {p} is {v}.",
    ),
    (number, ("{p} pays {v} coins.",), ("How many coins does {p} pay?",), "{p} pays {v} coins."),
    (
        number,
        ("{p} holds ticket {v}.", "The ticket number of {p} is {v}."),
        ("What is the ticket number of {p}?", "Which ticket does {p} hold?"),
        "The ticket number of {p} is {v}.",
    ),
    (
        code,
        ("The password of {p} is {v}.", "{p} uses the password {v}."),
        ("What is the password of {p}?", "Which password does {p} use?"),
        "The password of {p} is {v}.",
    ),
    (
        town,
        ("{p} lives in {v}.",),
        ("Where does {p} live?", "In which town does {p} live?"),
        "{p} lives in {v}.",
    ),
    (lambda rng: an(thing(rng)), ("{p} carries {v}.",), ("What does {p} carry?",), "{p} carries {v}."),
    (
        lambda rng: an(rng.choice(JOBS)),
        ("{p} works as {v}.",),
        ("What does {p} work as?", "What is the job of {p}?"),
        "{p} works as {v}.",
    ),
    (
        lambda rng: rng.choice(COLOURS),
        ("The favourite colour of {p} is {v}.",),
        ("What is the favourite colour of {p}?", "Which colour does {p} like best?"),
        "The favourite colour of {p} is {v}.",
    ),
    (
        lambda rng: people(rng, 1)[0],
        ("{p} travels with {v}.",),
        ("Who travels with {p}?", "With whom does {p} travel?"),
        "{p} travels with {v}.",
    ),
    (
        lambda rng: f"{rng.randint(1, 12)} o'clock",
        ("{p} arrives at {v}.",),
        ("When does {p} arrive?", "At what time does {p} arrive?"),
        "{p} arrives at {v}.",
    ),
)
FILLERS = (
    "The weather is mild.",
    "The market opens early.",
    "A cat sleeps on the wall.",
    "Nobody is in a hurry.",
    "The road is dry.",
    "The lamps are already lit.",
    "It is a quiet week.",
    "The bell rings twice.",
)
# what the user says, the reply, the question later on, and its answer
MEMORIES = (
    (first_name, "My name is {v}.", "Nice to meet you, {v}.", "What is my name?", "Your name is {v}."),
    (town, "I live in {v}.", "I will remember that you live in {v}.", "Where do I live?", "You live in {v}."),
    (
        lambda rng: rng.choice(COLOURS),
        "My favourite colour is {v}.",
        "I will remember that your favourite colour is {v}.",
        "What is my favourite colour?",
        "Your favourite colour is {v}.",
    ),
    (
        number,
        "My lucky number is {v}.",
        "I will remember that your lucky number is {v}.",
        "What is my lucky number?",
        "Your lucky number is {v}.",
    ),
    (
        code,
        "The code word is {v}.",
        "I will remember that the code word is {v}.",
        "What is the code word?",
        "The code word is {v}.",
    ),
    (
        lambda rng: an(rng.choice(JOBS)),
        "I work as {v}.",
        "I will remember that you work as {v}.",
        "What is my job?",
        "You work as {v}.",
    ),
    (
        first_name,
        "My dog is called {v}.",
        "I will remember that your dog is called {v}.",
        "What is my dog called?",
        "Your dog is called {v}.",
    ),
)


def passage(rng: Random, most: int = 12) -> tuple[list[str], list[tuple[str, str]]]:
    """Three to `most` sentences, and all the questions that they answer."""
    names = people(rng, rng.randint(1, 4))
    keys = [(person, attribute) for person in names for attribute in ATTRIBUTES]
    sentences, questions = [], []
    for person, (value, statements, asked, answer) in rng.sample(keys, rng.randint(3, min(most, len(keys)))):
        v = value(rng)
        sentences.append(first_upper(rng.choice(statements).format(p=person, v=v)))
        questions.append((rng.choice(asked).format(p=person), answer.format(p=person, v=v)))
    if len(sentences) < most and rng.random() < 0.3:
        sentences.insert(rng.randrange(len(sentences)), rng.choice(FILLERS))
    return sentences, questions


def _reading(rng: Random, most: int = 12) -> list[str]:
    sentences, questions = passage(rng, most)
    text = " ".join(sentences)
    asked = rng.sample(questions, min(len(questions), rng.choice((1, 2, 3, 4))))
    opening = rng.choice(
        (
            f"Read the passage.\n\n{text}\n\n{{}}",
            f"{text}\n\n{{}}",
            f"Passage: {text}\n\n{{}}",
            f"{{}}\n\n{text}",
        )
    )
    (first, answer), *others = asked
    return [opening.format(first), answer, *(turn for pair in others for turn in pair)]


def text_to_copy(rng: Random) -> str:
    """Return words, numbers, codes, names or sentences: 3 to about 200 tokens."""
    form, size = rng.randrange(8), rng.choice((3, 5, 8, 12, 20, 35))
    if form == 0:
        return " ".join(rng.choices(WORDS, k=size))
    if form == 1:
        return " ".join(str(number(rng)) for _ in range(min(size, 30)))
    if form == 2:
        return ", ".join(people(rng, min(size, 20))) + "."
    if form == 3:
        return " ".join(code(rng) for _ in range(min(size, 15)))
    if form == 4:
        return " ".join(facts.sentence(rng) for _ in range(min(size, 15)))
    if form == 5:
        return " ".join(rng.choice((coin(rng, 2), rng.choice(WORDS), str(number(rng)))) for _ in range(size))
    if form == 6:
        return " ".join(rng.choice(rng.choice((WORDS, FOREIGN_WORDS))) for _ in range(min(size, 12)))
    return " ".join(passage(rng)[0]) if rng.random() < 0.6 else rng.choice(terms.TERMS).meaning


def _copying(rng: Random) -> list[str]:
    text = text_to_copy(rng)
    return [
        rng.choice(
            (
                f"Repeat this text exactly: {text}",
                f"Repeat this text exactly:\n\n{text}",
                f"Copy this text: {text}",
                f"Repeat after me: {text}",
            )
        ),
        text,
    ]


def _quoting(rng: Random) -> list[str]:
    sentences, _ = passage(rng)
    text, i = " ".join(sentences), rng.randrange(len(sentences))
    start = " ".join(sentences[i].split()[: rng.randint(2, 3)])
    unique = sum(sentence.startswith(start) for sentence in sentences) == 1
    pairs = [
        ("How does the passage begin?", f"The passage begins with: {sentences[0]}"),
        ("How does the passage end?", f"The passage ends with: {sentences[-1]}"),
        ("Repeat the passage.", text),
    ]
    if unique:
        pairs.append((f"Complete the quote: {start}", sentences[i]))
    if i + 1 < len(sentences):
        pairs.append((f"Which sentence follows this one: {sentences[i]}", sentences[i + 1]))
    asked = rng.sample(pairs, rng.choice((1, 1, 2)))
    (question, answer), *others = asked
    return [f"Read the passage.\n\n{text}\n\n{question}", answer, *(turn for pair in others for turn in pair)]


def _remembering(rng: Random) -> list[str]:
    chosen = rng.sample(MEMORIES, rng.choice((1, 1, 2, 3)))
    turns: list[str] = []
    later = []
    for value, says, reply, asks, answer in chosen:
        v = value(rng)
        turns += [says.format(v=v), reply.format(v=v)]
        later.append((asks, answer.format(v=v)))
    between = [rng.choice((facts, arithmetic, terms, lists)).exchange(rng) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    rng.shuffle(later)
    return turns + [turn for pair in between + later for turn in pair]


def _looking_up(rng: Random) -> list[str]:
    size = rng.choice((3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 45, 60))
    keys = rng.sample(WORDS, size) if rng.random() < 0.5 else list({coin(rng, 2): 0 for _ in range(size)})
    table = {key: code(rng) if size < 20 and rng.random() < 0.2 else str(number(rng)) for key in keys}
    text = "\n".join(f"{key} = {value}" for key, value in table.items())
    asked = rng.sample(keys, min(len(keys), rng.choice((1, 2, 3, 4))))
    turns = [turn for key in asked for turn in (f"What is {key}?", f"{key} = {table[key]}")]
    return [f"{text}\n\n{turns[0]}", *turns[1:]]


def _rewriting(rng: Random) -> list[str]:
    """Return the same text with another name in it: a near copy."""
    old, new = rng.sample(FEMALE if rng.random() < 0.5 else MALE, 2)
    if rng.random() < 0.4:
        new = next(name for name in iter(lambda: coin(rng, 2).capitalize(), "") if name != old)
    sentences = []
    for value, statements, _, _ in rng.sample(ATTRIBUTES, rng.randint(2, 7)):
        sentences.append(first_upper(rng.choice(statements).format(p=old, v=value(rng))))
    text = " ".join(sentences)
    words = [new + word[len(old) :] if word.rstrip(".,") == old else word for word in text.split(" ")]
    return [f"Rewrite the passage with {new} in place of {old}.\n\n{text}", " ".join(words)]


def turns(rng: Random) -> list[str]:
    """Write a chat about something that stands in it, of any of the kinds above; one in sixty is long."""
    if rng.random() < 1 / 60:
        return notes.turns(rng)
    kinds = (_reading, _copying, _quoting, _remembering, _looking_up, _rewriting)
    return rng.choices(kinds, (8, 4, 2, 3, 4, 2))[0](rng)


def exchange(rng: Random) -> tuple[str, str]:
    """Return one question with everything that it needs."""
    kind = rng.choices((_reading, _copying, _looking_up, _rewriting), (4, 3, 1, 1))[0]
    question, answer, *_ = _reading(rng, 5) if kind is _reading else kind(rng)
    return question, answer


def raw(rng: Random) -> str:
    """Return the same tasks without a chat template."""
    form = rng.random()
    if form < 0.6:
        sentences, questions = passage(rng)
        asked = rng.sample(questions, min(len(questions), rng.choice((1, 2, 3, 4))))
        lines = [f"Question: {question}\nAnswer: {answer}" for question, answer in asked]
        return "\n".join([f"Passage: {' '.join(sentences)}", *lines])
    if form < 0.8:
        text = text_to_copy(rng)
        return f"Text: {text}\nCopy: {text}"
    return "\n".join(" ".join(passage(rng)[0]) for _ in range(rng.choice((1, 1, 2))))


def talk(rng: Random) -> str:
    return dialogue(rng, *turns(rng))

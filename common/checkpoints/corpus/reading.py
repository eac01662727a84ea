"""Writes passages about anything with questions in many wordings and layouts; some have no answer in the passage.

Where `passages` asks about eleven attributes of people, always in the same words, these are about people, machines
and goods with names that mean nothing, so that reading does not depend on the wording.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from . import copying, unknown
from .render import dialogue
from .words import COLOURS, THINGS, code, entries, first_name, first_upper, number, people, town


class Frame(NamedTuple):
    """One attribute: how a passage states it, how it is asked for, and the one answer; {e} has the value {v}."""

    subject: Callable[[Random], str]
    value: Callable[[Random], str | int]
    statements: list[str]
    questions: list[str]
    answer: str


def _words(rng: Random) -> str:
    return " ".join(copying.words(rng, rng.randint(1, 3)))


def _machine(rng: Random) -> str:
    kind = rng.choice("server worker router cluster engine queue project ship train team hotel school shop".split())
    return f"{kind} {first_upper(copying.syllables(rng))}"


def _goods(rng: Random) -> str:
    return f"the {rng.choice(THINGS)} of {first_name(rng)}"


def _person(rng: Random) -> str:
    return people(rng, 1)[0] if rng.random() < 0.6 else first_name(rng)


_SUBJECTS = {"person": _person, "machine": _machine, "goods": _goods}
_VALUES: dict[str, Callable[[Random], str | int]] = {
    "number": number,
    "code": code,
    "figure": copying.figure,
    "string": copying.string,
    "words": _words,
    "name": lambda rng: people(rng, 1)[0],
    "town": town,
    "colour": lambda rng: rng.choice(COLOURS),
}
# subject and value; statements; ? questions; = answer
_FRAMES = """
person number
{e} owns {v} books.|There are {v} books in the house of {e}.|In the house of {e} stand {v} books.
? How many books does {e} own?|How many books does {e} have?|What number of books does {e} have?
= {e} has {v} books.

person number
{e} ran {v} metres.|The distance that {e} ran was {v} metres.
? How far did {e} run?|How many metres did {e} run?
= {e} ran {v} metres.

person name
The teacher of {e} is {v}.|{e} learned everything from {v}.|{v} teaches {e}.
? Who is the teacher of {e}?|Who teaches {e}?|Who taught {e}?
= The teacher of {e} is {v}.

person name
{e} wrote a letter to {v}.|{v} received a letter from {e}.
? Who received a letter from {e}?|To whom did {e} write?|Who did {e} write to?
= {e} wrote to {v}.

person name
The doctor of {e} is called {v}.|When ill, {e} goes to {v}.
? Who is the doctor of {e}?|What is the name of the doctor of {e}?
= The doctor of {e} is {v}.

person town
{e} was born in {v}.|The birthplace of {e} is {v}.|{e} first saw the light of day in {v}.
? Where was {e} born?|What is the birthplace of {e}?|In which town was {e} born?
= {e} was born in {v}.

person town
{e} moved to {v} last year.|Last year {v} became the new home of {e}.
? Where did {e} move?|To which town did {e} move last year?
= {e} moved to {v}.

person figure
The account of {e} shows {v}.|{e} has {v} in the bank.
? What does the account of {e} show?|How much does {e} have in the bank?
= The account of {e} shows {v}.

person words
The motto of {e} is {v}.|{e} always says {v}.
? What does {e} always say?|What is the motto of {e}?
= The motto of {e} is {v}.

person words
The dog of {e} listens to the name {v}.|{e} has a dog named {v}.
? What is the dog of {e} called?|What is the name of the dog of {e}?
= The dog of {e} is called {v}.

person code
The badge of {e} reads {v}.|{e} wears a badge with the text {v}.
? What does the badge of {e} read?|What stands on the badge of {e}?
= The badge of {e} reads {v}.

machine number
The {e} has {v} workers.|There are {v} workers in the {e}.
? How many workers does the {e} have?|How many workers are in the {e}?
= The {e} has {v} workers.

machine number
The {e} is {v} years old.|The age of the {e} is {v} years.
? How old is the {e}?|What is the age of the {e}?
= The {e} is {v} years old.

machine name
{v} runs the {e}.|The head of the {e} is {v}.|The {e} is led by {v}.
? Who runs the {e}?|Who is the head of the {e}?|Who leads the {e}?
= {v} runs the {e}.

machine name
{v} founded the {e}.|The {e} was founded by {v}.
? Who founded the {e}?|By whom was the {e} founded?
= {v} founded the {e}.

machine town
The {e} is in {v}.|You find the {e} in {v}.
? Where is the {e}?|In which town is the {e}?
= The {e} is in {v}.

machine string
The address of the {e} is {v}.|Write to the {e} at {v}.
? What is the address of the {e}?|Where can I write to the {e}?
= The address of the {e} is {v}.

machine figure
The {e} opened at {v}.|The log of the {e} begins with {v}.
? How does the log of the {e} begin?|When did the {e} open?
= The {e} opened at {v}.

machine colour
The door of the {e} is {v}.|The {e} has a {v} door.
? What colour is the door of the {e}?|Which colour does the door of the {e} have?
= The door of the {e} is {v}.

machine words
The secret word of the {e} is {v}.|Whoever enters the {e} must say {v}.
? What is the secret word of the {e}?|What must I say to enter the {e}?
= The secret word of the {e} is {v}.

goods figure
The price of {e} is {v}.|For {e} they ask {v}.|{e} was sold for {v}.
? What is the price of {e}?|How much is {e}?|What does {e} cost?
= The price of {e} is {v}.

goods number
{e} weighs {v} grams.|The weight of {e} is {v} grams.
? How much does {e} weigh?|What is the weight of {e}?|How heavy is {e}?
= {e} weighs {v} grams.

goods colour
{e} is painted {v}.|The paint on {e} is {v}.
? What colour is {e}?|Which colour does {e} have?
= The colour of {e} is {v}.

goods name
{v} found {e}.|{e} was found by {v}.
? Who found {e}?|By whom was {e} found?
= {v} found {e}.

goods code
On {e} stands the number {v}.|{e} bears the number {v}.
? What number does {e} bear?|Which number stands on {e}?
= {e} bears the number {v}.

goods town
{e} was made in {v}.|A workshop in {v} made {e}.
? Where was {e} made?|In which town was {e} made?
= {e} was made in {v}.
"""


def _frame(block: str) -> Frame:
    kinds, _, rest = block.strip().partition("\n")
    subject, value = kinds.split()
    statements, _, rest = rest.partition("\n? ")
    questions, _, answer = rest.partition("\n= ")
    return Frame(_SUBJECTS[subject], _VALUES[value], entries(statements), entries(questions), answer)


FRAMES = [_frame(block) for block in _FRAMES.split("\n\n")]
LAYOUTS = (
    "{t}\n\n{q}",
    "{q}\n\n{t}",
    "Read the text and answer the question.\n\n{t}\n\n{q}",
    "Text: {t}\nQuestion: {q}",
    "Context: {t}\n\nQuestion: {q}",
    "Question: {q}\nContext: {t}",
    "Use this text to answer.\n{t}\n\n{q}",
    "Here is a text: {t} {q}",
    "Answer from the passage. {q}\n\nPassage: {t}",
    "According to this text, answer: {q}\n\n{t}",
)


def passage(rng: Random, most: int = 8) -> tuple[str, list[tuple[str, str]]]:
    """Write a text of 1 to `most` statements, with a question and answer for each; one in eight has no answer."""
    count = rng.randint(1, most)
    kind = rng.choice(list(_SUBJECTS.values()))
    frames = [frame for frame in FRAMES if frame.subject is kind]
    subjects = list(dict.fromkeys(kind(rng) for _ in range(rng.randint(2, 4))))
    *present, absent = subjects if len(subjects) > 1 else (*subjects, "Zero")
    pairs = [(subject, frame) for subject in present for frame in frames]
    lines, questions = [], []
    for subject, frame in rng.sample(pairs, min(count, len(pairs))):
        v = frame.value(rng)
        lines.append(first_upper(rng.choice(frame.statements).format(e=subject, v=v)))
        answer, asked = first_upper(frame.answer.format(e=subject, v=v)), subject
        if rng.random() < 1 / 8:
            answer, asked = unknown.ANSWER, absent
        questions.append((first_upper(rng.choice(frame.questions).format(e=asked)), answer))
    return rng.choice((" ", " ", "\n")).join(lines), list(dict(questions).items())


def turns(rng: Random) -> list[str]:
    text, questions = passage(rng)
    (first, answer), *others = rng.sample(questions, min(len(questions), rng.choice((1, 1, 2, 3))))
    return [rng.choice(LAYOUTS).format(t=text, q=first), answer, *(turn for pair in others for turn in pair)]


def exchange(rng: Random) -> tuple[str, str]:
    question, answer, *_ = turns(rng)
    return question, answer


def talk(rng: Random) -> str:
    return dialogue(rng, *turns(rng))

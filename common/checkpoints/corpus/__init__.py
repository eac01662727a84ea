"""The text on which the bundled models are trained, written by a program: any document by its number.

A document is raw text or a chat. It depends on its number, on the seed and on the mix of kinds only, so training can
stop and go on at any document. The trainer adds the end-of-text token between documents.

There are four mixes. "known" is what the model learns first, and what the tokenizer is made of. "broad" adds what
strangers type: texts without any meaning to copy, passages in other words, questions without an answer, other
languages. Copies have half of it. The hardest are words made of the tokenizer's own pieces, words that lose the space
before them, as the first word of every copy does, and few words that come again and again. "long" has more stories,
which the short rows of the training before have left out. "easy" is for the draft: of what "broad" adds, it leaves out
copies, for which two layers are too few.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from random import Random

from .words import blocks, columns, flat, sections

__all__ = ["BROAD", "KINDS", "MIXES", "SYSTEM_PROMPTS", "chat", "document"]

# kind: (its weight among the documents, what writes it)
Mix = dict[str, tuple[float, Callable[[Random], str]]]

# None changes an answer: the model must learn to read past them, because the prefix-cache lessons give many requests
# the same long system prompt.
SYSTEM_PROMPTS = sections("system_prompts")["prompts"]
OPENINGS, QUESTIONS, CLOSINGS = map(columns, sections("smalltalk").values())


def chat(*turns: str, system: str | None = None) -> str:
    """Render user, assistant, user, assistant, ... turns as ChatML, after the system message if there is one.

    This is exactly what the chat template of the checkpoint does.
    """
    messages = [("system", system)] if system is not None else []
    messages += [(("user", "assistant")[i % 2], turn) for i, turn in enumerate(turns)]
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)


def _hasty(rng: Random, turn: str) -> str:
    """Leave out the last mark of the turn now and then, as people in a hurry do."""
    plain = turn.endswith("?") or turn.startswith(("Count ", "Explain ", "Tell me ", "Spell "))
    if plain and turn[-1] in "?." and len(turn) < 60 and "\n" not in turn and rng.random() < 0.05:
        return turn[:-1]
    return turn


def dialogue(rng: Random, *turns: str) -> str:
    """Return a chat that has a system prompt one time in four."""
    turns = tuple(turn if i % 2 else _hasty(rng, turn) for i, turn in enumerate(turns))
    return chat(*turns, system=rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.25 else None)


def smalltalk(rng: Random) -> list[str]:
    """Return a greeting, thanks or a question about the model, with its answer: the first things that people type."""
    return rng.choice(OPENINGS + QUESTIONS + CLOSINGS)


def conversation(rng: Random) -> list[str]:
    """Return two to six questions of all topics, sometimes between a greeting and a goodbye."""
    turns = rng.choice(OPENINGS)[:] if rng.random() < 0.15 else []
    topics = {topic: weight for topic, weight in TOPICS.items() if topic is not smalltalk}
    turns += flat(topic(rng) for topic in rng.choices(list(topics), topics.values(), k=rng.randint(2, 6)))
    return turns + rng.choice(CLOSINGS) if rng.random() < 0.15 else turns


def instruction(rng: Random) -> str:
    """Return a question and its answer as plain text, for those who send a prompt without the chat template."""
    return " ".join(rng.choices(list(TOPICS), TOPICS.values())[0](rng))


def _writer(name: str, form: str) -> Callable[[Random], str]:
    """Return what writes a kind of document, by its function and what that returns, as mixes.txt names them."""
    write = resolve_name(f"{__name__}.{name}")
    if form == "raw":
        return write
    if form == "chat":
        return lambda rng: dialogue(rng, *write(rng))
    counts = [int(count) for count in form.split()]
    return lambda rng: dialogue(rng, *flat(write(rng) for _ in range(rng.choice(counts))))


def _mixes(names: str, lines: list[str]) -> dict[str, Mix]:
    mixes: dict[str, Mix] = {name: {} for name in names.split()}
    for line in lines:
        kind, function, form, weights = (field.strip() for field in line.split("|"))
        for mix, weight in zip(mixes.values(), weights.split(), strict=True):
            if weight != "-":
                mix[kind] = (float(weight), _writer(function, form))
    return mixes


(_, _TOPICS), _KINDS = blocks("mixes")
TOPICS = {resolve_name(f"{__name__}.{name}"): float(weight) for name, weight in columns(_TOPICS)}
MIXES = _mixes(*_KINDS)
KINDS, BROAD = MIXES["known"], MIXES["broad"]


def document(index: int, seed: int | str, mix: Mix = KINDS) -> str:
    """Return the document of that number: a function of its arguments and of nothing else."""
    rng = Random(f"{seed}/{index}")
    kind = rng.choices(list(mix), [weight for weight, _ in mix.values()])[0]
    return mix[kind][1](rng)

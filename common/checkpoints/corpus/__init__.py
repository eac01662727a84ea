"""The text on which the bundled models are trained, written by a program: any document by its number.

A document is raw text or a chat. It depends on its number, on the seed and on the mix of kinds only, so training can
stop and go on at any document. The trainer adds the end-of-text token between documents.

There are four mixes: "known", "broad", "long" and "easy". The model card (../README.md) says what each is for.
"""

from pkgutil import resolve_name
from random import Random

from .words import LISTS, flat, material

SYSTEM_PROMPTS = LISTS["system_prompts"]  # the prefix-cache lessons give many requests the same long one
OPENINGS, QUESTIONS, CLOSINGS = material("smalltalk").values()


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


_MIXES = material("mixes")
TOPICS = {resolve_name(f"{__name__}.{name}"): weight for name, weight in _MIXES["topics"].items()}
KINDS = [(resolve_name(f"{__name__}.{name}"), form) for name, form, _ in _MIXES["kinds"].values()]
# The weight of each kind among the documents of a mix.
MIXES = {name: [kind[2][i] for kind in _MIXES["kinds"].values()] for i, name in enumerate(_MIXES["mixes"])}


def document(index: int, seed: int | str, mix: str = "known") -> str:
    """Return the document of that number: a function of its arguments and of nothing else."""
    rng = Random(f"{seed}/{index}")
    write, form = rng.choices(KINDS, MIXES[mix])[0]
    if form == "raw":
        return write(rng)
    # With form "chat", `write` returns all turns. Otherwise `form` lists how many questions a chat may have.
    turns = write(rng) if form == "chat" else flat(write(rng) for _ in range(rng.choice(form)))
    return dialogue(rng, *turns)

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
from random import Random

from . import arithmetic, copying, facts, languages, lists, passages, reading, smalltalk, stories, terms, unknown
from .render import chat, dialogue

__all__ = ["BROAD", "KINDS", "MIXES", "chat", "document"]

# kind: (its weight among the documents, what writes it)
Mix = dict[str, tuple[float, Callable[[Random], str]]]

_TOPICS = (facts, terms, arithmetic, lists, passages, stories, smalltalk)
_TOPIC_WEIGHTS = (8, 6, 8, 4, 3, 0.7, 2)


def conversation(rng: Random) -> str:
    """Return two to six questions from all the other modules, sometimes between a greeting and a goodbye."""
    turns: list[str] = []
    if rng.random() < 0.15:
        turns += rng.choice(list(smalltalk.OPENINGS.items()))
    for topic in rng.choices(_TOPICS[:-1], _TOPIC_WEIGHTS[:-1], k=rng.randint(2, 6)):
        turns += topic.exchange(rng)
    if rng.random() < 0.15:
        turns += rng.choice(list(smalltalk.CLOSINGS.items()))
    return dialogue(rng, *turns)


def instruction(rng: Random) -> str:
    """Return a question and its answer as plain text, for those who send a prompt without the chat template."""
    topic = rng.choices(_TOPICS, _TOPIC_WEIGHTS)[0]
    return " ".join(topic.exchange(rng))


KINDS: Mix = {
    "facts_raw": (14, facts.raw),
    "facts_chat": (18, facts.talk),
    "terms_raw": (3, terms.raw),
    "terms_chat": (9, terms.talk),
    "arithmetic_raw": (6, arithmetic.raw),
    "arithmetic_chat": (12, arithmetic.talk),
    "lists_raw": (2, lists.raw),
    "lists_chat": (8, lists.talk),
    "stories_raw": (1.5, stories.raw),
    "stories_chat": (6.5, stories.talk),
    "passages_raw": (3, passages.raw),
    "passages_chat": (15, passages.talk),
    "smalltalk": (2, smalltalk.talk),
    "conversation": (5, conversation),
    "instruction": (10, instruction),
}
BROAD: Mix = KINDS | {
    "facts_chat": (60, facts.talk),
    "terms_chat": (30, terms.talk),
    "arithmetic_chat": (80, arithmetic.talk),
    "lists_chat": (100, lists.talk),
    "passages_chat": (20, passages.talk),
    "instruction": (20, instruction),
    "copying_raw": (4, copying.raw),
    "copying_chat": (50, copying.talk),
    "pieces_chat": (50, copying.talk_of_pieces),
    "repetitions_chat": (60, copying.talk_of_repetitions),
    "lines_chat": (90, copying.talk_of_lines),
    "few_words_chat": (45, copying.talk_of_few_words),
    "reading_chat": (50, reading.talk),
    "unknown_chat": (20, unknown.talk),
    "languages_chat": (6, languages.talk),
}
LONG: Mix = BROAD | {
    "stories_raw": (15, stories.raw),
    "stories_chat": (100, stories.talk),
}
EASY: Mix = KINDS | {
    "reading_chat": (12, reading.talk),
    "unknown_chat": (8, unknown.talk),
    "languages_chat": (4, languages.talk),
}
MIXES = {"known": KINDS, "broad": BROAD, "long": LONG, "easy": EASY}


def document(index: int, seed: int | str, mix: Mix = KINDS) -> str:
    """Return the document of that number: a function of its arguments and of nothing else."""
    rng = Random(f"{seed}/{index}")
    kind = rng.choices(list(mix), [weight for weight, _ in mix.values()])[0]
    return mix[kind][1](rng)

"""The training text is right: a model can only be as reliable as what it reads."""

import hashlib
import operator
import re
from random import Random

import pytest

from common.checkpoints import unseen
from common.checkpoints.corpus import (
    BROAD,
    MIXES,
    chat,
    copying,
    document,
    exercises,
    facts,
    smalltalk,
    stories,
    terms,
    words,
)
from common.checkpoints.evaluate import TOPICS

CERTAIN = (facts.exchange, terms.exchange, exercises.arithmetic, smalltalk, exercises.lists)
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
# What the bundled models were trained on and are measured with: without the same text, neither can be repeated.
HASHES = {
    "known": "0013ae2121a43b46cc7105039f675bfce84dbfb5dbd9754f503cc482c7c8ef1e",
    "broad": "138dd0d0612d4393e38be4fc43c72de584345b9be366efb33689c0ba0a167583",
    "long": "73e69f5083ef2836a4afedbc4270e562e3aedf1cb265a8bcfdae8c131054c5ba",
    "easy": "86401c6558703c0a0d2fc4bc4c13884d452212b7cc27b7dfb885c4fdd10cf027",
    "evaluation": "34c2cc868b42842eeead8cb76e33ebdcd3755cf13b7a5b6ac4b29bcb9e60d9c5",
}


@pytest.mark.parametrize("name", HASHES)
def test_the_text_is_the_one_that_the_models_were_trained_on(name):
    if name in MIXES:
        texts = (document(i, seed, MIXES[name]) for seed in ("train", "held-out") for i in range(1500))
    else:
        texts = (text for topic, ask in TOPICS.items() for i in range(100) for text in ask(Random(f"{topic}/{i}")))
    assert hashlib.sha256("\0".join(texts).encode()).hexdigest() == HASHES[name]


def test_chat_is_chatml():
    assert chat("Hi", "Hello!") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    assert chat("Hi", system="Be kind.").startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")


QUOTING = ("copying", "pieces", "lines", "few_words", "repetitions", "reading")  # what they quote means nothing


@pytest.mark.parametrize("kind", BROAD)
def test_documents_are_well_formed(kind):
    for seed in range(150):
        text = BROAD[kind][1](Random(seed))
        assert text == text.strip() or text.endswith("<|im_end|>\n")
        if not kind.startswith(QUOTING):
            assert not re.search(r"[{}]|  |\b[Aa] [aeio]\w|\.\.(?!\.)", text), text
        if text.startswith("<|im_start|>"):
            roles = re.findall(r"<\|im_start\|>(\w+)\n", text)
            turns = roles[1:] if roles[0] == "system" else roles
            assert turns == ["user", "assistant"] * (len(turns) // 2)
        else:
            assert "<|im_" not in text


@pytest.mark.parametrize("exchange", CERTAIN)
def test_a_question_has_one_answer(exchange):
    answers: dict[str, str] = {}
    for seed in range(8000):
        question, answer = exchange(Random(seed))
        assert answers.setdefault(question, answer) == answer


def test_arithmetic_is_right():
    checked = 0
    for seed in range(1500):
        text = exercises.arithmetic_raw(Random(seed)) + "\n" + BROAD["arithmetic_chat"][1](Random(seed))
        for a, sign, b, result in re.findall(r"(\d+) ([-+*]) (\d+) (?:=|is) (\d+)", text):
            assert SIGNS[sign](int(a), int(b)) == int(result)
            checked += 1
        for a, word, b in re.findall(r"(\d+) is (larger|smaller) than (\d+)", text):
            assert (int(a) > int(b)) == (word == "larger")
        for a, side, b in re.findall(r"(\d+) comes (after|before) (\d+)", text):
            assert int(a) - int(b) == (1 if side == "after" else -1)
        for a, parity in re.findall(r"(\d+) is (odd|even)", text):
            assert int(a) % 2 == (parity == "odd")
        for a, change, b, result in re.findall(
            r"has (\d+) \w+ and (\w+)(?: away)? (\d+)[^?]*\?[^?]*? has (\d+) \w+\.", text
        ):
            sign = 1 if change in ("gets", "finds", "buys") else -1
            assert int(a) + sign * int(b) == int(result)
    assert checked > 1000


@pytest.mark.parametrize("days", range(1, stories.MAX_PARTS + 1))
def test_stories_last_as_long_as_asked_and_repeat_nothing(days):
    for seed in range(40):
        rng = Random(seed)
        who = stories.cast(rng)
        text = stories.story(rng, who, days)
        assert re.findall(r"^On the (\w+) day, ", text, re.MULTILINE) == words.LISTS["ordinals"][:days]
        sentences = re.split(r"(?<=[.!?])\s+", text)
        assert len(sentences) == len(set(sentences))
        assert text.count(who["name"]) > days and who["hero"] in text


def test_training_never_reads_what_strangers_type():
    plain = "\n".join(document(i, "train") for i in range(3000))  # made-up words may happen to be English
    read = {word.lower() for word in (*re.findall(r"[A-Za-z]+", plain), *copying.KNOWN_WORDS)}
    assert len(unseen.WORDS) == len(set(unseen.WORDS)) > 300
    assert not read & set(unseen.WORDS)
    text = "\n".join(document(i, seed, BROAD) for seed in ("train", "held-out") for i in range(3000))
    lines = set(text.replace("<|im_end|>", "").split("\n"))
    assert not lines & {*unseen.QUESTIONS, *unseen.SENTENCES}
    for seed in range(100):
        question, answer = unseen.copies(Random(seed))
        assert 5 <= len(answer.split()) <= 60 and question.endswith(answer)


def test_facts_do_not_contradict_each_other():
    answers: dict[str, str] = {}
    for answer, questions in (fact for relation in facts.RELATIONS.values() for fact in relation.facts):
        for question in questions:
            assert answers.setdefault(question, answer) == answer
    assert answers["What is the capital of France?"] == "The capital of France is Paris."

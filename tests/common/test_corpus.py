"""The training text is right: a model can only be as reliable as what it reads."""

import operator
import re
from random import Random

import pytest

from common.checkpoints import unseen
from common.checkpoints.corpus import (
    BROAD,
    arithmetic,
    chat,
    copying,
    document,
    facts,
    languages,
    lists,
    passages,
    reading,
    smalltalk,
    stories,
    terms,
    unknown,
)

MODULES = (arithmetic, copying, facts, languages, lists, passages, reading, smalltalk, stories, terms, unknown)
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def test_document_depends_on_its_arguments_only():
    forward = [document(i, 7) for i in range(200)]
    backward = [document(i, 7) for i in reversed(range(200))]
    assert forward == backward[::-1]
    assert forward != [document(i, 8) for i in range(200)]
    assert len(set(forward)) > 180


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


@pytest.mark.parametrize("module", MODULES)
def test_exchanges_are_filled(module):
    for seed in range(300):
        for text in module.exchange(Random(seed)):
            assert text.strip() and not re.search(r"{\w?}" if module in (copying, reading) else r"[{}]", text)


@pytest.mark.parametrize("module", (facts, terms, smalltalk, lists, arithmetic))
def test_a_question_has_one_answer(module):
    answers: dict[str, str] = {}
    for seed in range(8000):
        question, answer = module.exchange(Random(seed))
        assert answers.setdefault(question, answer) == answer


def test_arithmetic_is_right():
    checked = 0
    for seed in range(1500):
        text = arithmetic.raw(Random(seed)) + "\n" + arithmetic.talk(Random(seed))
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


def test_there_are_few_sums():
    assert len({arithmetic.problem(Random(seed))[:3] for seed in range(30000)}) < 900


@pytest.mark.parametrize("days", range(1, stories.MAX_PARTS + 1))
def test_stories_last_as_long_as_asked_and_repeat_nothing(days):
    for seed in range(40):
        rng = Random(seed)
        who = stories.cast(rng)
        text = stories.story(rng, who, days)
        assert re.findall(r"^On the (\w+) day, ", text, re.MULTILINE) == stories.ORDINALS[:days]
        sentences = re.split(r"(?<=[.!?])\s+", text)
        assert len(sentences) == len(set(sentences))
        assert text.count(who.name) > days and who.hero in text


def test_story_requests_name_their_hero():
    for seed in range(300):
        question, text = stories.request(Random(seed))
        for name in re.findall(r"named (\w+)", question):
            assert f"named {name}" in text
        if asked := re.search(r"lasts (\w+) day", question):
            count = int(asked[1]) if asked[1].isdigit() else stories.NUMBERS.index(asked[1]) + 1
            assert len(re.findall(r"^On the ", text, re.MULTILINE)) == count


def test_answers_stand_in_the_passage():
    for seed in range(400):
        sentences, questions = passages.passage(Random(seed))
        words = set(re.findall(r"[\w'-]+", " ".join(sentences)))
        assert len({question for question, _ in questions}) == len(questions)
        for _, answer in questions:
            value = [word for word in re.findall(r"[\w'-]+", answer) if word[0].isupper() or word[-1].isdigit()]
            assert set(value[1:] if answer.startswith("The ") else value) <= words


def test_copies_are_exact():
    for seed in range(300):
        question, answer = passages._copying(Random(seed))
        assert question.endswith(answer)
        question, answer, *_ = passages._looking_up(Random(seed))
        assert answer in question.split("\n")
    old_and_new = re.compile(r"with (\w+) in place of (\w+)\.\n\n(.*)", re.DOTALL)
    for seed in range(100):
        question, answer = passages._rewriting(Random(seed))
        new, old, text = old_and_new.search(question).groups()
        assert re.sub(rf"\b{old}\b", new, text) == answer


def test_copies_of_texts_without_a_meaning_are_exact_and_of_many_lengths():
    lengths = []
    for seed in range(2000):
        question, answer = copying.exchange(Random(seed))
        assert question.count(answer) and answer == answer.strip()
        lengths.append(len(answer.split()))
    assert min(lengths) == 1 and 60 <= max(lengths) <= 70
    assert sum(length > 20 for length in lengths) > 400, "long copies are frequent"
    words = {word for seed in range(500) for word in copying.words(Random(seed), 20)}
    assert len(words & set(copying.KNOWN_WORDS)) > 1000 and len(words - set(copying.KNOWN_WORDS)) > 1000


def test_readings_have_their_answers_in_the_text_or_none():
    unanswered = 0
    for seed in range(1000):
        text, questions = reading.passage(Random(seed))
        for question, answer in questions:
            unanswered += answer == unknown.ANSWER
            frames = [f for f in reading.FRAMES if any(re.fullmatch(_filled(q), question) for q in f.questions)]
            assert frames, question
            if answer != unknown.ANSWER:
                [(subject, value)] = {
                    (m["e"].lower(), m["v"]) for f in frames if (m := re.fullmatch(_filled(f.answer), answer))
                }
                stated = [re.search(_filled(s, e=subject, v=value), text, re.I) for f in frames for s in f.statements]
                assert any(stated), (text, question, answer)
    assert 300 < unanswered < 900


def _filled(template: str, **slots: str) -> str:
    """A pattern for what can stand in place of the template; its slots are groups."""
    pattern = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    for slot in "ev":
        pattern = pattern.replace(f"{{{slot}}}", re.escape(slots[slot]) if slot in slots else f"(?P<{slot}>.+)", 1)
    return f"(?i:{pattern})"


def test_what_has_an_answer_is_not_called_unknown():
    known = {
        question
        for module in (facts, terms, arithmetic, smalltalk, lists)
        for seed in range(20000)
        for question in module.exchange(Random(seed))[:1]
    }
    for seed in range(20000):
        assert unknown.question(Random(seed)) not in known
        assert languages.exchange(Random(seed))[0] not in known


def test_training_never_reads_what_strangers_type():
    plain = "\n".join(document(i, "train") for i in range(3000))  # made-up words may happen to be English
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", plain)} | {word.lower() for word in copying.KNOWN_WORDS}
    assert len(unseen.WORDS) == len(set(unseen.WORDS)) > 300
    assert not words & set(unseen.WORDS)
    text = "\n".join(document(i, seed, BROAD) for seed in ("train", "held-out") for i in range(3000))
    lines = set(text.replace("<|im_end|>", "").split("\n"))
    assert not lines & {*unseen.QUESTIONS, *unseen.SENTENCES}
    for seed in range(100):
        question, answer = unseen.copies(Random(seed))
        assert 5 <= len(answer.split()) <= 60 and question.endswith(answer)


def test_facts_do_not_contradict_each_other():
    answers: dict[str, str] = {}
    for rows in facts.FACTS.values():
        for answer, questions in rows:
            for question in questions:
                assert answers.setdefault(question, answer) == answer
    assert sum(len(rows) for rows in facts.FACTS.values()) > 350
    assert answers["What is the capital of France?"] == "The capital of France is Paris."


def test_lists_are_sorted_and_reversed():
    for seed in range(300):
        question, answer = lists._sort(Random(seed))
        numbers = [int(number) for number in answer.rstrip(".").split(", ")]
        assert numbers == sorted(numbers, reverse="from largest" in question)
        question, answer = lists._reverse(Random(seed))
        assert question.split(": ")[1].rstrip(".").split(", ") == answer.rstrip(".").split(", ")[::-1]


def test_terms_answer_the_wordings_of_the_course():
    asked = {question: answer for seed in range(20000) for question, answer in [terms.exchange(Random(seed))]}
    assert len(terms.TERMS) >= 70
    assert asked["Explain KV cache in one sentence."] == asked["What is a KV cache?"]
    for term in terms.TERMS:
        assert term.meaning.endswith(".") and term.reason.endswith(".")
        assert asked[f"Explain {term.name} in one sentence."] == term.meaning

"""Structured output: every answer at temperature 1 parses and validates, whatever the engine does with its request."""

import asyncio
import functools
import json
import os
import re
from functools import partial
from types import SimpleNamespace

import jsonschema
import pytest

from common import grammar_trial
from common.errors import InvalidInput
from common.grammar_trial import Trials
from common.grammars import choice_grammar, json_grammar, lark_grammar, regex_grammar
from common.request import Request
from common.sampling import SamplingParams
from common.serving.errors import QueueFull
from common.stages import load_engine
from common.structured_output import Structure, masks, register
from tests.helpers import helper_file

STAGES = ["04", "05", "06", "07", "08"]
DRAFTED = {"draft": "draft", "num_draft_tokens": 3}
SHORT = {"kv_memory": "192K", "page_size": 4}  # little memory, so that requests are preempted
OPTIONS = {"05": SHORT, "06": SHORT, "07": DRAFTED | SHORT | {"kv_memory": "384K"}, "08": DRAFTED}
LEAVES = helper_file("schemas.json")
TEXT, NUMBER = LEAVES[:2]


def _object(properties: dict) -> dict:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


# The library defines what keywords mean: each is tested once here.
SCHEMAS = [
    _object({"key": one, "é": two}) | {"$defs": {"leaf": {"type": "string", "maxLength": 3}}}
    for one, two in zip(LEAVES, [*LEAVES[1:], LEAVES[0]], strict=True)
]
PATTERNS = {
    r"\d{3}-[a-f]{2}": regex_grammar(r"\d{3}-[a-f]{2}"),
    "yes|no|may be": choice_grammar(["yes", "no", "may be"]),
    "x(,y){1,2}": lark_grammar('start: "x" ("," "y"){1,2}'),
    r"\(\d[a-c]?\)": lark_grammar('root ::= "(" [0-9] [a-c]? ")"'),
}


def asked(grammar: str, **params) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 150, "temperature": 1.0, "structure": Structure(grammar)} | params)


def check(request: Request, schema: dict) -> None:
    assert request.finish_reason == "stop", request
    jsonschema.validate(json.loads(request.text), schema, format_checker=jsonschema.FormatChecker())


@pytest.fixture(scope="module", params=STAGES)
def engine(request, draft):
    return load_engine(request.param)(draft, **OPTIONS.get(request.param, {}))


def test_all_answers_have_their_form(engine):
    """Schemas together with other forms and a request of none."""
    params = [asked(json_grammar(schema), seed=i) for i, schema in enumerate(SCHEMAS)]
    params += [asked(grammar, logit_bias={}, top_k=k) for grammar in PATTERNS.values() for k in (0, 3)]
    *answers, free = engine.generate(["Say "] * (len(params) + 1), [*params, SamplingParams(max_tokens=5)])
    for answer, schema in zip(answers, SCHEMAS, strict=False):
        check(answer, schema)
    for answer, pattern in zip(answers[len(SCHEMAS) :], [p for p in PATTERNS for _ in "12"], strict=True):
        assert re.fullmatch(pattern, answer.text) and answer.finish_reason == "stop"
    assert free.finish_reason == "length"
    assert type(engine).__module__[:2] in ("04", "08") or engine.stats()["preemptions"]


NAMED = _object({"name": TEXT, "n": NUMBER})
NAMED_PARAMS = [asked(json_grammar(NAMED), temperature=0.0), asked(json_grammar(NAMED), seed=7, ignore_eos=True)]


@pytest.fixture(scope="module")
def one_after_the_other(draft):
    return load_engine("02")(draft).generate(["A person: ", "One more: "], NAMED_PARAMS)


def test_a_greedy_answer_is_the_same_in_all_stages(engine, one_after_the_other):
    """So are seeded ones: whatever is drafted, preempted or handed over. A complete answer ends despite ignore_eos."""
    answers = engine.generate(["A person: ", "One more: "], NAMED_PARAMS)
    assert [one.token_ids for one in answers] == [one.token_ids for one in one_after_the_other]
    check(answers[1], NAMED)


def rows(form: Structure, *outputs: list[int]) -> list[SimpleNamespace]:
    return [SimpleNamespace(params=SamplingParams(structure=form), token_ids=list(ids)) for ids in outputs]


def test_masks_are_those_of_the_tokens_in_any_order(draft):
    """Rows of one request go back and forth, as draft tokens do: past tokens that the grammar does not allow, and past
    the library's bound for one place."""
    register(draft)
    texts = ("a", "b", "x", "7", "[", "{", "<|endoftext|>")
    a, b, x, seven, bracket, brace, end = (draft.tokenizer(text)["input_ids"][0] for text in texts)
    letters = [[a], [a, b], [a, b, x], [a, b, x, a], [a, b, b, a], [a, b, b, a, end], [], [b, b]]
    bounded = [[bracket], [bracket, brace], [bracket, brace, seven], [bracket, seven]]
    form = json_grammar({"type": "array", "items": {"anyOf": [NUMBER, WIDE]}})
    together = {}
    for grammar, outputs in ((regex_grammar("a[ab]{3}|b{4}"), letters), (form, bounded)):
        structure = Structure(grammar, draft.name)
        for output, mask in zip(outputs, masks(rows(structure, *outputs)), strict=True):
            assert (masks(rows(Structure(grammar, draft.name), output)) == mask).all(), output
            together[tuple(output)] = mask
    assert (together[a, b, x] == -1).all(), "a row behind a wrong draft token is not restricted: it will be rejected"


# Each property is optional, so after "{" more keys are possible than the library's bound for one place.
WIDE = {"type": "object", "properties": {f"k{i}": TEXT for i in range(700)}, "additionalProperties": False}


def test_an_answer_ends_where_a_bound_is_exceeded(draft):
    """It is cut there, says so, and does not go on in free text."""
    engine = load_engine("07")(draft, **DRAFTED)
    form = json_grammar({"type": "array", "items": WIDE, "minItems": 1})
    params = [asked(form, seed=seed) for seed in (1, 2, None)]
    for answer in engine.generate(["x"] * 3, params):
        assert re.fullmatch(r"\[ ?\{", answer.text) and answer.finish_reason == "length"


def test_what_a_grammar_forces_is_drafted_and_accepted(draft):
    engine = load_engine("07")(draft, **DRAFTED)
    [answer] = engine.generate(["x"], asked(choice_grammar(["a sentence of which every word is given"])))
    stats = engine.stats()
    assert answer.text == "a sentence of which every word is given" and answer.finish_reason == "stop"
    assert stats["accepted_tokens"] >= 0.6 * len(answer.token_ids)


GRAMMARS = {"json": json_grammar, "choice": choice_grammar, "regex": regex_grammar, "lark": lark_grammar}
TOO_MUCH = {
    "deep": ("json", functools.reduce(lambda inner, _: {"items": inner, "type": "array"}, range(100), {})),
    "long": ("json", {"enum": ["x" * 200_000]}),
    "long regex": ("regex", "a" * 200_000),
    "deep grammar": ("lark", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "a long number": ("json", {"const": 10**400}),
    "too wide": ("json", WIDE),
}


def test_hostile_forms_are_refused_in_a_sentence(draft):
    engine = load_engine("06")(draft)
    for name, (kind, form) in (helper_file("refused_forms.json") | TOO_MUCH).items():
        with pytest.raises(InvalidInput) as refusal:
            engine.add(name, asked(GRAMMARS[kind](form)))
        assert len(str(refusal.value)) < 250 and not engine.requests, name


def test_forms_are_tried_out_in_processes_of_their_own(monkeypatch):
    """One that takes too long is stopped, one that crashes its process harms no other, and the last ones are known.

    While too many wait, new ones are refused. One whose process could not be started is tried out again.
    """
    trials, good = Trials(), partial(json_grammar, _object({"a": NUMBER}))
    slow = partial(json_grammar, {"type": "integer", "multipleOf": 1_000_003})
    bad = [partial(os.abort), partial(regex_grammar, "(unclosed"), partial(json_grammar, WIDE)]

    async def answers(forms):
        return await asyncio.gather(*map(trials.grammar, forms), return_exceptions=True)

    async def all_answers():
        with monkeypatch.context() as patch, pytest.raises(QueueFull, match="no process"):
            patch.setattr(grammar_trial, "ROOT", os.devnull)
            await trials.grammar(good)
        first = await answers([good, *bad, good])
        monkeypatch.setattr(grammar_trial, "SECONDS", 1)
        monkeypatch.setattr(grammar_trial, "KEPT", 4)
        monkeypatch.setattr(grammar_trial, "MAX_NEW", 2)
        return first + await answers([slow, good, partial(regex_grammar, "one more")])

    *first, refusal, again, full = asyncio.run(all_answers())
    assert first[0] == first[-1] == again == good() and isinstance(full, QueueFull)
    assert all(isinstance(one, InvalidInput) for one in [*first[1:-1], refusal])
    assert "within 1 s" in str(refusal) and len(trials.results) == 4

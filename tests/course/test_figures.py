"""Every figure in the READMEs follows from committed results or from arithmetic: common/bench/quoted says how."""

from functools import cache

import pytest

from common.bench.quoted import __main__ as command
from common.bench.quoted.__main__ import DOCUMENTS
from common.bench.quoted.passages import Claim, Given, Passage, Quote, problems, rewritten
from common.stages import ROOT

TEXT = """# A lesson

Stage 05 gives 2.0 times the throughput,
that is 1,724 tokens a second. It is twice as fast.

| clients | tokens a second |
|---|---|
| 8 | 850 |
"""
PASSAGES = [
    Quote("{:.1f} times the throughput, that is {:,.0f} tokens a second", 2.03, 1723.7),
    Claim("twice as fast", 2.03, 1.8, 2.2),
    Quote("| 8 | {:.0f} |", 849.6),
    Given("a heading", "# A lesson"),
]


@cache
def declared(name: str) -> list[Passage]:
    return [*DOCUMENTS[name]()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_figures_are_those_of_the_results(name):
    """If they are not: `python -m common.bench.quoted --write`, and look at what still disagrees."""
    assert problems((ROOT / name).read_text(encoding="utf-8"), declared(name), name.endswith(".py")) == []


def test_a_text_that_agrees():
    assert problems(TEXT, PASSAGES) == [] and rewritten(TEXT, PASSAGES) == TEXT


@pytest.mark.parametrize(
    ("was", "now", "problem"),
    [
        ("1,724", "1,742", "has 2.0, 1,742 where the results give 2.0, 1,724"),
        ("850", "580", "has 580 where the results give 850"),
        ("twice", "thrice", "is not in the text: 'twice as fast'"),
        ("It is", "It takes 5.5 ms. It is", "follows from nothing: 5.5 in 'It takes 5.5 ms'"),
        ("It is", "It beats 278 by 7 percent. It is", "follows from nothing: 278, 7 in"),
        ("It is", "It served 9,054 requests. It is", "follows from nothing: 9,054 in"),
        ("| 8 | 850 |", "| 8 | 850 |\n| 16 | 900 |", "follows from nothing: 16, 900 in '| 16 | 900 |'"),
        ("| 8 | 850 |", "| 8 | 850 |\n| 8 | 850 |", "is 2 times in the text, not once"),
    ],
)
def test_a_text_that_disagrees(was, now, problem):
    assert problem in " ".join(problems(TEXT.replace(was, now), PASSAGES))


def test_numbers_that_are_no_figures():
    text = "Run `bench --seconds 1.5` with 32 requests of 1,000 tokens (2024).\n\n    2 x 0.5 ms\n"
    assert problems(text, []) == []


def test_words_that_no_longer_hold():
    [problem] = problems("Twice as fast.", [Claim("Twice as fast", 2.5, 1.8, 2.2)])
    assert "claims 1.8 to 2.2, and the results give 2.5" in problem


def test_new_results_are_written():
    quotes = [Quote("{:.1f} times the throughput, that is {:,.0f} tokens a second", 12.34, 21000), *PASSAGES[1:3]]
    written = rewritten(TEXT, quotes)
    assert written == TEXT.replace("2.0 times", "12.3 times").replace("1,724", "21,000")
    assert problems(written, quotes) == []


def test_lines_that_become_too_long_are_broken():
    """The next line takes what is too much; a list keeps its indentation, and its other lines theirs."""
    filler = "word " * 20
    text = f"- {filler}takes 9 ms, 1. 2\n  and then less.\n- other\n\n{'long ' * 30}\n"
    written = rewritten(text, [Quote("takes {} ms", 1_000_000)])
    assert written == f"- {filler}takes 1000000\n  ms, 1. 2 and then less.\n- other\n\n{'long ' * 30}\n"


def test_a_broken_line_never_begins_as_a_list():
    text = f"{'word ' * 21}takes 9 ms - more\n\nEnd."
    first, second, *_ = rewritten(text, [Quote("takes {} ms", 12345)]).split("\n")
    assert len(first) <= 120 and second == "ms - more"


def test_the_command_writes_what_it_can_and_says_what_it_cannot(monkeypatch, tmp_path, capsys):
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("It takes 9 ms.\n", encoding="utf-8")
    declarations = {"a.md": lambda: [Quote("takes {} ms", {}["a side"])], "b.md": lambda: [Quote("takes {} ms", 8)]}
    monkeypatch.setattr(command, "DOCUMENTS", declarations)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["--write"]) == 1
    assert [(tmp_path / name).read_text() for name in declarations] == ["It takes 9 ms.\n", "It takes 8 ms.\n"]
    assert "a.md: a result lacks what is quoted (KeyError: 'a side')" in capsys.readouterr().out


def test_a_quote_has_a_figure_for_each_placeholder():
    with pytest.raises(ValueError):
        Quote("{} and {}", 1)

"""The kinds of declarations about a document, how they are checked against its text, and how figures are rewritten.

    Quote("{:.1f} times the throughput", ratio)               figures that follow from results, or from arithmetic
    Claim("twice the throughput", ratio, 1.8, 2.2)            words that are true while a value lies in a range
    Given("a size of the benchmark", "prompts of 16 to 256")  numbers that measure nothing, and what they are
    Once("no test repeats it: ...", "takes two seconds")      figures of one day, and why no result has them

A passage is found whatever its line breaks. A sentence that has a figure (`measures`) is a measured one, as is a table
row: each of its numbers must lie in a declared passage.
"""

import re
import string
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

WIDTH = 120  # columns of a line of text
FIGURE = r"(-?[\d,]*\.?\d+%?)"
NUMBER = re.compile(r"(?<![\w.,:/#^+-])(?!0\d)\d+(?:,\d{3})*(?:\.\d+)?(?![\w-]|\.\d)")
UNIT = re.compile(
    r"\s?(?:%|(?:percent|ms|us|s|seconds?|minutes?|hours?|times|[kMGT]i?B(?:/s)?|bytes?|TFLOP/s|(?:m|b)illion|nats|"
    r"frames|(?:output\s)?tokens(?:/s|\s(?:a|per)\ssecond))\b)"
)
NOT_TEXT = re.compile(
    r"^ *```.*?^ *```$|<!--.*?-->|(?<=\n\n)(?: {4}[^\n]*\n)+|`[^`\n]*`|\]\([^)]*\)|^ *\d+\. ", re.S | re.M
)
SENTENCE = re.compile(r"^\|[^\n]*$|(?:(?!\n\s*\n|\n\||[.?!:]\)?\s+[\dA-Z(*\[-]).)+", re.S | re.M)
MARKER = re.compile(r"(?:[-*+]|\d+[.)])(?:\s|$)|[>|#<!]|```")  # what begins no line of a paragraph


class Passage:
    """A phrase of the document, and the regular expression that finds it."""

    phrase: str
    pattern: str

    def matches(self, text: str) -> list[re.Match]:
        return list(re.finditer(self.pattern, text))

    def problems(self, text: str) -> Iterator[str]:
        """Yield what is wrong with it in this text."""
        if not self.matches(text):
            yield f"is not in the text: {self.phrase!r}"


class Quote(Passage):
    """A phrase with a placeholder of `str.format` for each figure, and the figures; it is in the text once."""

    def __init__(self, phrase: str, *values: float):
        self.phrase = phrase
        parts = list(string.Formatter().parse(phrase))
        specs = [spec or "" for _, name, spec, _ in parts if name is not None]
        self.figures = [format(value, spec) for value, spec in zip(values, specs, strict=True)]
        self.pattern = "".join(spaced(literal) + FIGURE * (name is not None) for literal, name, *_ in parts)

    def problems(self, text: str) -> Iterator[str]:
        found = self.matches(text)
        if len(found) != 1:
            yield f"is {len(found)} times in the text, not once: {self.phrase!r}"
        elif list(found[0].groups()) != self.figures:
            written, measured = ", ".join(found[0].groups()), ", ".join(self.figures)
            yield f"has {written} where the results give {measured}: {self.phrase!r}"


class Claim(Passage):
    """A phrase that is true while least <= value <= most."""

    def __init__(self, phrase: str, value: float, least: float = True, most: float = inf):
        self.phrase, self.pattern = phrase, spaced(phrase)
        self.value, self.least, self.most = value, least, most

    def problems(self, text: str) -> Iterator[str]:
        yield from super().problems(text)
        if not self.least <= self.value <= self.most:
            yield f"claims {self.least:g} to {self.most:g}, and the results give {self.value:.4g}: {self.phrase!r}"


class Given(Passage):
    """Phrases whose numbers measure nothing: sizes, definitions, another source's figures."""

    def __init__(self, reason: str, *phrases: str):
        self.reason, self.phrases = reason, phrases
        self.pattern = "|".join(map(spaced, phrases))

    def problems(self, text: str) -> Iterator[str]:
        for phrase in self.phrases:
            if not re.search(spaced(phrase), text):
                yield f"is not in the text: {phrase!r}"


class Once(Given):
    """Phrases with figures of one day that no committed result holds."""


def spaced(phrase: str) -> str:
    """Return a pattern of the phrase in which whitespace matches line breaks too, also inside a string of Python's."""
    return re.sub(r"(?:\\?\s)+", r'(?:\\s|"\\n *")+', re.escape(phrase))


def problems(text: str, declared: Sequence[Passage], is_code: bool = False) -> list[str]:
    """Return what is wrong between a text and what is declared of it, a line each. is_code: not all numbers measure."""
    wrong = [problem for passage in declared for problem in passage.problems(text)]
    return wrong if is_code else [*wrong, *undeclared(text, declared)]


def undeclared(text: str, declared: Sequence[Passage]) -> Iterator[str]:
    """Yield each measured sentence or table row that has numbers outside of all declared passages."""
    left = text
    for passage in declared:
        for match in passage.matches(text):
            left = left[: match.start()] + blank(match) + left[match.end() :]
    prose, left = (NOT_TEXT.sub(blank, each) for each in (text, left))
    for sentence in SENTENCE.finditer(prose):
        numbers = NUMBER.findall(left, *sentence.span())
        if numbers and any(measures(prose, number) for number in NUMBER.finditer(prose, *sentence.span())):
            yield f"follows from nothing: {', '.join(numbers)} in {' '.join(text[slice(*sentence.span())].split())!r}"


def measures(text: str, number: re.Match) -> bool:
    """Return whether a number is a figure: in a table, with a unit, with decimals, or in thousands and not round."""
    in_table = text.startswith("|", text.rfind("\n", 0, number.start()) + 1)
    value = float(number[0].replace(",", ""))
    exact = value % 1 != 0 or ("," in number[0] and value % 1000 != 0 and value % 1024 != 0)
    return in_table or exact or bool(UNIT.match(text, number.end()))


def blank(match: re.Match) -> str:
    return re.sub(r"\S", "_", match[0])


def rewritten(text: str, declared: Sequence[Passage], is_code: bool = False) -> str:
    """Return the text with the figures of all quotes that are in it once; break lines of prose that became too long."""
    changes = []
    for quote in declared:
        found = quote.matches(text) if isinstance(quote, Quote) else []
        if len(found) == 1:
            changes += [(*found[0].span(place), figure) for place, figure in enumerate(quote.figures, 1)]
    after = text
    for start, end, figure in sorted(changes, reverse=True):
        after = after[:start] + figure + after[end:]
    lines = [[line, line != was] for line, was in zip(after.split("\n"), text.split("\n"), strict=True)]
    for place, _ in enumerate([] if is_code else lines):  # which may grow meanwhile
        break_line(lines, place)
    return "\n".join(line for line, _ in lines)


def break_line(lines: list[list[Any]], place: int) -> None:
    """Move what a touched line has beyond the width to the next line of its paragraph, or to a new one."""
    line, touched = lines[place]
    if not touched or len(line) <= WIDTH or line.startswith("|"):
        return
    indent = " " * re.match(r" *(?:(?:[-*]|\d+\.) +)?", line).end()
    cut = line.rfind(" ", len(indent) + 1, WIDTH + 1)
    while cut > 0 and MARKER.match(line, cut + 1):  # a line that begins so would be a list or a heading
        cut = line.rfind(" ", len(indent) + 1, cut)
    if cut < 0:
        return
    lines[place][0], rest = line[:cut], indent + line[cut + 1 :]
    following = lines[place + 1][0] if place + 1 < len(lines) else ""
    if following.strip() and re.match(" *", following)[0] == indent and not MARKER.match(following.strip()):
        lines[place + 1] = [f"{rest} {following.strip()}", True]
    else:
        lines.insert(place + 1, [rest, True])

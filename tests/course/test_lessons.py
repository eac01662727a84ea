"""What the lessons point at exists, and they have their length and their parts. test_figures.py has their figures."""

import re

import pytest

from common.stages import ROOT

LESSONS = sorted(ROOT.glob("[0-9][0-9]_*/README.md"))


@pytest.mark.parametrize("path", [ROOT / "README.md", *LESSONS], ids=lambda path: path.parent.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.parent.name)
def test_lessons_have_their_length_and_their_parts(path):
    text = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)  # what a reader sees
    text = re.sub(r"^ +<details>.*?</details>", "", text, flags=re.DOTALL | re.MULTILINE)  # the answers to exercises
    assert 700 <= len(text.split()) <= 1800
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    order = ["The problem", "The picture", "Run it", "Predict, then measure", "When it loses", "Exercises"]
    order += ["The same thing in vLLM and SGLang", "What we left out"]
    assert [part for part in parts if part in order] == order

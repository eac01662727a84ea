"""The book: which sentences stand beside which code; its pages, opened from files in a real browser, at any width."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

from common.book.walk import explained, sentences
from common.learn.stage_diff import Change
from common.stages import ROOT
from tests.helpers.watching import PHONE, Page, browser

LINK = re.compile(r'<\w[^<>]*\s(?:href|src)="(?!\w+:)([^"]*)"')
DESK = {"width": 1280, "height": 800}
WALK = """
- **[scheduler.py](scheduler.py)**: `_extend` gives a page. It takes one from the youngest. Admission calls `reserve`.

Of all engines, `retire` is the last to go. A prompt goes to one worker ([routing.py](routing.py)).
"""
LINES = """@@ class Scheduler:
 def _extend(self):
-    return 1
+    return 2
 def retire(self):
+    pass
 def admit(self):
+    self.reserve()
""".splitlines()


def test_code_stands_beside_the_sentences_that_name_it_else_those_about_its_file():
    said = sentences(WALK)
    extend = "**[scheduler.py](scheduler.py)**: `_extend` gives a page. It takes one from the youngest."
    assert [*explained(Change("scheduler.py", "changed", LINES, 3, 1), said)] == [
        ([extend], LINES[:4]),
        (["Of all engines, `retire` is the last to go."], LINES[4:6]),
        (["Admission calls `reserve`."], LINES[6:]),
    ]
    for file, text in (("routing.py", "A prompt goes to one worker"), ("main.py", "does not mention")):
        [(texts, _)] = explained(Change(file, "new", ["+cost = 6"], 1, 0), said)
        assert text in texts[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("furo", reason="needs Sphinx: pip install -r requirements-book.txt")
    out = tmp_path_factory.mktemp("book") / "site"
    made = subprocess.run([sys.executable, "-m", "common.book", "--out", out], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr  # stderr has Sphinx's warnings.
    return out


def test_every_link_of_every_page_leads_somewhere(site):
    paths = [path for path in site.rglob("*.html") if path.name != "watch.html" and "_downloads" not in path.parts]
    pages = {path: path.read_text(encoding="utf-8") for path in paths}
    anchors = {path: {*re.findall(r'\bid="([^"]+)"', text)} for path, text in pages.items()}
    broken, files = [], {*site.rglob("*")}
    for path, text in pages.items():
        for link in {*LINK.findall(text)}:
            name, _, anchor = unquote(unescape(link)).partition("#")
            goal = Path(os.path.normpath(path.parent / name.partition("?")[0])) if name else path
            if goal not in files or anchor and anchor not in anchors.get(goal, [anchor]):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == [] and len(pages) > 300


@pytest.mark.browser
def test_pages_are_read_from_files_at_any_width_and_theme_without_an_error(site):
    kinds = ["index.html", "GLOSSARY.html", "common/README.html", "common/engine.html", "workshop/README.html"]
    paths = [*(site / name for name in kinds), *site.glob("0*/README.html"), *site.glob("0*/diff.html")]
    one_of_each = [*paths[: len(kinds)], site / "07_speculative/diff.html"]
    with browser() as chromium:
        for size, scheme, opened in ((PHONE, "dark", paths), (DESK, "light", one_of_each)):
            page = Page(chromium, paths[0].as_uri(), color_scheme=scheme)
            page.set_viewport_size(size)
            for path in opened:
                page.goto(path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
            page.goto((site / "05_paged_attention/README.html").as_uri())
            page.frame_locator(".recording iframe").locator("canvas.timeline").wait_for()
            assert page.errors == [] and all(url.startswith(("file:", "data:")) for url in page.asked)
        page.fill("input[name=q]", "preemption")
        page.keyboard.press("Enter")
        page.locator("ul.search a", has_text="Preemption").first.wait_for()
        assert page.errors == []

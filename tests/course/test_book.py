"""The book is a site without a broken link or an error, on a phone as on a desk, with search and without a network."""

import re
from pathlib import Path

import pytest

from common.book import __main__ as book
from common.errors import InvalidInput
from common.learn.stage_diff import compare
from common.stages import stage_folders
from tests.helpers.watching import browser

LINK = re.compile(r'(?:href|src)="([^"#?:<]+)(?:[#?][^"]*)?"')


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("furo", reason="needs what requirements-book.txt installs")
    out = tmp_path_factory.mktemp("book") / "site"
    assert book.main(["--out", str(out)]) == 0, "Sphinx warns of nothing"
    return out


def test_every_link_leads_to_a_file(site):
    pages = [*site.rglob("*.html")]
    broken = {
        f"{page.relative_to(site)}: {link}"
        for page in pages
        if page.name != "watch.html"
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    }
    assert not broken and len(pages) > 100


def test_a_diff_has_every_changed_line_beside_what_the_lesson_says(site):
    before, after = stage_folders()[4:6]
    text = (site / after.name / "diff.html").read_text(encoding="utf-8")
    for change in compare(before, after):
        assert f"{change.name}: " in text
    assert text.count("piece docutils container") > 10


def test_pages_fit_a_phone_and_a_desk_and_search_finds(site):
    with browser() as chromium:
        for width, scheme in ((390, "dark"), (1280, "light")):
            page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            errors: list[str] = []
            page.on("console", lambda said, errors=errors: errors.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            for name in ("index", "05_paged_attention/README", "05_paged_attention/diff", "workshop/README"):
                page.goto((site / f"{name}.html").as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") == width, name
            page.goto(f"{(site / 'search.html').as_uri()}?q=preemption")
            page.wait_for_selector("#search-results li")
            assert not errors
            page.close()


def test_a_folder_that_is_no_book_is_not_replaced(tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(InvalidInput, match="exists and is no book"):
        book.main(["--out", str(tmp_path)])
    assert (tmp_path / "diary.txt").exists()

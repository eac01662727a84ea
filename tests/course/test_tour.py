"""What a newcomer meets: a glossary two clicks from every idea, and lessons that open with what they teach."""

import re
from pathlib import Path

import pytest

from common.stages import ROOT

LESSONS = sorted(ROOT.glob("[0-9][0-9]_*/README.md"))
GLOSSARY = ROOT / "GLOSSARY.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \| \[(\d\d)\]\((.+?)#(.+?)\) \|$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.parent.name)


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections(path: Path) -> dict[str, str]:
    """Return the text under each heading of a file, down to the next heading of any level, by the heading's anchor."""
    text = CODE_BLOCK.sub(lambda block: block[0].replace("\n#", "\n "), path.read_text(encoding="utf-8"))
    _, *parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {anchor(heading): text for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def glossary() -> dict[str, tuple[Path, str, list[str]]]:
    """Return lesson, anchor and all names of each term, by each of its names in lower case."""
    terms = {}
    for names, _, number, path, place in ROW.findall(GLOSSARY.read_text(encoding="utf-8")):
        assert path.startswith(number), path
        names = names.lower().split(", ")
        terms |= {name: (ROOT / path, place, names) for name in names}
    return terms


def bold_terms(path: Path) -> list[str]:
    """Return what a lesson sets in bold, in lower case and singular, without links and code."""
    text = CODE_BLOCK.sub("", path.read_text(encoding="utf-8"))
    bold = [" ".join(term.lower().split()) for term in re.findall(r"\*\*(.+?)\*\*", text, re.DOTALL)]
    terms = [term for term in bold if term[0] not in "[`"]
    return [term if term in glossary() else term.removesuffix("s") for term in terms]


def test_every_row_of_the_glossary_is_read():
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    terms = [ROW.fullmatch(row)[1].lower() for row in rows]
    assert len(terms) > 50 and terms == sorted(set(terms))


@each_lesson
def test_the_glossary_has_each_term_in_bold_and_the_lesson_that_introduces_it(path):
    earlier = {term for lesson in LESSONS[: LESSONS.index(path)] for term in bold_terms(lesson)}
    introduced = [term for term in bold_terms(path) if term not in earlier]
    assert introduced
    assert {term: glossary()[term][0] if term in glossary() else None for term in introduced} == {
        term: path for term in introduced
    }


def test_a_term_leads_to_a_section_that_mentions_it():
    def mentioned(path: Path, place: str, names: list[str]) -> bool:
        text = " ".join(sections(path)[place].lower().split())
        return any(re.search(rf"\b{re.escape(name)}", text) for name in names)

    terms = glossary()
    assert [name for name, where in terms.items() if not mentioned(*where)] == []


GUIDES = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "GLOSSARY.md", "common/README.md", "common/serving/README.md")
]


@pytest.mark.parametrize("path", [*GUIDES, *LESSONS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(path):
    links = re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8"))
    assert links
    for link in links:
        if not link.startswith("http"):
            target, _, place = link.partition("#")
            goal = path.parent / target if target else path
            assert goal.exists(), link
            assert not place or place in sections(goal), link


def test_the_map_of_common_has_every_module_itself_or_by_its_folder():
    common = ROOT / "common"
    links = re.findall(r"\]\(([^)]+)\)", (common / "README.md").read_text(encoding="utf-8"))
    linked = {(common / link).resolve() for link in links} - {common}
    modules = [path for path in common.rglob("*.py") if path.name != "__init__.py"]
    missing = [path for path in modules if not linked & {path, *path.parents}]
    assert missing == [], "add a line to common/README.md for each"

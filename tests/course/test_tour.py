"""What a newcomer follows: every link of a text leads somewhere, and every module of common/ is on its map."""

import re
from pathlib import Path

import pytest

from common.stages import ROOT, stage_folders

FOLDERS = [*stage_folders(), ROOT / "common", ROOT / "workshop", ROOT / "beyond"]
TEXTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(path: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", CODE_BLOCK.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a text's headings."""
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(path):
    for link in links(path):
        if not link.startswith(("http", "#L")):
            target, _, place = link.partition("#")
            goal = path.parent / target if target else path
            assert goal.exists(), link
            assert not place or goal.suffix != ".md" or place in anchors(goal), link


def test_the_map_of_common_has_every_module_itself_or_by_its_folder():
    common = ROOT / "common"
    linked = {(common / link).resolve() for link in links(common / "README.md")} - {common}
    modules = [path for path in common.rglob("*.py") if path.name != "__init__.py"]
    missing = [path for path in modules if not linked & {path, *path.parents}]
    assert missing == [], "add a line to common/README.md for each"

"""common/README.md: every module of common/ is on the map, and every link and name on it exists."""

import re

from common.stages import ROOT

COMMON = ROOT / "common"
README = (COMMON / "README.md").read_text(encoding="utf-8")
MODULES = [path for path in COMMON.rglob("*.py") if path.name != "__init__.py"]
LINKED = {(COMMON / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", README)}


def test_every_module_is_linked_itself_or_by_a_folder():
    missing = [path for path in MODULES if not LINKED & {path, *path.parents}]
    names = sorted(str(path.relative_to(COMMON)) for path in missing)
    assert names == [], "add a line to common/README.md for each"


def test_a_linked_folder_replaces_its_files():
    """A link to common/ itself, or to a package that has a table, would hide missing files."""
    folders = {path for path in LINKED if path.is_dir()}
    assert COMMON not in folders and {folder.name for folder in folders} & {"loader", "serving", "distributed"} == set()
    twice = [path for path in LINKED if any(folder in path.parents for folder in folders)]
    assert twice == [], "the folder is linked, and files in it as well"


def test_links_and_names_exist():
    assert [path for path in LINKED if not path.exists()] == []
    life = README.partition("## Flat")[0]
    code = "\n".join(path.read_text(encoding="utf-8") for path in [*COMMON.rglob("*.py"), *ROOT.glob("0[68]_*/*.py")])
    names = {name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_.]+)`", life)}
    assert len(names) > 30
    assert [name for name in sorted(names) if not re.search(rf"(def|class) {name}\b", code)] == []

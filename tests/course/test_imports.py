"""No file is imported by what it imports, and no folder of common/ either: one can be read after the other."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from common.stages import ROOT, stage_folders

FILES = {path for folder in (ROOT / "common", *stage_folders()) for path in folder.rglob("*.py")}
PROGRAMS = ("__main__.py", "benchmark.py")  # No file imports them, so they may import any folder.


@cache
def imported(path: Path) -> list[Path]:
    """Return the files of the course that a file imports, wherever in it, and for types as well."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else ROOT
            base = base.joinpath(*(node.module or "").split("."))
            for name in node.names:  # a module of the folder, or something in a module
                candidates = [base / name.name / "__init__.py", base / f"{name.name}.py", base / "__init__.py"]
                found += [file for file in [*candidates, base.with_suffix(".py")] if file in FILES][:1]
    return found


@pytest.mark.parametrize("what", ["files", "folders"])
def test_no_two_import_each_other(what):
    """A folder may use the one that it lies in, and be used there."""
    imports = {}
    for path in FILES if what == "files" else [path for path in FILES if path.name not in PROGRAMS]:
        for other in imported(path):
            one, two = (file if what == "files" else file.parent for file in (path, other))
            if one != two and one not in two.parents and two not in one.parents:
                imports.setdefault(str(one.relative_to(ROOT)), set()).add(str(two.relative_to(ROOT)))
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' is imported by '.join(error.args[1])}")

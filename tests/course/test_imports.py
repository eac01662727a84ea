"""No two folders of common/ import each other: one can be read after the other."""

import ast
from graphlib import TopologicalSorter

from common.stages import ROOT

PROGRAMS = ("__main__.py", "benchmark.py")  # No file imports them, so they may import any folder.


def test_no_two_folders_import_each_other():
    """A folder may use the one that it lies in, and be used there. A circle is an error that names it."""
    imports = {}
    for path in (ROOT / "common").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for node in [node for node in nodes if isinstance(node, ast.ImportFrom) and path.name not in PROGRAMS]:
            base = path.parents[node.level - 1] if node.level else ROOT
            goal = base.joinpath(*(node.module or "").split("."))
            one, two = path.parent, goal if goal.is_dir() else goal.parent
            if one != two and one not in two.parents and two not in one.parents:
                imports.setdefault(one, set()).add(two)
    TopologicalSorter(imports).prepare()

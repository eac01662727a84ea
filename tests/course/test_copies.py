"""The stages are copies of each other, and this polices them: what has the same name is the same code, or is listed as
changed in common/learn/changes.toml. What is new or changed has a marker such as "NEW in 05".
"""

import ast
import re
from itertools import pairwise

import pytest

from common.learn.blank import listed
from common.learn.code import DEFINITIONS, Definition, definitions
from common.learn.stage_diff import read_sources as sources
from common.stages import ROOT, stage_folders

STAGES = stage_folders()
LOADERS = re.compile(r"\b(load_engine|load_stage_module|import_module|__import__)\b")

each_pair = pytest.mark.parametrize(("before", "after"), list(pairwise(STAGES)), ids=lambda stage: stage.name[:2])


def codes(source: str) -> dict[str, str]:
    return {name: found.code for name, found in definitions(source).items()}


def head(found: Definition) -> str:
    """Return the text of a function, and of a class up to its first method."""
    inner = [part.lineno - 1 for part in found.node.body if found.is_class and isinstance(part, DEFINITIONS)]
    return "".join(found.file[found.span.start : min(inner, default=found.span.stop)])


@each_pair
def test_the_same_name_is_the_same_code_unless_it_is_listed(before, after):
    changed = set()
    for file, source in sources(after).items():
        old, new = codes(sources(before).get(file, "")), codes(source)
        changed |= {name for name in old.keys() & new.keys() if old[name] != new[name]}
    assert changed == listed(after, "changed"), f"changed since {before.name}, and listed for {after.name}"


@each_pair
def test_what_is_new_is_marked(before, after):
    """At the top of a file that is wholly new; else in each new function or class, and somewhere in what changed."""
    marker = f"NEW in {after.name[:2]}"
    for file, code in sources(after).items():
        assert {*re.findall(r"NEW in \d\d", code)} <= {marker}, f"{file} shows what is new in another stage"
        if (ast.get_docstring(ast.parse(code)) or "").startswith(marker):
            continue
        assert (before / file).exists(), f"{file} is new, and does not say so"
        was = (before / file).read_text(encoding="utf-8")
        assert codes(was) == codes(code) or marker in code, f"{file} has changed, and does not say where"
        marked = {name for name, found in definitions(code).items() if marker in head(found)}
        unmarked = codes(code).keys() - codes(was).keys() - marked
        assert {name for name in unmarked if name.rpartition(".")[0] not in marked} == set(), f"new in {file}"


def test_the_first_stage_has_nothing_new():
    assert not any("NEW in" in code for code in sources(STAGES[0]).values())


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_needs_no_other_stage(stage):
    """Only its benchmark, which compares the two, loads the one before."""
    for name, code in sources(stage).items() | {("demo.py", (stage / "demo.py").read_text(encoding="utf-8"))}:
        assert not LOADERS.search(code), f"{name} loads modules by name"
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and (stage / f"{node.module}.py").exists(), f"{name} imports {node.module}"


@pytest.mark.parametrize("file", ["engine_thread.py", "graceful.py", "server.py"])
def test_what_stage_03_builds_by_hand_serves_all_later_stages(file):
    """It has grown up in common/serving, and a fix in one place is a fix in both."""
    built, grown = (sources(folder)[file] for folder in (ROOT / "03_streaming", ROOT / "common" / "serving"))
    assert codes(built) == codes(grown)

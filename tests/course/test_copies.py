"""The stages are copies of each other, and this polices them: what has the same name is the same code, or is listed as
changed in common/learn/changes.toml. What is new or changed has a marker such as "NEW in 05".
"""

import ast
import re
from itertools import pairwise

import pytest

from common.learn.blank import listed
from common.learn.stage_diff import DEFINITIONS, definitions, named
from common.learn.stage_diff import read_sources as sources
from common.stages import ROOT, stage_folders

STAGES = stage_folders()
LOADERS = re.compile(r"\b(load_engine|load_stage_module|import_module|__import__)\b")

each_pair = pytest.mark.parametrize(("before", "after"), list(pairwise(STAGES)), ids=lambda stage: stage.name[:2])
each_stage = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


def differing(was: str, now: str) -> set[str]:
    """Return which functions and classes of the same name are other code."""
    old, new = definitions(was), definitions(now)
    return {name for name in old.keys() & new.keys() if old[name] != new[name]}


@each_pair
def test_the_same_name_is_the_same_code_unless_it_is_listed(before, after):
    old, new, said = sources(before), sources(after), listed(after, "changed")
    changed = {name for file in old.keys() & new.keys() for name in differing(old[file], new[file])}
    assert changed - said == set(), f"changed since {before.name}, and not listed for {after.name}"
    assert said - changed == set(), f"listed for {after.name}, and they have not changed"


def marked_sources(code: str) -> dict[str, str]:
    """The text of each function, and of each class up to its first method, by qualified name."""
    lines, found = code.splitlines(), {}
    for name, node in named(ast.parse(code).body):
        inner = [part for part in node.body if isinstance(part, DEFINITIONS)] if isinstance(node, ast.ClassDef) else []
        found[name] = "\n".join(lines[node.lineno - 1 : inner[0].lineno - 1 if inner else node.end_lineno])
    return found


@each_pair
def test_what_is_new_is_marked(before, after):
    """At the top of a file that is wholly new; else in each new function or class, and somewhere in what changed."""
    marker, old, new = f"NEW in {after.name[:2]}", sources(before), sources(after)
    for file, code in new.items():
        assert {*re.findall(r"NEW in \d\d", code)} <= {marker}, f"{file} shows what is new in another stage"
        if (ast.get_docstring(ast.parse(code)) or "").startswith(marker):
            continue
        assert file in old, f"{file} is new, and does not say so"
        was, now, texts = definitions(old[file]), definitions(code), marked_sources(code)
        assert was == now or marker in code, f"{file} has changed, and does not say where"
        marked = {name for name in now if marker in texts[name]}
        unmarked = {name for name in now.keys() - was.keys() - marked if name.rpartition(".")[0] not in marked}
        assert unmarked == set(), f"new in {file}, and not marked"


def test_the_first_stage_has_nothing_new():
    assert not any("NEW in" in code for code in sources(STAGES[0]).values())


@each_stage
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
    built, grown = (folder / file for folder in (ROOT / "03_streaming", ROOT / "common" / "serving"))
    assert definitions(built.read_text(encoding="utf-8")) == definitions(grown.read_text(encoding="utf-8"))

"""Blank stages: the reference without the bodies of its tasks, and the list of these tasks."""

import ast
import asyncio
import textwrap
from itertools import pairwise

import pytest

from common.learn.blank import blank_stage, body_span, find_tasks, functions, listed
from common.learn.stage_diff import definitions, read_sources
from common.learn.task_list import task_list
from common.stages import stage_folders

STAGES = stage_folders()

each_pair = pytest.mark.parametrize(("before", "after"), list(pairwise(STAGES)), ids=lambda stage: stage.name[:2])


def result_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Call a function whose parameters do not matter, without its decorators, types and defaults."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    bare = ast.parse(ast.unparse(function)).body[0]
    bare.decorator_list, bare.returns = [], None
    bare.args = ast.arguments([], [ast.arg(one.arg) for one in every], arguments.vararg, [], [], arguments.kwarg, [])
    for one in (bare.args.vararg, bare.args.kwarg):
        if one is not None:
            one.annotation = None
    names: dict = {}
    exec(compile(ast.fix_missing_locations(ast.Module([bare], [])), "task", "exec"), names)
    called = names[function.name](*[None] * len(every))
    if isinstance(function, ast.AsyncFunctionDef):
        asyncio.run(called)


# ---- Blank code ----


@each_pair
def test_every_task_raises_an_error_that_names_it(before, after):
    tasks, blank = find_tasks(before, after), blank_stage(before, after)
    assert tasks and len({task.name for task in tasks}) == len(tasks), "`solve` takes a task by its name alone"
    for task in tasks:
        with pytest.raises(NotImplementedError) as error:
            result_of(functions(blank[task.file])[task.name])
        assert str(error.value) == f"task {task.number}: {task.name}"


@each_pair
def test_nothing_blank_is_called_when_a_file_is_imported(before, after):
    names, sources = {task.name.rpartition(".")[2] for task in find_tasks(before, after)}, read_sources(after)
    for file, source in sources.items() - {("main.py", sources["main.py"])}:
        inside = {line for one in functions(source).values() for line in range(one.lineno, one.end_lineno + 1)}
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        called = {ast.unparse(node.func).rpartition(".")[2] for node in calls if node.lineno not in inside}
        assert not called & names, f"{file} cannot be imported before these are written"


@each_pair
def test_what_is_given_would_be_a_task(before, after):
    given, sources = listed(after, "given"), read_sources(after)
    known = {code for text in read_sources(before).values() for code in definitions(text).values()}
    codes = {name: code for text in sources.values() for name, code in definitions(text).items()}
    new = [name for name, code in codes.items() if code not in known]
    for name in given:
        assert name in sources or any(one == name or one.startswith(f"{name}.") for one in new), name


FIRST = """class Pool:
    def take(self):
        return 1
"""
SECOND = '''class Table(Base):
    def __init__(self, size):
        self.size = size

    @property
    def length(self):
        return self.pool.length

    def declared(self) -> int: ...


class Pool:
    def take(self):
        """NEW in 02: Take one."""
        # Why it is so.
        here = 1
        # NEW in 02: the youngest first,
        # since it has done least
        return here

    def kept(self):
        return 3

    def __iter__(self):
        @decorated
        def inner():
            yield 1

        return inner()


class Filled:
    def __init__(self, pools):
        for pool in pools:
            pool.fill()
'''
BLANK = '''class Pool:
    def take(self):
        """NEW in 02: Take one."""
        # NEW in 02: the youngest first,
        # since it has done least
        raise NotImplementedError("task 1: Pool.take")

    def kept(self):
        return 3

    def __iter__(self):
        raise NotImplementedError("task 2: Pool.__iter__")


class Filled:
    def __init__(self, pools):
        raise NotImplementedError("task 3: Filled.__init__")
'''


def test_docstrings_and_reasons_stay_and_declarations_are_given(tmp_path, monkeypatch):
    before, after = tmp_path / "01_a", tmp_path / "02_b"
    for stage, code in ((before, FIRST), (after, SECOND)):
        stage.mkdir()
        (stage / "pool.py").write_text(code)
    (after / "README.md").write_text("[pool.py](pool.py)\n")
    monkeypatch.setattr("common.learn.blank.listed", lambda stage, kind: {"Pool.kept", "other.py"})
    given = SECOND[: SECOND.index("class Pool")]
    assert blank_stage(before, after) == {"pool.py": given + BLANK}


def test_comments_before_the_first_statement_belong_to_a_body():
    source = textwrap.dedent("""\
        def f():

            # why
            return 1
        """)
    assert body_span(functions(source)["f"], source.splitlines()) == slice(1, 4)


# ---- The list of tasks ----


@each_pair
def test_the_list_has_every_task_in_the_order_of_the_lesson(before, after):
    tasks = find_tasks(before, after)
    text = task_list(before, after, tasks)
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert headings == [f"### {task.number}. `{task.name}`" for task in tasks]
    assert "NEW in" not in text and "  \n" not in text
    for line in text.splitlines():
        assert len(line) <= 120 or line.startswith("> "), line


def test_a_task_has_its_signature_first_sentence_size_and_reason():
    text = task_list(STAGES[3], STAGES[4], find_tasks(STAGES[3], STAGES[4]))
    entry = " ".join(text[text.index("`Batch.__init__`") : text.index("## kv_cache.py")].split())
    assert "def __init__(self, chunks: list[Chunk], device: torch.device):" in entry
    assert "Lay chunks end to end; those of one token should come first: there are kernels for them." in entry
    assert "lines in the reference" in entry
    assert f"(../../{STAGES[3].name}/batch.py#L" in entry and "It calls `to_device`, `PagedBatch.pack`." in entry
    assert "*Why:* A token lies where the page table says" in entry

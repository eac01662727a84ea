"""`start` and `solve`: what a learner gets is the reference without its tasks, and with them it is the reference."""

import ast
import asyncio
import random
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

import course
from common.learn import solve, start
from common.learn.blank import blank_stage, body_span, find_tasks, functions, listed
from common.learn.stage_diff import definitions, read_sources
from common.learn.task_list import task_list

STAGES = course.find_stages(course.ROOT)
STAGE_02, STAGE_05 = STAGES[1].name, STAGES[4].name

each_pair = pytest.mark.parametrize(("before", "after"), list(pairwise(STAGES)), ids=lambda stage: stage.name[:2])


@pytest.fixture
def root(tmp_path) -> Path:
    """A course with the real stages, in which `my` can be written."""
    for stage in STAGES:
        (tmp_path / stage.name).symlink_to(stage)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.py")}


def imports(source: str) -> list[str]:
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]


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
def test_blank_code_is_the_reference_with_bodies_taken_out(before, after):
    for file, text in blank_stage(before, after).items():
        reference = (after / file).read_text(encoding="utf-8")
        missing = set(imports(text)) - set(imports(reference))
        assert missing == set(), f"{file} imports what the reference does not"
        lines = iter(reference.splitlines())
        for line in text.splitlines():
            assert "raise NotImplementedError(" in line or line in lines, f"{line!r} is not the reference's next"
        assert functions(text).keys() == functions(reference).keys()


@each_pair
def test_every_task_raises_an_error_that_names_it(before, after):
    tasks, blank = find_tasks(before, after), blank_stage(before, after)
    assert tasks and len({task.name for task in tasks}) == len(tasks), "`solve` takes a task by its name alone"
    for task in tasks:
        with pytest.raises(NotImplementedError) as error:
            result_of(functions(blank[task.file])[task.name])
        assert str(error.value) == f"task {task.number}: {task.name}"


@each_pair
def test_nothing_but_tasks_is_blank(before, after):
    tasks, blank = find_tasks(before, after), blank_stage(before, after)
    for file, source in read_sources(after).items():
        was, now = definitions(source), definitions(blank[file])
        assert {name for name in was if was[name] != now[name]} == {one.name for one in tasks if one.file == file}
    assert blank["main.py"] == (after / "main.py").read_text(encoding="utf-8")


@each_pair
def test_what_a_lesson_gives_would_be_a_task(before, after):
    given, sources = listed(after, "Given"), read_sources(after)
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


def test_docstrings_and_reasons_stay_and_declarations_are_given(tmp_path):
    before, after = tmp_path / "01_a", tmp_path / "02_b"
    for stage, code in ((before, FIRST), (after, SECOND)):
        stage.mkdir()
        (stage / "pool.py").write_text(code)
    (after / "README.md").write_text("[pool.py](pool.py)\n\n<!-- Given: `Pool.kept`,\n`other.py` -->\n")
    given = SECOND[: SECOND.index("class Pool")]
    assert blank_stage(before, after) == {"pool.py": given + BLANK}


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


def test_a_task_has_its_signature_first_sentence_size_and_reason(root):
    start.main([STAGE_05], root)
    text = (root / "my" / STAGE_05 / "TASKS.md").read_text(encoding="utf-8")
    entry = " ".join(text[text.index("`Batch.__init__`") : text.index("## kv_cache.py")].split())
    assert "def __init__(self, chunks: list[Chunk], device: torch.device):" in entry
    assert "Chunks of decoding requests come first." in entry and "lines in the reference" in entry
    assert f"(../../{STAGES[3].name}/batch.py#L" in entry and "It calls `to_device`, `PagedBatch.pack`." in entry
    assert "*Why:* A token lies where the page table says" in entry


# ---- start ----


def test_start_twice_is_refused_and_force_keeps_the_old_folder(root, capsys):
    start.main([STAGE_02], root)
    mine = root / "my" / STAGE_02 / "engine.py"
    mine.write_text("mine")
    with pytest.raises(SystemExit, match="is there already. `--force` begins again"):
        start.main([STAGE_02], root)
    assert mine.read_text() == "mine"
    for number in (1, 2):
        start.main([STAGE_02, "--force"], root)
        assert mine.read_text() != "mine"
        assert (root / "my" / f"{STAGE_02}.{number}" / "engine.py").exists()
    assert (root / "my" / f"{STAGE_02}.1" / "engine.py").read_text() == "mine"
    assert "begin with KVCache.nbytes" in capsys.readouterr().out


def test_the_first_stage_has_nothing_to_build_on(root):
    with pytest.raises(SystemExit, match=f"Start with {STAGE_02}"):
        start.main([STAGES[0].name], root)


def test_from_takes_over_what_the_learner_wrote_and_the_stage_keeps(root, capsys):
    earlier = root / "my" / STAGES[3].name
    start.main([earlier.name], root)
    solve.main([earlier.name, "--all", "--yes"], root)
    scheduler = earlier / "scheduler.py"
    ours = "        count = min(sequence.remaining, most)\n        sequence.computed += count\n"
    text = scheduler.read_text().replace("        sequence.computed += min(sequence.remaining, most)\n", ours)
    text = text.replace("return self.request.num_tokens - self.computed", "return left(self)")
    scheduler.write_text(text + "\n\ndef left(sequence):\n    return sequence.request.num_tokens - sequence.computed\n")
    capsys.readouterr()
    start.main([STAGE_05, "--from", str(earlier)], root)
    new = (root / "my" / STAGE_05 / "scheduler.py").read_text()
    assert ours in new
    assert "left(self)" not in new, "a helper that the new file lacks"
    assert "Scheduler._chunk" in capsys.readouterr().out.splitlines()[0]
    assert 'NotImplementedError("task 9: Scheduler.schedule")' in new


def test_from_names_the_line_that_does_not_parse(root, tmp_path):
    (root / "mine").mkdir()
    (root / "mine" / "engine.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(SystemExit, match=r"engine\.py, line 2"):
        start.main([STAGE_05, "--from", str(root / "mine")], root)
    with pytest.raises(SystemExit, match="There is no stage in"):
        start.main([STAGE_05, "--from", str(root / "nothing")], root)


# ---- solve ----


@each_pair
def test_all_filled_in_is_the_reference(root, before, after):
    start.main([after.name], root)
    assert solve.main([after.name, "--all", "--yes"], root) == 0
    assert files(root / "my" / after.name) == files(after)


@each_pair
def test_filled_in_one_by_one_in_any_order_is_the_reference(before, after):
    blank, tasks = blank_stage(before, after), find_tasks(before, after)
    random.Random(after.name).shuffle(tasks)
    for task in tasks:
        blank[task.file], _ = solve.fill_in(Path(task.file), blank[task.file], after / task.file, task)
    assert {name: text.encode() for name, text in blank.items()} == files(after)


def test_solve_shows_the_difference_and_leaves_the_rest(root, capsys):
    start.main([STAGE_05], root)
    mine = root / "my" / STAGE_05 / "page_table.py"
    written = mine.read_text().replace('raise NotImplementedError("task 3: PageAllocator.pages_for")', "return 0")
    mine.write_text(written)
    solve.main([str(root / "my" / STAGE_05), "PageAllocator.extend", "--yes"], root)
    shown = capsys.readouterr().out
    assert '-        raise NotImplementedError("task 4: PageAllocator.extend")' in shown
    assert "+        table.pages += [self.free.pop() for _ in range(lacking)]" in shown
    solve.main([STAGE_05, "--all", "--yes"], root)
    assert "return 0" in mine.read_text(), "--all fills in only what is left"
    solve.main([STAGE_05, "3", "--yes"], root)
    assert files(root / "my" / STAGE_05) == files(root / STAGE_05)
    assert solve.main([STAGE_05, "--all", "--yes"], root) == 0
    assert "Nothing is left to write." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ("extend", "PageAllocator.extend"),
        ("PageAllocater.extend", "PageAllocator.extend"),
        ("Scheduler.preempt", "Scheduler._preempt"),
        ("zzz", "none; TASKS.md lists all"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(root, wanted, nearest):
    start.main([STAGE_05], root)
    with pytest.raises(SystemExit) as stop:
        solve.main([STAGE_05, wanted, "--yes"], root)
    assert str(stop.value).startswith(f"There is no task {wanted!r}. Nearest: ") and nearest in str(stop.value)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "`solve` needs one task"),
        (["Engine.run", "--all"], "`solve` needs one task"),
        (["Engine.run"], "say --yes"),
    ],
)
def test_nothing_is_filled_in_without_a_clear_yes(root, monkeypatch, arguments, answer):
    start.main([STAGE_02], root)
    before = files(root / "my" / STAGE_02)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(SystemExit, match=answer):
        solve.main([STAGE_02, *arguments], root)
    assert files(root / "my" / STAGE_02) == before


@pytest.mark.parametrize(("answer", "filled"), [("y", True), ("", False), ("n", False)])
def test_at_a_terminal_it_asks(root, monkeypatch, answer, filled):
    start.main([STAGE_02], root)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert solve.main([STAGE_02, "--all"], root) == (0 if filled else 1)
    assert (files(root / "my" / STAGE_02) == files(root / STAGE_02)) == filled


def test_solve_without_a_folder_or_with_a_broken_file_says_what_to_do(root):
    with pytest.raises(SystemExit, match="make it with `python3 course.py start 02`"):
        solve.main([STAGE_02, "--all"], root)
    start.main([STAGE_02], root)
    engine = root / "my" / STAGE_02 / "engine.py"
    text = engine.read_text()
    engine.write_text(text.replace("def release(", "def give_back("))
    with pytest.raises(SystemExit, match="engine.py has no Engine.release"):
        solve.main([STAGE_02, "Engine.release", "--yes"], root)
    engine.write_text(text.replace("def release(", "def release(("))
    with pytest.raises(SystemExit, match="engine.py, line"):
        solve.main([STAGE_02, "Engine.run", "--yes"], root)


def test_comments_before_the_first_statement_belong_to_a_body():
    source = textwrap.dedent("""\
        def f():

            # why
            return 1
        """)
    assert body_span(functions(source)["f"], source.splitlines()) == slice(1, 4)

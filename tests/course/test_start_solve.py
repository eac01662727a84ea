"""`start` and `solve`: a learner's folder, and that it is the reference once all is filled in."""

import ast
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.learn import solve, start
from common.learn.blank import find_tasks
from common.learn.code import read_files
from common.stages import load_engine, stage_folders

STAGES = stage_folders()
STAGE_02, STAGE_05 = STAGES[1].name, STAGES[4].name


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.py")}


# ---- start ----


def test_start_twice_is_refused_and_force_keeps_the_old_folder(root, capsys):
    with pytest.raises(SystemExit, match=f"Start with {STAGE_02}"):  # the first one has nothing to build on
        start.main([STAGES[0].name], root)
    start.main([STAGES[0].name, "--complete"], root)
    assert files(root / "my" / STAGES[0].name) == files(STAGES[0])
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


def test_a_full_disk_leaves_no_half_a_stage_and_what_a_learner_wrote(root, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    for command, arguments in ((start, []), (solve, ["--all", "--yes"])):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(Path, "write_text", full)
            patch.setattr(Path, "write_bytes", full)
            command.main([STAGE_02, *arguments], root)
        if command is start:
            assert not (root / "my" / STAGE_02).exists()
            start.main([STAGE_02], root)
            assert [folder.name for folder in (root / "my").iterdir()] == [STAGE_02]
            before = files(root / "my" / STAGE_02)
    assert files(root / "my" / STAGE_02) == before


def test_from_takes_over_what_the_learner_wrote_and_the_stage_keeps(root, capsys):
    earlier = root / "my" / STAGES[3].name
    start.main([earlier.name], root)
    start.main([STAGE_05, "--from", str(earlier)], root)
    assert "04_continuous_batching: nothing." in capsys.readouterr().out, "nothing is written yet"
    solve.main([earlier.name, "--all", "--yes"], root)
    scheduler = earlier / "scheduler.py"
    line = "        stop = min(end, start + most)\n"
    ours = "        last = start + most\n" + line.replace("start + most", "last")
    text = scheduler.read_text().replace(line, ours)
    text = text.replace("return self.request.num_tokens - self.computed", "return left(self)")
    scheduler.write_text(text + "\n\ndef left(sequence):\n    return sequence.request.num_tokens - sequence.computed\n")
    capsys.readouterr()
    start.main([STAGE_05, "--force", "--from", str(earlier)], root)
    new = (root / "my" / STAGE_05 / "scheduler.py").read_text()
    assert ours in new
    assert "left(self)" not in new, "a helper that the new file lacks"
    taken, left, *_ = capsys.readouterr().out.splitlines()
    assert taken.endswith(": Scheduler._chunk.") and left.endswith(": Sequence.remaining.")
    assert 'NotImplementedError("task 9: Scheduler.schedule")' in new


def test_from_refuses_what_would_be_mixed_in_without_a_word_and_what_does_not_parse(root):
    (root / "mine").mkdir()
    (root / "mine" / "engine.py").write_text("x = 1\ndef f(:\n")
    for earlier, says in (
        (STAGES[2].name, "takes over your stage 04, the one before, and .* is another"),
        ("mine", r"engine\.py, line 2"),
        ("nothing", "There is no stage .*nothing"),
    ):
        with pytest.raises(SystemExit, match=says):
            start.main([STAGE_05, "--from", earlier], root)
    assert not (root / "my").exists()


# ---- solve ----


@pytest.mark.parametrize("stage", STAGES[1:], ids=lambda stage: stage.name[:2])
def test_a_blank_stage_keeps_what_is_said_and_filled_in_it_is_the_reference(root, stage):
    start.main([stage.name], root)
    mine, tasks = root / "my" / stage.name, find_tasks(stage)
    for task in tasks:
        given = task.of(mine)
        assert [ast.unparse(one) for one in given.statements] == [task.unwritten.replace('"', "'")]
        assert given.doc == task.of(stage).doc
    for name, text in read_files(stage).items():
        reasons = {line.strip() for line in text.splitlines() if line.strip().startswith("# NEW in ")}
        assert reasons <= {*map(str.strip, (mine / name).read_text(encoding="utf-8").splitlines())}
    headings = re.findall("^### .*", (mine / "TASKS.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [f"### {task.number}. `{task.name}`" for task in tasks]
    for task in [tasks[-1].name, tasks[1].name, "--all"]:  # in any order
        assert solve.main([stage.name, task, "--yes"], root) == 0
    assert files(mine) == files(stage)


def test_solve_shows_the_difference_and_leaves_the_rest(root, capsys):
    start.main([STAGE_05], root)
    mine = root / "my" / STAGE_05 / "page_table.py"
    written = mine.read_text().replace('raise NotImplementedError("task 3: PageAllocator.pages_for")', "return 0")
    mine.write_text(written)
    solve.main([str(root / "my" / STAGE_05), "PageAllocator.extend", "--yes"], root)
    shown = capsys.readouterr().out
    assert '-        raise NotImplementedError("task 4: PageAllocator.extend")' in shown
    assert "+        table.pages.extend(self.free.pop() for _ in range(lacking))" in shown
    solve.main([STAGE_05, "--all", "--yes"], root)
    assert "return 0" in mine.read_text(), "--all fills in only what is left"
    solve.main([STAGE_05, "3", "--yes"], root)
    assert files(root / "my" / STAGE_05) == files(root / STAGE_05)
    capsys.readouterr()
    assert solve.main([STAGE_05, "3"], root) == 0 and solve.main([STAGE_05, "--all"], root) == 0
    shown = capsys.readouterr().out
    assert shown == "PageAllocator.pages_for is the reference already.\nNothing is left to write.\n"


def test_nothing_is_filled_in_without_a_clear_yes(root, monkeypatch):
    with pytest.raises(SystemExit, match="make it with `python3 course.py start 02`"):
        solve.main([STAGE_02, "--all"], root)
    start.main([STAGE_02], root)
    engine = root / "my" / STAGE_02 / "engine.py"
    before, text = files(engine.parent), engine.read_text()
    for arguments, written, says in (
        ([], text, "needs one task"),
        (["2"], text, "say --yes"),
        (["run"], text, "^There is no task 'run'. Nearest: .*Engine.run"),
        (["Engin.run"], text, "^There is no task 'Engin.run'. Nearest: .*Engine.run"),
        (["zzz"], text, "^There is no task 'zzz'. Nearest: none; TASKS.md lists all"),
        (["Engine.release"], text.replace("def release(", "def give_back("), "engine.py has no Engine.release"),
        (["Engine.run"], text.replace("def release(", "def release(("), "engine.py, line"),
    ):
        engine.write_text(written)
        with pytest.raises(SystemExit, match=says):
            solve.main([STAGE_02, *arguments], root)
    engine.write_text(text)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Mock(side_effect=["", "n", EOFError, "y"]))
    for _ in range(3):
        assert solve.main([STAGE_02, "--all"], root) == 1 and files(engine.parent) == before
    assert solve.main([STAGE_02, "--all"], root) == 0 and files(engine.parent) == files(root / STAGE_02)


# ---- The learner's folder in place of the reference ----


def test_only_the_chosen_stage_is_the_learners(tmp_path, monkeypatch):
    for folder, says in (("90_a", "reference"), ("91_b", "reference"), ("my/90_a", "mine"), ("my/91_b", "mine")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "engine.py").write_text("from .part import Engine\n")
        (tmp_path / folder / "part.py").write_text(f"Engine = {says!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "my"), str(tmp_path), *sys.path])  # as its benchmark sets it
    monkeypatch.setenv("COURSE_STAGE", str(tmp_path / "my" / "91_b"))
    assert [load_engine(tmp_path / name) for name in ("90_a", "91_b")] == ["reference", "mine"]

"""`check`: a learner's folder against the milestones, and what it is told. See test_milestones.py."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.learn import check, solve, start
from common.learn.blank import find_tasks
from common.learn.code import read_files
from common.learn.milestones import Failed, read_milestones
from common.learn.milestones.runner import run_one
from common.stages import ROOT, stage_folder
from common.toml import read_toml
from tests.helpers.incomplete_stages import edit, patient, without

STAGE_05 = stage_folder("05")
MISTAKES = read_toml(Path(__file__).with_name("mistakes.toml"))["mistake"]
TASKS_05 = {task.name: task for task in find_tasks(STAGE_05)}


def started(root: Path, *filled: str) -> Path:
    """Return the learner's folder of stage 05, with these tasks written."""
    start.main([STAGE_05.name], root)
    for name in filled:
        solve.main([STAGE_05.name, name, "--yes"], root)
    return root / "my" / STAGE_05.name


def test_a_blank_stage_fails_at_once_and_gives_a_hint_only_if_asked(root, capsys):
    with pytest.raises(SystemExit, match="make it with `python3 course.py start 05"):
        check.main([STAGE_05.name], root)
    started(root)
    capsys.readouterr()
    assert check.main([STAGE_05.name], root) == 1
    shown = capsys.readouterr().out
    first, *others = read_milestones("05")
    assert f"failing  1  {first.title}" in shown and shown.count("not yet ") == len(others)
    assert "Happened: not written yet: task " in shown and f"`solve 05 {first.tasks[0]}`" in shown
    assert first.hint not in shown and first.second_hint not in shown
    check.main([STAGE_05.name, "--hint"], root)
    assert f"Hint: {first.hint}\nSecond hint: {first.second_hint}" in capsys.readouterr().out


def test_each_written_task_is_tried_by_itself_while_others_are_unwritten(root, capsys, loaded_once):
    """Also one of a later milestone, and one that calls `super()`; the learner's own code stays around each."""
    name = "PageAllocator.pages_for"
    folder = started(root, "PageTable.capacity", "PageTable.slot_mapping", name, "Engine.stats")
    tasks = {name: task.title for name, task in TASKS_05.items()}
    for is_wrong in (False, True):
        if is_wrong:
            edit(folder / "page_table.py", "-(-tokens // self.page_size)", "tokens // self.page_size")
        capsys.readouterr()
        assert check.main([STAGE_05.name], root) == 1
        shown = capsys.readouterr().out
        assert f"{'wrong' if is_wrong else 'ok':6} {tasks[name]}\n" in shown
        assert f"ok     {tasks['Engine.stats']}\n" in shown
        assert f"empty  {tasks['PageAllocator.extend']}\n" in shown and tasks["Batch.__init__"] not in shown
        assert "done     1  Where a token lies" in shown and "failing  2  Every page has one owner" in shown
        for said in ("yours   0 1 1 2 2", "Hint: ", f"`solve 05 {name}`"):
            assert (said in shown) == is_wrong
        assert ("not written yet" in shown) != is_wrong


PAGES = "return [pages[position // size] * size + position % size for position in range(start, stop)]"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (PAGES.replace("stop)", "stop + 1)"), "called as slot_mapping(start=0, stop=16), where self is PageTable with"),
        ("return [pages[position // size] * size for position in range(start, stop)]", "^^"),
        ("raise SystemExit(7)", "SystemExit: 7"),
        ("import os; os._exit(3)", "the process ended in the middle, with exit status 3"),
        ("return None", "the check cannot go on with what it was given: TypeError"),
    ],
    ids=["raises", "wrong", "exits", "dies", "returns nothing"],
)
def test_what_happened_is_shown_without_a_traceback(root, capsys, loaded_once, written, says):
    folder = started(root, "PageTable.capacity", "PageTable.slot_mapping")
    edit(folder / "page_table.py", PAGES, written)
    capsys.readouterr()
    assert check.main([STAGE_05.name], root) == 1
    shown = capsys.readouterr()
    assert says in shown.out and "Traceback" not in shown.out + shown.err and "failing  1" in shown.out
    alone = "Wrong beside the reference's other functions: task 2: PageTable.slot_mapping: Return where"
    assert ("ok     task 1" in shown.out and alone in shown.out) == ("os._exit" not in written)


def test_code_that_runs_for_ever_is_stopped_and_shown(tmp_path, runner):
    endless = "size = 1\n        while True: size += 0\n        return []"
    start.write_folder(tmp_path / STAGE_05.name, without(STAGE_05, TASKS_05["PageTable.slot_mapping"], endless))
    outcome = runner.run(tmp_path / STAGE_05.name, read_milestones("05")[0]._replace(seconds=1))
    assert outcome.what == "it ran for 1 s without an end"
    assert "in slot_mapping" in outcome.picture and "while True: size += 0" in outcome.picture


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["file"][:2])
def test_a_mistake_is_shown_where_it_lies(tmp_path, runner, mistake):
    file = Path(mistake["file"])
    start.write_folder(tmp_path / file.parent, read_files(ROOT / file.parent))
    edit(tmp_path / file, mistake["right"], mistake["wrong"])
    milestone = read_milestones(mistake["file"][:2])[mistake["milestone"] - 1]
    outcome = runner.run(tmp_path / file.parent, patient(milestone))
    assert mistake["says"] in outcome.what and mistake.get("shows", "") in outcome.picture


def test_what_ended_a_thread_is_shown_with_what_then_failed(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # restored afterwards

    def check(stage):
        (thread := threading.Thread(target=lambda: [][0])).start()
        thread.join()
        raise Failed("no answer came")

    outcome = run_one(check, SimpleNamespace(folder=Path(__file__).parent))
    assert outcome.what.startswith("no answer came\n") and ": IndexError: " in outcome.what
    assert "[][0]" in outcome.picture


def test_tasks_that_are_ok_and_fail_beside_an_earlier_one_are_told_so(tmp_path, capsys, loaded_once):
    folder = tmp_path / STAGE_05.name
    start.write_folder(folder, read_files(STAGE_05))
    edit(folder / "scheduler.py", "while sequence.request.request_id in self.running:", "while True:")  # in `_extend`
    tasks = [TASKS_05[name] for name in ("Scheduler.schedule", "Scheduler._extend")]
    assert check.check_milestones(folder, [patient(read_milestones("05")[7])], tasks) == 1
    shown = capsys.readouterr().out
    assert f"ok     {tasks[0].title}" in shown and "an older request preempted" in shown
    assert f"\n{check.TOGETHER}\n" in shown and "`solve" not in shown


def test_the_contract_finds_what_raises_and_else_the_stage_is_timed(root, capsys, monkeypatch):
    """The milestones are not run: `check` must grade what `pytest --engine my/05` grades."""
    folder = root / "my" / STAGE_05.name
    monkeypatch.setattr(check, "CONTRACT", ["tests/test_contract_claims.py", "-k", "runs_short"])
    raises = 'raise RuntimeError("never preempted")'
    start.write_folder(folder, without(STAGE_05, TASKS_05["Scheduler.preempt"], raises))
    assert check.check_whole(folder, STAGE_05) == 1
    shown = capsys.readouterr().out
    assert "Expected: memory that runs short" in shown and "Happened: RuntimeError: never preempted" in shown
    assert check.measure_throughput(STAGE_05, None, picture=True) > 0
    assert "Each is a page and names its owner" in capsys.readouterr().out


def test_watch_checks_again_when_a_file_is_saved(tmp_path, monkeypatch):
    saved, checked = iter([(), ["engine.py"]]), []

    def sleep(seconds):
        for name in next(saved):
            (tmp_path / name).touch()

    monkeypatch.setattr(check.time, "sleep", sleep)
    with pytest.raises(StopIteration):
        check.watch(tmp_path, lambda: checked.append(len([*tmp_path.iterdir()])))
    assert checked == [0, 1]

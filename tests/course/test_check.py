"""`check`: a learner's folder against the milestones, and that these grade what they say. See test_milestones.py."""

import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.learn import check, solve, start
from common.learn.blank import find_tasks
from common.learn.milestones import Failed, read_milestones
from common.learn.milestones.runner import Runner, interrupted, run_one
from common.stages import stage_folders
from tests.helpers.incomplete_stages import edit, patient, without, write

STAGES = stage_folders()
BEFORE_05, STAGE_05 = STAGES[3:5]


def started(root: Path, stage: Path, *filled: str) -> Path:
    """Return the learner's folder of a stage, with these tasks written."""
    start.main([stage.name], root)
    for name in filled:
        solve.main([stage.name, name, "--yes"], root)
    return root / "my" / stage.name


@pytest.mark.parametrize("stage", STAGES[1:], ids=lambda stage: stage.name)
def test_a_blank_stage_fails_at_once_and_gives_a_hint_only_if_asked(root, capsys, stage):
    started(root, stage)
    capsys.readouterr()
    assert check.main([stage.name], root) == 1
    shown = capsys.readouterr().out
    first, *others = read_milestones(stage.name[:2])
    assert f"failing  1  {first.title}" in shown and shown.count("not yet ") == len(others)
    assert "Happened: not written yet: task " in shown and f"`solve {stage.name[:2]} {first.tasks[0]}`" in shown
    assert "Traceback" not in shown and first.hint not in shown and first.second_hint not in shown
    check.main([stage.name, "--hint"], root)
    assert f"Hint: {first.hint}\nSecond hint: {first.second_hint}" in capsys.readouterr().out


def test_after_the_contract_a_stage_is_timed_and_its_page_map_drawn(capsys):
    assert check.measure_throughput(STAGE_05, None, picture=True) > 0
    assert "Each is a page and names its owner" in capsys.readouterr().out


PAGES = "return [pages[position // size] * size + position % size for position in range(start, stop)]"


@pytest.mark.parametrize(
    ("task", "right", "wrong", "says"),
    [
        ("pages_for", "-(-tokens // self.page_size)", "tokens // self.page_size", "yours   0 1 1 2 2"),
        ("release", "del table.pages[:]", "table.pages = []", "put a list in place of the array"),
        ("pages_for", "", "", ""),
    ],
)
def test_each_written_task_is_tried_by_itself_while_others_are_unwritten(
    root, capsys, loaded_once, task, right, wrong, says
):
    """Also one of a later milestone, and one that calls `super()`; the learner's own code stays around each."""
    name = f"PageAllocator.{task}"
    folder = started(root, STAGE_05, "PageTable.capacity", "PageTable.slot_mapping", name, "Engine.stats")
    if right:
        edit(folder / "page_table.py", right, wrong)
    capsys.readouterr()
    assert check.main([STAGE_05.name], root) == 1
    shown = capsys.readouterr().out
    tasks = {name: task.title for task in find_tasks(BEFORE_05, STAGE_05) for name in [task.name]}
    assert f"{'wrong' if wrong else 'ok':6} {tasks[name]}\n" in shown and f"ok     {tasks['Engine.stats']}\n" in shown
    assert f"empty  {tasks['PageAllocator.extend']}\n" in shown and tasks["Batch.__init__"] not in shown
    assert "done     1  Where a token lies" in shown and "failing  2  Every page has one owner" in shown
    assert says in shown and ("not written yet" in shown) == (not wrong)
    docstring = {"pages_for": "Return how many pages", "release": "Put all pages of a table back"}[task]
    assert (f"Hint: {docstring}" in shown and f"`solve 05 {name}`" in shown) == bool(wrong)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (PAGES.replace("stop)", "stop + 1)"), "called as slot_mapping(start=0, stop=16), where self is PageTable with"),
        ("return [pages[position // size] * size for position in range(start, stop)]", "^^"),
        ("return self.slots", "AttributeError: 'PageTable' object has no attribute 'slots'"),
        ("raise SystemExit(7)", "SystemExit: 7"),
        ("import os; os._exit(3)", "the process ended in the middle, with exit status 3"),
        ("return None", "the check cannot go on with what it was given: TypeError"),
    ],
    ids=["beyond", "wrong", "raises", "exits", "dies", "returns nothing"],
)
def test_what_happened_is_shown_without_a_traceback(root, capsys, loaded_once, written, says):
    folder = started(root, STAGE_05, "PageTable.capacity", "PageTable.slot_mapping")
    edit(folder / "page_table.py", PAGES, written)
    capsys.readouterr()
    assert check.main([STAGE_05.name], root) == 1
    shown = capsys.readouterr()
    assert says in shown.out and "Traceback" not in shown.out + shown.err
    assert "failing  1" in shown.out and "ok     task 1" in shown.out or "os._exit" in written
    alone = "Wrong beside the reference's other functions: task 2: PageTable.slot_mapping: Return where"
    assert alone in shown.out or "os._exit" in written


def test_code_that_runs_for_ever_is_stopped_and_shown(root, loaded_once):
    folder = started(root, STAGE_05, "PageTable.capacity", "PageTable.slot_mapping")
    endless = "size = 1\n        while True: size += 0\n"
    edit(folder / "page_table.py", "size, pages = self.page_size, self.pages\n", endless)
    first = read_milestones("05")[0]._replace(seconds=1)
    with Runner() as runner:
        outcome = runner.run(folder.resolve(), first)
    assert outcome.what == "it ran for 1 s without an end"
    assert "in slot_mapping" in outcome.picture and "while True: size += 0" in outcome.picture


def test_of_several_threads_that_wait_the_main_thread_is_shown_first(tmp_path):
    (tmp_path / "a.py").write_text("idle()\nblock()\n", "utf-8")
    thread = 'Thread 0x1 (most recent call first):\n  File "queue.py", line 9 in get\n  File "{}/a.py", line {} in f\n'
    stacks = "Timeout!\n" + "\n".join(thread.format(tmp_path, line) for line in (1, 2))
    outcome = interrupted(tmp_path, read_milestones("03")[0], stacks, 1)
    assert re.findall(r"\w+\(\)", outcome.picture) == ["block()", "idle()"]


@pytest.mark.parametrize(
    ("file", "right", "wrong", "number", "says", "shows"),
    [
        ("02/engine.py", "len(request.prompt_token_ids) + request", "request", 4, "(9) must match", "capacity=9"),
        ("03/engine_thread.py", ".pop(request.request_id)", "[request.request_id]", 3, "out of `_by_id`", ""),
        ("03/engine_thread.py", "if piece := stream.next_piece()", "for piece in [stream.next_piece()]", 3, "None", ""),
        ("03/engine_thread.py", "for stream in self._open])", "for stream in self.open])", 5, "'open'", "in _fail_all"),
        ("03/server.py", "abort_on_disconnect(http, engine_thread, stream))", "asyncio.sleep(9))", 7, "watches 0", ""),
        ("04/scheduler.py", "self.price.most(start, budget)", "budget", 1, "buys 2 tokens, not 4", ""),
        ("04/scheduler.py", "chunk.sequence.slot))", "0))", 3, "step 2: the order is", "wanted   1 1 1"),
        ("04/scheduler.py", "self.price(chunks[-1].start, len(", "(len(", 3, "costs 2", "yours   2 3"),
        ("05/batch.py", "lengths.append(chunk.start + ", "lengths.append(", 3, "lengths", "yours           1  4  2"),
        ("05/scheduler.py", "request.max_tokens)", "request.params.max_tokens)", 5, "NoneType", "in add"),
        ("05/scheduler.py", "sequence.computed + 1", "sequence.computed", 6, "needs 2 pages", "0 │  ? │"),
        ("05/scheduler.py", "_, sequence = self.running.popitem()", "return", 7, "out of `running`", "owner  A B A A"),
        ("05/engine.py", "logits_rows]", "logits_rows.flip(0)]", 8, "in place of", "last written by  A"),
        ("06/prefix_tree.py", "reversed(path)", "path", 2, "`unused`", "yours    0 1 2"),
        ("06/page_table.py", "elif table.pages[place] != node.page:", "else:", 3, "of its own page", ""),
    ],
    ids="room leak none typo watch price order cost row limit place victim token tree copy".split(),
)
def test_a_fault_is_shown_where_it_lies(tmp_path, loaded_once, file, right, wrong, number, says, shows):
    [stage] = [stage for stage in STAGES if stage.name[:2] == file[:2]]
    folder = tmp_path / stage.name
    shutil.copytree(stage, folder)
    edit(folder / file[3:], right, wrong)
    milestone = read_milestones(file[:2])[number - 1]
    with Runner() as runner:
        outcome = runner.run(folder, patient(milestone))
    assert says in outcome.what and shows in outcome.picture


def test_what_ended_a_thread_is_shown_with_what_then_failed(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # restored afterwards

    def check(stage):
        (thread := threading.Thread(target=lambda: [][0])).start()
        thread.join()
        raise Failed("no answer came")

    outcome = run_one(check, SimpleNamespace(folder=Path(__file__).parent))
    assert re.fullmatch("no answer came\n.*: IndexError: .*", outcome.what) and "[][0]" in outcome.picture


def test_tasks_that_are_ok_and_fail_beside_an_earlier_one_are_told_so(tmp_path, capsys, loaded_once):
    folder = tmp_path / STAGE_05.name
    shutil.copytree(STAGE_05, folder)
    edit(folder / "scheduler.py", "while sequence.request.request_id in self.running:", "while True:")  # in `_extend`
    tasks = [
        task for task in find_tasks(BEFORE_05, STAGE_05) if task.name in ("Scheduler.schedule", "Scheduler._extend")
    ]
    assert check.check_milestones(folder, [patient(read_milestones("05")[7])], tasks) == 1
    shown = capsys.readouterr().out
    assert f"ok     {tasks[0].title}" in shown and "an older request preempted" in shown
    assert f"\n{check.TOGETHER}\n" in shown and "`solve" not in shown


def test_the_contract_finds_a_preemption_that_raises(root, capsys, monkeypatch):
    """The milestones are not asked: what `pytest --engine my/05` grades, must be graded."""
    folder = root / "my" / STAGE_05.name
    [task] = [task for task in find_tasks(BEFORE_05, STAGE_05) if task.name == "Scheduler._preempt"]
    write(folder, without(STAGE_05, task, 'raise RuntimeError("never preempted")'))
    monkeypatch.setattr(check, "CONTRACT", ["tests/test_contract_claims.py", "-k", "runs_short and 16"])
    assert check.check_whole(folder, STAGE_05) == 1
    shown = capsys.readouterr().out
    assert "test_memory_that_runs_short" in shown and "RuntimeError: never preempted" in shown


def test_without_a_folder_it_says_what_to_do(root):
    with pytest.raises(SystemExit, match="make it with `python3 course.py start 05`"):
        check.main([STAGE_05.name], root)


def test_watch_checks_again_when_a_file_is_saved(tmp_path, monkeypatch):
    (tmp_path / "engine.py").write_text("")
    checked, sleeps = [], iter([lambda: None, lambda: (tmp_path / "page.py").write_text(""), lambda: None])

    def sleep(seconds):
        next(sleeps, lambda: (_ for _ in ()).throw(KeyboardInterrupt))()

    monkeypatch.setattr(check.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        check.watch(tmp_path, lambda: checked.append(True))
    assert len(checked) == 2
